"""The HTTP gateway: OpenAI's and Anthropic's APIs, jobs, workers, metrics.

In: HTTP requests, an API key with each.
Out: jobs in the grid, and their answers in the format of the API that was called.
Imported by: cli, workers.supervisor.
"""

__all__ = ["app", "options"]
