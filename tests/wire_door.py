"""HTTP before one profile, so that the vendors' own clients can ask its `llm:wire` without a grid."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gridq.errors import GridError
from gridq.profiles import Profile, StageContext
from gridq.protocol import Effect, StageCall


class WireDoor:
    """`with WireDoor(profile) as door`; `door.url` is where the clients' paths begin, without `/v1`."""

    def __init__(self, profile: Profile) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(profile))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WireDoor:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _handler(profile: Profile) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            path = self.path.removeprefix("/v1/").partition("?")[0]
            self.wire = "anthropic" if path == "messages" else "openai"
            needs = {"embeddings": True} if path == "embeddings" else {}
            call = StageCall(
                id="s",
                name="llm_wire",
                path="$",
                implementation="llm:wire",
                effects=[Effect(effect="Llm", model=body["model"], **needs)],
            )
            value = {"wire": self.wire, "path": path, "body": body, "model": body["model"]}
            context = StageContext(emit=self._event if body.get("stream") else None)
            self.begun = False
            try:
                answer = profile.run(call, value, context)
            except GridError as error:
                self._json(error.details.get("status", 503), {"error": {"message": str(error)}})
                return
            if not self.begun:
                self._json(200, answer)
            elif self.wire == "openai":
                self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, piece: dict[str, Any]) -> None:
            if not self.begun:
                self.begun = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
            name = f"event: {piece['type']}\n" if self.wire == "anthropic" else ""
            self.wfile.write(f"{name}data: {json.dumps(piece)}\n\n".encode())

        def _json(self, status: int, value: Any) -> None:
            raw = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    return Handler
