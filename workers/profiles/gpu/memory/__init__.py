"""Memory of models: what one needs before it is loaded, and who holds what on a device of this machine.

In: a model's file, context and slots, a device.
Out: MB that a load needs; reservations.
Imported by: loaded_models, model_files, model_loader, python_stages, running_engines.
"""

__all__ = ["device_book", "engine_memory", "gguf_file", "model_needs"]
