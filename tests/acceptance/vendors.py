"""The vendors of the closing test: a process of its own that answers every call of every seat, and writes
down what it cost.

`python -m tests.acceptance.vendors FILE SEATS` prints where it answers, until its stdin ends. FILE is the
witness: it owes nothing to the grid, and a call stands in it before the first byte of its answer is sent, so
whoever has the answer has been seen. SEATS is JSON: each seat's API format and price. What a call costs is worked
out here, by the price table below, as an invoice would be.

A call says in its system text which stage of which job it is for, and what the vendor shall do; what was
asked beside that is in its prompt. The answer is a digest of both, so the answer of a job tells whether each
of its stages got what it should. How many tokens a call has is different for each call of one stage: so each
entry of the ledger can be of one call only.
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

from tests.acceptance.vendor_apis import ANSWERS, STREAMS, ProtocolModel, Used, refusal
from tests.fakes.http_server import Handler, LocalServer

MARK = "gq-stage "
TRIES = 16
"""Calls of one stage that surely differ in their tokens."""

Outcome = Literal["paid", "refused", "cut"]


@dataclass(frozen=True)
class Price:
    """Dollars a million tokens, as decimal texts; what is empty costs what its direction does."""

    tokens_in: str
    tokens_out: str
    cached: str = ""
    written: str = ""
    reasoning: str = ""

    def of(self, used: Used) -> int:
        """Micro-dollars, rounded up."""
        plain = used.tokens_in - used.cached - used.written
        said = used.tokens_out - used.reasoning
        cost = plain * Fraction(self.tokens_in) + said * Fraction(self.tokens_out)
        cost += used.cached * Fraction(self.cached or self.tokens_in)
        cost += used.written * Fraction(self.written or self.tokens_in)
        cost += used.reasoning * Fraction(self.reasoning or self.tokens_out)
        return -int(-cost // 1)


@dataclass(frozen=True)
class Asked:
    """What a call says of itself."""

    job: str
    stage: str
    orders: dict[str, Any]
    prompt: str


@dataclass(frozen=True)
class Call:
    """One line of the witness: the `number`-th call that came for this stage. `outcome`: `paid`, or
    `refused`, which costs nothing; `cut`: paid, and broken off before the answer was whole. `at` in monotonic
    ms; `micro` is None on a subscription.
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


def marked(job: str, stage: str, orders: dict[str, Any]) -> str:
    """The system text of a stage."""
    return MARK + json.dumps([job, stage, orders], separators=(",", ":"))


def answer(stage: str, prompt: str) -> str:
    """What every vendor answers."""
    return hashlib.sha256(f"{stage} {prompt}".encode()).hexdigest()[:16]


def read(path: Path) -> list[Call]:
    """The witness's file."""
    if not path.exists():
        return []
    return [Call(**json.loads(line)) for line in path.read_text("ascii").splitlines()]


def usage_of(api: ProtocolModel, asked: Asked, number: int) -> Used:
    """The tokens of the `number`-th call of a stage: by chance, but each call of the stage has others."""
    chance = hashlib.sha256(f"{api} {asked.job} {asked.stage} {number}".encode()).digest()
    tokens_in = 200 + chance[0]
    tokens_out = TRIES * (1 + chance[1] % 8) + number % TRIES
    cached = chance[2] % 100
    written = chance[3] % 50 if api in ("anthropic", "claude") else 0
    reasoning = chance[4] % 10 if api in ("google", "openai", "codex") else 0
    return Used(tokens_in, tokens_out, cached, written, reasoning)


class Vendors(LocalServer):
    """All of them: a seat's endpoint is `<url>/<seat>`. `seats`: each seat's API format and price, None where it is
    a subscription.
    """

    def __init__(self, witness: Path, seats: dict[str, tuple[ProtocolModel, Price | None]]) -> None:
        super().__init__(_handler(self))
        self.seats = seats
        self._file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    def call(self, seat: str, asked: Asked) -> tuple[Call, Used]:
        """Decide what comes of a call, and write it down."""
        with self._lock:
            number = self._calls[asked.job, asked.stage]
            self._calls[asked.job, asked.stage] += 1
        api, price = self.seats[seat]
        used = usage_of(api, asked, number)
        call = Call(seat, asked.job, asked.stage, number, _outcome(asked.orders, number),
                    time.monotonic_ns() // 1_000_000)  # fmt: skip
        if call.outcome != "refused":
            micro = None if price is None else price.of(used)
            call = replace(call, tokens_in=used.tokens_in, tokens_out=used.tokens_out, micro=micro)
        os.write(self._file, (json.dumps(asdict(call), separators=(",", ":")) + "\n").encode("ascii"))
        return call, used


def _handler(state: Vendors) -> type[Handler]:
    class Vendor(Handler):
        def do_POST(self) -> None:
            seat = self.path.split("/")[1]
            api = state.seats[seat][0]
            body = self.body()
            asked = _asked(api, body)
            streamed = api in STREAMS and (body.get("stream") or ":stream" in self.path)
            rest = asked.orders.get("ms", 0) / 1000
            time.sleep(0 if streamed else rest)
            call, used = state.call(seat, asked)
            try:
                if call.outcome == "refused":
                    status = 503 if call.number < asked.orders.get("away", 0) else 400
                    self.answer(status, refusal(api, status))
                    return
                text = answer(asked.stage, asked.prompt)
                if streamed:
                    self.stream(STREAMS[api](text, used), call.outcome, rest)
                    return
                said = json.dumps(ANSWERS[api](text, used, call.micro)).encode()
                if call.outcome == "cut":
                    self.cut(said)
                else:
                    self.answer(200, said)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # nobody waits for it any more: it is paid all the same

        def stream(self, events: Iterable[str], outcome: Outcome, rest: float) -> None:
            """The events of an answer over `rest` seconds, up to the middle where it is cut."""
            told = list(events)
            self.begin_stream()
            for event in told[: len(told) // 2] if outcome == "cut" else told:
                self.chunk(event.encode())
                time.sleep(rest / len(told))
            if outcome == "cut":
                self.close_connection = True
            else:
                self.chunk(b"")

        def cut(self, said: bytes) -> None:
            """Half of an answer."""
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said[: len(said) // 2])
            self.close_connection = True

    return Vendor


def _outcome(orders: dict[str, Any], number: int) -> Outcome:
    if "fail" in orders or number < max(orders.get("flaky", 0), orders.get("away", 0)):
        return "refused"
    return "cut" if number < orders.get("cut", 0) else "paid"


def _asked(api: ProtocolModel, body: dict[str, Any]) -> Asked:
    match api:
        case "openai":
            system, prompt = (_text(said["content"]) for said in body["messages"])
        case "anthropic":
            system, prompt = _text(body["system"]), _text(body["messages"][-1]["content"])
        case "google":
            system = _text(body["systemInstruction"]["parts"])
            prompt = _text(body["contents"][-1]["parts"])
        case _:
            system, prompt = body["system"], body["prompt"]
    job, stage, orders = json.loads(system.removeprefix(MARK))
    return Asked(job, stage, orders, prompt)


def _text(said: Any) -> str:
    return said if isinstance(said, str) else "".join(part["text"] for part in said)


def main(file: str, seats: str) -> None:
    """Answer until nobody holds this process's stdin any more."""
    told = {name: (api, price and Price(**price)) for name, (api, price) in json.loads(seats).items()}
    with Vendors(Path(file), told) as vendors:
        print(vendors.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
