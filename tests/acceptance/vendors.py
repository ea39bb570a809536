"""Run the vendors of the three-machines test: answer every call of every seat, and record its cost.

`python -m tests.acceptance.vendors FILE SEATS` prints its URL and runs until its stdin ends. FILE is the
witness. It is independent of the grid, and has each call before the first byte of the answer is sent, so no
answered call is missing. SEATS is JSON with each seat's API format and price, from which the cost of a call
is computed like on an invoice.

The system text of a call names its job and stage, and orders for the vendor. The prompt is the stage's input.
The answer is a digest of stage and prompt, so a job's answer shows whether each stage got the right input.
Each call of one stage has a different number of tokens, so that an entry of the ledger can match only one
call.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.vendor_apis import ANSWERS, STREAMS, ProtocolModel, Used, refusal

MARK = "gq-stage "
TRIES = 16
"""The number of calls of one stage whose tokens surely differ."""

Outcome = Literal["paid", "refused", "cut"]


@dataclass(frozen=True)
class Price:
    """Dollars for a million tokens, as decimal text. An empty price is that of its direction."""

    tokens_in: str
    tokens_out: str
    cached: str = ""
    written: str = ""
    reasoning: str = ""

    def compute_cost(self, used: Used) -> int:
        """Return the cost in micro-dollars, rounded up."""
        plain = used.tokens_in - used.cached - used.written
        plain_out = used.tokens_out - used.reasoning
        cost = plain * Fraction(self.tokens_in) + plain_out * Fraction(self.tokens_out)
        cost += used.cached * Fraction(self.cached or self.tokens_in)
        cost += used.written * Fraction(self.written or self.tokens_in)
        cost += used.reasoning * Fraction(self.reasoning or self.tokens_out)
        return -int(-cost // 1)


@dataclass(frozen=True)
class CallContent:
    """The content of a call: its job and stage, orders for the vendor, and the prompt."""

    job: str
    stage: str
    orders: dict[str, Any]
    prompt: str


@dataclass(frozen=True)
class Call:
    """One line of the witness: the `number`-th call for this stage.

    `outcome` is `paid`, `refused` (costs nothing) or `cut` (paid, but interrupted). `at` is in ms of the
    monotonic clock. `micro` is None on a subscription.
    """

    seat: str
    job: str
    stage: str
    number: int
    outcome: Outcome
    at: int
    tokens_in: int = 0
    tokens_out: int = 0
    micro: int | None = None


def make_system_text(job: str, stage: str, orders: dict[str, Any]) -> str:
    """Return the system text of a stage."""
    return MARK + json.dumps([job, stage, orders], separators=(",", ":"))


def answer(stage: str, prompt: str) -> str:
    """Return the answer of every vendor."""
    return hashlib.sha256(f"{stage} {prompt}".encode()).hexdigest()[:16]


def read(path: Path) -> list[Call]:
    """Return the calls in the witness file."""
    if not path.exists():
        return []
    return [Call(**json.loads(line)) for line in path.read_text("ascii").splitlines()]


def draw_usage(api: ProtocolModel, content: CallContent, number: int) -> Used:
    """Return the tokens of the `number`-th call of a stage: pseudo-random, but different for each call."""
    chance = hashlib.sha256(f"{api} {content.job} {content.stage} {number}".encode()).digest()
    tokens_in = 200 + chance[0]
    tokens_out = TRIES * (1 + chance[1] % 8) + number % TRIES
    cached = chance[2] % 100
    written = chance[3] % 50 if api in ("anthropic", "claude") else 0
    reasoning = chance[4] % 10 if api in ("google", "openai", "codex") else 0
    return Used(tokens_in, tokens_out, cached, written, reasoning)


class Vendors(LocalServer):
    """All of them: a seat's endpoint is `<url>/<seat>`. `seats`: each seat's API format and price, None where
    it is a subscription.
    """

    def __init__(self, witness: Path, seats: dict[str, tuple[ProtocolModel, Price | None]]) -> None:
        super().__init__(_handler(self))
        self.seats = seats
        self._file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    def call(self, seat: str, content: CallContent) -> tuple[Call, Used]:
        """Decide the outcome of a call, and record it."""
        with self._lock:
            number = self._calls[content.job, content.stage]
            self._calls[content.job, content.stage] += 1
        api, price = self.seats[seat]
        used = draw_usage(api, content, number)
        call = Call(seat, content.job, content.stage, number, _outcome(content.orders, number),
                    time.monotonic_ns() // 1_000_000)  # fmt: skip
        if call.outcome != "refused":
            micro = None if price is None else price.compute_cost(used)
            call = replace(call, tokens_in=used.tokens_in, tokens_out=used.tokens_out, micro=micro)
        os.write(self._file, (json.dumps(asdict(call), separators=(",", ":")) + "\n").encode("ascii"))
        return call, used


def _handler(state: Vendors) -> type[Handler]:
    class Vendor(Handler):
        def do_POST(self) -> None:
            seat = self.path.split("/")[1]
            api = state.seats[seat][0]
            body = self.body()
            content = _parse_call(api, body)
            streamed = api in STREAMS and (body.get("stream") or ":stream" in self.path)
            rest = content.orders.get("ms", 0) / 1000
            time.sleep(0 if streamed else rest)
            call, used = state.call(seat, content)
            try:
                if call.outcome == "refused":
                    status = 503 if call.number < content.orders.get("away", 0) else 400
                    self.answer(status, refusal(api, status))
                    return
                text = answer(content.stage, content.prompt)
                if streamed:
                    self.stream(STREAMS[api](text, used), call.outcome, rest)
                    return
                data = json.dumps(ANSWERS[api](text, used, call.micro)).encode()
                if call.outcome == "cut":
                    self.cut(data)
                else:
                    self.answer(200, data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client has disconnected; the call is paid all the same

        def stream(self, events: Iterable[str], outcome: Outcome, rest: float) -> None:
            """Send the events of an answer over `rest` seconds; if it is cut, only the first half."""
            pending = list(events)
            self.begin_stream()
            for event in pending[: len(pending) // 2] if outcome == "cut" else pending:
                self.chunk(event.encode())
                time.sleep(rest / len(pending))
            if outcome == "cut":
                self.close_connection = True
            else:
                self.chunk(b"")

        def cut(self, data: bytes) -> None:
            """Send half of an answer."""
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True

    return Vendor


def _outcome(orders: dict[str, Any], number: int) -> Outcome:
    if "fail" in orders or number < max(orders.get("flaky", 0), orders.get("away", 0)):
        return "refused"
    return "cut" if number < orders.get("cut", 0) else "paid"


def _parse_call(api: ProtocolModel, body: dict[str, Any]) -> CallContent:
    match api:
        case "openai":
            system, prompt = (_text(message["content"]) for message in body["messages"])
        case "anthropic":
            system, prompt = _text(body["system"]), _text(body["messages"][-1]["content"])
        case "google":
            system = _text(body["systemInstruction"]["parts"])
            prompt = _text(body["contents"][-1]["parts"])
        case _:
            system, prompt = body["system"], body["prompt"]
    job, stage, orders = json.loads(system.removeprefix(MARK))
    return CallContent(job, stage, orders, prompt)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def main(file: str, seats: str) -> None:
    """Answer until the end of stdin."""
    endpoints = {name: (api, price and Price(**price)) for name, (api, price) in json.loads(seats).items()}
    with Vendors(Path(file), endpoints) as vendors:
        print(vendors.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
