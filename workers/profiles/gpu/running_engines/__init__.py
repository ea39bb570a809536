"""Engines that already run on this machine: Ollama, LM Studio, llama-server, vLLM, SGLang, TGI, MLX.

In: the `[[gpu.engines]]` tables, the usual ports of this machine, a stage and its input.
Out: one seat for each engine, with the models that it has at the moment, and the output of a stage.
Imported by: probe, profile.
"""

__all__ = ["engine_offers", "engine_seat_runner", "engine_table", "finding", "handoff_files"]
