"""A small endpoint of the OpenAI API format that does with each request what a test says."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.http_server import Handler, LocalServer

Play = Callable[[Handler], None]

_ANSWER = {
    "id": "1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


def answer(handler: Handler) -> None:
    """Answer a chat with "ok"."""
    handler.answer(200, _ANSWER)


class PlayedServer(LocalServer):
    """Reads each request, then `play` answers it. `calls` counts them."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.calls = 0
        state = self

        class Plays(Handler):
            def do_POST(self) -> None:
                self.body()
                state.calls += 1
                state.play(self)

        super().__init__(Plays, "/v1")
