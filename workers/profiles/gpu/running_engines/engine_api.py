"""HTTP calls to a running engine's own API: small JSON answers within a deadline.

Requests of models go through `workers.model_apis`. This module is for everything else: what the engine is,
which models it has, and to load or unload one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from gridq.protocol.models import Json
from workers.model_apis.http.connections import Call, CallDropped, Connections, NotConnected

MAX_ANSWER_BYTES = 8 * 1024 * 1024
ANSWER_SECONDS = 2.0
"""Time for an answer, unless an order needs longer."""

OK = 200


class EngineUnreachable(Exception):
    """Nothing listens at the engine's address."""


class EngineFault(Exception):
    """The engine answered with an error, not in time, or with something unexpected."""


@dataclass(frozen=True)
class Reply:
    """An answer: the HTTP status, the JSON (None if it is none) and the headers, with names in lower case."""

    status: int
    value: Json
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Json]:
        """The object that it answered; empty if it reported an error or sent something else."""
        return self.value if self.status == OK and isinstance(self.value, dict) else {}


class EngineApi:
    """The own API of the engine at `url`, its root without `/v1`. Safe to use from several threads."""

    def __init__(self, url: str, get_key: Callable[[], str | None] = lambda: None) -> None:
        self.url = url
        self._get_key = get_key
        self._connections = Connections(url, {}, ANSWER_SECONDS, use_proxy=False)

    def get(self, path: str, seconds: float = ANSWER_SECONDS, **query: str) -> Reply:
        """Return the answer, of any status. Raises EngineUnreachable and EngineFault."""
        words = "&".join(f"{name}={quote(text, safe='')}" for name, text in query.items())
        return self._request("GET", f"{path}?{words}" if words else path, None, seconds)

    def post(self, path: str, body: Json, seconds: float = ANSWER_SECONDS) -> Reply:
        """Send an order and return its answer, of any status. Raises EngineUnreachable and EngineFault."""
        return self._request("POST", path, json.dumps(body).encode(), seconds)

    def order(self, path: str, body: Json, seconds: float) -> dict[str, Json]:
        """Send an order and return what it answered.

        Raises EngineFault with the engine's reason if it failed, and EngineUnreachable.
        """
        reply = self.post(path, body, seconds)
        if not 200 <= reply.status < 300 or (isinstance(reply.value, dict) and reply.value.get("error")):
            raise EngineFault(f"HTTP {reply.status}: {_find_reason(reply.value)}")
        return reply.value if isinstance(reply.value, dict) else {}

    def close(self) -> None:
        """Drop the running calls."""
        self._connections.close()

    def _request(self, method: str, path: str, body: bytes | None, seconds: float) -> Reply:
        deadline = time.monotonic() + seconds
        key = self._get_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        call = Call(lambda: deadline, seconds)
        try:
            with self._connections.request(method, path.lstrip("/"), body, call, headers) as response:
                raw = response.read(MAX_ANSWER_BYTES + 1)
                found = {name.lower(): text for name, text in response.getheaders()}
        except NotConnected as exc:
            raise EngineUnreachable(str(exc)) from None
        except TimeoutError:
            raise EngineFault(f"it did not answer within {seconds:g} s") from None
        except CallDropped:
            raise EngineFault("the call was ended") from None
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise EngineFault(f"{type(exc).__name__}: {exc}") from None
        return Reply(response.status, _parse(raw), found)


def _parse(raw: bytes) -> Json:
    try:
        return json.loads(raw) if len(raw) <= MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        return None


def _find_reason(value: Json) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message") or error
    return str(error)[:300] if error else "no reason given"
