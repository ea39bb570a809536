"""Assemble a streamed answer of OpenAI's Responses into the one that it returns without streaming."""

from __future__ import annotations

from functools import cached_property

from gridq.protocol.models import Json, Usage
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import complete_responses_usage, parse_responses_usage

OPENINGS = frozenset(
    {
        *("response.created", "response.queued", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.reasoning_summary_part.added", "keepalive"),
    }
)
"""Events without content: until another one comes, another seat can still take over."""

ENDINGS = frozenset({"response.completed", "response.incomplete"})


class ResponseAssembler:
    """Assembles a `response`, complete or event by event.

    `body` is the body of the request, from which missing usage is estimated.
    """

    def __init__(self, body: dict[str, Json]) -> None:
        self._body = body
        self._pieces = 0
        self._response: dict[str, Json] = {}
        self._items: dict[int, Json] = {}
        self._is_complete = False

    def add_answer(self, answer: dict[str, Json]) -> None:
        """Take the complete answer. Raises ValueError if it has no output."""
        if not isinstance(answer.get("output"), list):
            raise ValueError("its answer has no output")
        self._response = answer
        self._pieces = estimate_tokens(answer["output"]) if answer["output"] else 0
        self._is_complete = True

    def add_event(self, event: dict[str, Json]) -> bool:
        """Take one event of a stream. Return whether it has content for the client."""
        kind = event.get("type")
        if isinstance(event.get("response"), dict):
            self._response = event["response"]
        if kind in ENDINGS:
            self._is_complete = True
            if not self._response.get("output"):  # some endpoints leave it out of the last event
                output = [self._items[index] for index in sorted(self._items)]
                self._response = event["response"] = {**self._response, "output": output}
        elif kind == "response.output_item.done" and isinstance(event.get("output_index"), int):
            self._items[event["output_index"]] = event.get("item")
        self._pieces += isinstance(kind, str) and kind.endswith(".delta")
        return kind not in OPENINGS

    @property
    def is_complete(self) -> bool:
        """True once the stream has reached its end."""
        return self._is_complete

    def build_answer(self) -> dict[str, Json]:
        """Return the answer so far, with its usage."""
        return {**self._response, "usage": self.build_usage()}

    def build_usage(self) -> dict[str, Json]:
        """Return the usage as the endpoint stated it, with estimates for what it left out."""
        return complete_responses_usage(
            self._response.get("usage"),
            lambda: self._prompt_tokens if self._response else 0,
            self._pieces,
            is_final=self._is_complete,
        )

    @cached_property
    def _prompt_tokens(self) -> int:
        return estimate_tokens(self._body)

    def compute_usage(self) -> Usage:
        """Return the usage so far."""
        return parse_responses_usage(self.build_usage(), self._response.get("service_tier"))
