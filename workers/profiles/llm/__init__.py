"""The kind `llm`: seats at OpenAI-compatible endpoints that are not on this machine."""

from workers.profiles.llm.profile import LlmProfile

__all__ = ["LlmProfile"]
