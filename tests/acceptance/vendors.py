"""The vendors of the closing test: a process of its own that answers every call of every seat, and writes
down what it cost.

`python -m tests.acceptance.vendors FILE SEATS` prints where it answers, until its stdin ends. FILE is the
witness: it owes nothing to the grid, and a call stands in it before the first byte of its answer is sent, so
whoever has the answer has been seen. SEATS is JSON: each seat's wire and price. What a call costs is worked
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
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from tests.local_http import Handler, LocalServer

MARK = "gq-stage "
TRIES = 16
"""Calls of one stage that surely differ in their tokens."""

Outcome = Literal["paid", "refused", "cut"]
Wire = Literal["openai", "anthropic", "google", "claude", "codex"]


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
class Used:
    """The tokens of one call; `cached` and `written` are among those in, `reasoning` among those out."""

    tokens_in: int
    tokens_out: int
    cached: int = 0
    written: int = 0
    reasoning: int = 0


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


def usage_of(wire: Wire, asked: Asked, number: int) -> Used:
    """The tokens of the `number`-th call of a stage: by chance, but each call of the stage has others."""
    chance = hashlib.sha256(f"{wire} {asked.job} {asked.stage} {number}".encode()).digest()
    tokens_in = 200 + chance[0]
    tokens_out = TRIES * (1 + chance[1] % 8) + number % TRIES
    cached = chance[2] % 100
    written = chance[3] % 50 if wire in ("anthropic", "claude") else 0
    reasoning = chance[4] % 10 if wire in ("google", "openai", "codex") else 0
    return Used(tokens_in, tokens_out, cached, written, reasoning)


class Vendors(LocalServer):
    """All of them: a seat's endpoint is `<url>/<seat>`. `seats`: each seat's wire and price, None where it is
    a subscription.
    """

    def __init__(self, witness: Path, seats: dict[str, tuple[Wire, Price | None]]) -> None:
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
        wire, price = self.seats[seat]
        used = usage_of(wire, asked, number)
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
            wire = state.seats[seat][0]
            asked = _asked(wire, self.body())
            time.sleep(asked.orders.get("ms", 0) / 1000)
            call, used = state.call(seat, asked)
            try:
                if call.outcome == "refused":
                    status = 503 if call.number < asked.orders.get("away", 0) else 400
                    self.answer(status, _refusal(wire, status))
                    return
                text = answer(asked.stage, asked.prompt)
                said = json.dumps(_ANSWERS[wire](text, used, call.micro)).encode()
                if call.outcome == "cut":
                    self.cut(said)
                else:
                    self.answer(200, said)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # nobody waits for it any more: it is paid all the same

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


def _asked(wire: Wire, body: dict[str, Any]) -> Asked:
    match wire:
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


def _refusal(wire: Wire, status: int) -> dict[str, Any]:
    words = f"refused with {status}"
    if wire == "anthropic":
        kind = "invalid_request_error" if status == 400 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": words}}
    if wire == "google":
        kind = "INVALID_ARGUMENT" if status == 400 else "UNAVAILABLE"
        return {"error": {"code": status, "message": words, "status": kind}}
    return {"error": {"message": words, "code": None}}


def _openai(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "prompt_tokens": used.tokens_in,
        "completion_tokens": used.tokens_out,
        "total_tokens": used.tokens_in + used.tokens_out,
        "prompt_tokens_details": {"cached_tokens": used.cached},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning},
    }
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764288000,
        "model": "the-real-name",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": usage,
    }


def _messages(used: Used) -> dict[str, int]:
    return {
        "input_tokens": used.tokens_in - used.cached - used.written,
        "cache_read_input_tokens": used.cached,
        "cache_creation_input_tokens": used.written,
        "output_tokens": used.tokens_out,
    }


def _anthropic(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "the-real-name",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _messages(used),
    }


def _google(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "promptTokenCount": used.tokens_in,
        "cachedContentTokenCount": used.cached,
        "candidatesTokenCount": used.tokens_out - used.reasoning,
        "thoughtsTokenCount": used.reasoning,
        "totalTokenCount": used.tokens_in + used.tokens_out,
    }
    content = {"parts": [{"text": text}], "role": "model"}
    candidate = {"content": content, "index": 0, "finishReason": "STOP"}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "1", "responseId": "r_1"}


def _claude(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    result = {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": "s-1"}
    cost = {"total_cost_usd": (micro or 0) / 1_000_000, "usage": _messages(used)}
    return {"lines": [result | cost | {"stop_reason": "end_turn"}]}


def _codex(text: str, used: Used, micro: int | None) -> dict[str, Any]:
    usage = {
        "input_tokens": used.tokens_in,
        "cached_input_tokens": used.cached,
        "output_tokens": used.tokens_out,
        "reasoning_output_tokens": used.reasoning,
    }
    said = {"id": "item_1", "type": "agent_message", "text": text}
    return {"lines": [{"type": "item.completed", "item": said}, {"type": "turn.completed", "usage": usage}]}


_ANSWERS = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google": _google,
    "claude": _claude,
    "codex": _codex,
}


def main(file: str, seats: str) -> None:
    """Answer until nobody holds this process's stdin any more."""
    told = {name: (wire, price and Price(**price)) for name, (wire, price) in json.loads(seats).items()}
    with Vendors(Path(file), told) as vendors:
        print(vendors.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
