"""The model APIs of OpenAI, Anthropic and Google: requests, answers, errors and usage.

In: a model's stage with its input, and the backend of a seat.
Out: the stage's output, streamed if its client asked for a stream, and its usage.
Imported by: workers.profiles, workers.demo.
"""

__all__ = [
    "anthropic",
    "api_request",
    "backend",
    "chat_assembly",
    "context_wrappers",
    "demand",
    "fields",
    "google",
    "http",
    "model_catalogue",
    "model_kinds",
    "openai",
    "stage_runner",
    "stages",
    "token_estimates",
    "usage",
]
