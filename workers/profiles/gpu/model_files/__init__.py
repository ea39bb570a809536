"""Models by name: references, downloads into the Hugging Face cache, and the models of this machine.

In: references such as `hf:org/repo:Q4_K_M`, limits of size.
Out: verified GGUF files, the list of this machine's models, the progress of pulls.
Imported by: nobody.
"""

__all__: list[str] = []
