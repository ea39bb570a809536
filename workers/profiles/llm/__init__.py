"""The profile `llm`: models at endpoints on other machines, and behind vendors' programs on this one.

In: `[[llm]]` tables and the environment, a stage and its input.
Out: one seat for each login, the output of a stage.
Imported by: nobody; loaded as an entry point.
"""

from workers.profiles.llm.profile import LlmProfile

__all__ = ["LlmProfile"]
