"""The clients of a chaos run: threads that send requests to the gateways' model APIs, each once.

A client that cannot connect goes to the other gateway. Once a request is sent it does not try again, so each
has one end: an answer, an error of the grid, or a connection that broke.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from gridq.protocol.sse import SseParser
from tests.chaos.endpoints.calls import MAX_TOKENS, MODEL, make_answer, make_system_text

AGENT = "web"
"""The agent of all requests."""
STAGE = "request"
DEADLINE_SECONDS = 90.0
"""The deadline of each request."""
TIMEOUT_SECONDS = 120.0
"""The longest time without a byte that a client waits for."""
CONNECT_SECONDS = 60.0
"""How long a client looks for a gateway that can be reached."""
THREADS = 12


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `at`: seconds from the start of the run. `waits`: it waits for a seat if none is live."""

    id: str
    at: float
    api: Literal["chat", "messages"]
    stream: bool
    model: str = MODEL
    waits: bool = False

    @property
    def prompt(self) -> str:
        return f"prompt of {self.id}"

    @property
    def expected(self) -> str:
        """The right answer."""
        return make_answer(STAGE, self.prompt)


@dataclass(slots=True)
class Reply:
    """What became of a request. `begun`, `ended`: seconds of the monotonic clock. `status` 0: there was no
    head. `code`: the error code of the grid. `broken`: how the connection failed. `text`: what was answered,
    complete if there is neither a code nor a broken connection.
    """

    request: Request
    url: str = ""
    begun: float = 0.0
    ended: float = 0.0
    status: int = 0
    job: str = ""
    code: str = ""
    message: str = ""
    broken: str = ""
    text: str = ""
    finished: bool = False
    """The end of the answer was marked as its API does."""

    @property
    def answered(self) -> bool:
        return self.status == 200 and self.finished and not self.code and not self.broken


def make_requests(seed: int, count: int, seconds: float, models: Sequence[str] = (MODEL,)) -> list[Request]:
    """Return `count` requests over `seconds`, those for each of `models` in turn."""
    chance = random.Random(f"requests {seed}")
    return [
        Request(
            id=f"q{seed}-{number}",
            at=round(seconds * number / count, 3),
            api=chance.choice(["chat", "messages"]),
            stream=chance.random() < 0.5,
            model=models[number % len(models)],
            waits=chance.random() < 0.5,
        )
        for number in range(count)
    ]


class Clients:
    """Threads that send requests at their times to the gateways at `urls` in turn."""

    def __init__(self, requests: Iterable[Request], urls: Sequence[str], *, threads: int = THREADS) -> None:
        self.replies: list[Reply] = []
        self._due = [(each.at, number, each) for number, each in enumerate(requests)]
        heapq.heapify(self._due)
        self._urls = itertools.cycle(urls)
        self._lock = threading.Lock()
        self._open = 0
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        self._began = 0.0
        self._http = httpx.Client(
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=5.0),
            limits=httpx.Limits(max_connections=threads, max_keepalive_connections=threads),
            trust_env=False,
        )

    def start(self) -> None:
        """Start. The requests' times count from now."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> int:
        """Number of requests that are not answered yet."""
        with self._lock:
            return len(self._due) + self._open

    def stop(self) -> None:
        """Send no more requests; wait a little for those that are under way."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(5)
        self._http.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                request = None
                if self._due and self._due[0][0] <= time.monotonic() - self._began:
                    request = heapq.heappop(self._due)[2]
                    self._open += 1
                    url = next(self._urls)
                elif not self._due:
                    return
            if request is None:
                self._stopping.wait(0.05)
                continue
            reply = Reply(request, url, time.monotonic())
            try:
                self._connect(reply)
            except (httpx.HTTPError, OSError) as exc:
                reply.broken = f"{type(exc).__name__}: {exc}"
            except Exception as exc:  # an answer that cannot be read is a wrong one
                reply.code, reply.message = "unreadable", f"{type(exc).__name__}: {exc}"
            finally:
                reply.ended = time.monotonic()
                with self._lock:
                    self._open -= 1
                    self.replies.append(reply)

    def _connect(self, reply: Reply) -> None:
        """Send a request to the first gateway that can be reached."""
        until = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self._send(reply)
                return
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if time.monotonic() > until or self._stopping.wait(0.1):
                    raise
            with self._lock:
                reply.url = next(self._urls)

    def _send(self, reply: Reply) -> None:
        request = reply.request
        system = make_system_text(request.id, STAGE)
        user = {"role": "user", "content": request.prompt}
        body: dict[str, Any] = {"model": request.model, "max_tokens": MAX_TOKENS, "stream": request.stream}
        if request.api == "chat":
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "system", "content": system}, user]
        else:
            path = "/v1/messages"
            body |= {"system": system, "messages": [user]}
        headers = {"x-gridq-agent": AGENT, "x-gridq-deadline": f"{DEADLINE_SECONDS:g}"}
        if request.waits:
            headers["x-gridq-wait-for-seat"] = "1"
        with self._http.stream("POST", reply.url + path, json=body, headers=headers) as answer:
            reply.status = answer.status_code
            reply.job = answer.headers.get("x-gridq-job", "")
            if answer.status_code == 200 and request.stream:
                self._read_stream(reply, answer)
            else:
                self._read_whole(reply, json.loads(answer.read()), answer.headers.get("x-gridq-code", ""))

    def _read_whole(self, reply: Reply, value: dict[str, Any], code: str) -> None:
        if reply.status != 200:
            error = value.get("error", {})
            reply.code = code or str(error.get("gridq_code") or value.get("gridq_code") or "none")
            reply.message = str(error.get("message"))
        elif reply.request.api == "chat":
            (choice,) = value["choices"]
            reply.text, reply.finished = choice["message"]["content"], choice["finish_reason"] == "stop"
        else:
            reply.text = "".join(part["text"] for part in value["content"])
            reply.finished = value["stop_reason"] == "end_turn"

    def _read_stream(self, reply: Reply, answer: httpx.Response) -> None:
        parser = SseParser(1_000_000)
        for data in answer.iter_bytes():
            for event in parser.feed(data):
                if event.data == "[DONE]":
                    reply.finished = True
                elif event.data:
                    self._read_event(reply, json.loads(event.data))

    def _read_event(self, reply: Reply, event: dict[str, Any]) -> None:
        if event.get("error"):
            error = event["error"]
            reply.code = str(event.get("gridq_code") or error.get("gridq_code") or "none")
            reply.message = str(error.get("message"))
        elif reply.request.api == "chat":
            for choice in event.get("choices", ()):
                reply.text += choice["delta"].get("content") or ""
        elif event["type"] == "content_block_delta":
            reply.text += event["delta"].get("text", "")
        elif event["type"] == "message_stop":
            reply.finished = True


@dataclass(slots=True)
class Summary:
    """The replies in figures."""

    answered: int = 0
    codes: dict[str, int] = field(default_factory=dict)


def summarise(replies: Iterable[Reply]) -> Summary:
    """Count the replies: those answered, and the others by their code."""
    summary = Summary()
    for reply in replies:
        if reply.answered:
            summary.answered += 1
        else:
            name = reply.code or reply.broken.partition(":")[0] or "unfinished"
            summary.codes[name] = summary.codes.get(name, 0) + 1
    return summary
