"""The local engines that run models: llama.cpp in two bindings.

In: a model file, a device, requests.
Out: tokens and vectors.
Imported by: engine_process, memory, model_files, model_loader, model_process, probe, workers.demo.
"""

__all__ = ["base", "selection"]
