"""Models by name: references, downloads into the Hugging Face cache, and the models of this machine.

In: references such as `hf:org/repo:Q4_K_M`, limits of size.
Out: verified GGUF files, the list of this machine's models, the progress of pulls, files for other machines.
Imported by: engine_process, model_loader, probe, runner, workers.machine, workers.process, workers.cli.
"""

__all__ = [
    "downloads",
    "file_use",
    "hub",
    "local_models",
    "machine_models",
    "memory_estimate",
    "mirror_protocol",
    "mirror_server",
    "model_folders",
    "pulling",
    "references",
    "requested_pulls",
    "suggestions",
]
