"""HTTP calls to the endpoint of a seat.

In: a path, a JSON body, the context of a stage.
Out: the JSON answer, complete or event by event, or an error of the grid.
Imported by: google, openai, anthropic, workers.profiles.
"""

__all__ = ["api_client", "connections", "locality"]
