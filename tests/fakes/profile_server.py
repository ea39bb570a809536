"""An HTTP server for one profile, so that vendors' clients can use its `llm:api_request` without a grid."""

from __future__ import annotations

import json
from typing import Any

from gridq.errors import GridError
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol.models import Effect, StageCall
from tests.fakes.http_server import Handler, LocalServer


class ProfileServer(LocalServer):
    """Use `with ProfileServer(profile) as server`. Clients need `server.url`, some with `/v1`."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(_handler(profile))


def _handler(profile: Profile) -> type[Handler]:
    class ProfileHandler(Handler):
        protocol_version = "HTTP/1.0"  # a stream ends with its connection

        def do_POST(self) -> None:
            body = self.body()
            path = self.path.removeprefix("/v1/").partition("?")[0]
            self.api = {"messages": "anthropic", "responses": "responses"}.get(path, "openai")
            needs = {"embeddings": True} if path == "embeddings" else {}
            call = StageCall(
                id="s",
                name="llm_api_request",
                path="$",
                implementation="llm:api_request",
                effects=[Effect(effect="Llm", model=body["model"], **needs)],
            )
            value = {"api": self.api, "path": path, "body": body, "model": body["model"]}
            context = StageContext(emit=self._event if body.get("stream") else None)
            self.started = False
            try:
                answer = profile.run(call, value, context)
            except GridError as error:
                self.answer(error.details.get("status", 503), {"error": {"message": str(error)}})
                return
            if not self.started:
                self.answer(200, answer)
            elif self.api == "openai":
                self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, piece: dict[str, Any]) -> None:
            if not self.started:
                self.started = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
            name = f"event: {piece['type']}\n" if self.api != "openai" else ""
            self.wfile.write(f"{name}data: {json.dumps(piece)}\n\n".encode())

    return ProfileHandler
