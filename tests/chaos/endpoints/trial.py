"""Two healthy seats of three: no request fails for the third, however it fails.

`python -m tests.chaos.endpoints.trial --requests 10000` runs a grid with two healthy model seats, and one
more for each way to fail. Each model is served by the two and by one of the others, so each request has two
healthy seats of three. The clients send more at once than the two have slots for: what is idle is what fails.
A small run is a test (`test_two_of_three.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridq.views.audit import Check
from tests.chaos.endpoints.audit import EndpointAudit, audit_endpoints
from tests.chaos.endpoints.calls import read_calls
from tests.chaos.endpoints.clients import Clients, Reply, make_requests
from tests.chaos.endpoints.server import MODES
from tests.chaos.grid import ChaosGrid
from tests.chaos.layout import Layout, Machine, format_model_seat
from tests.fakes.vendor_apis import ProtocolModel

FAILURES = {
    "dead": ("dead", ""),
    **{f"status-{status}": ("refusing", status) for status in MODES["refusing"]},
    "hangs": ("half-open", "silent"),
    **{f"cut-{how}": ("half-open", how) for how in ("head", "body", "stream", "reset")},
    "flapping": ("flapping", "503"),
}
"""How the third seat fails: name → mode and how of its endpoint."""

CUTTING = frozenset({"cut-body", "cut-stream"})
"""Failures after the answer has begun: a stream that has been passed on cannot go on elsewhere."""

CONCURRENCY = 4
ANSWER_SECONDS = 0.3
THREADS = 128
HEALTHY: dict[str, ProtocolModel] = {"m1.model": "openai", "m2.model": "anthropic"}


@dataclass
class Trial:
    """What became of the requests, and the calls that each failing endpoint got."""

    replies: list[Reply]
    seconds: float
    audit: EndpointAudit
    calls: Counter[str]

    def list_failed(self) -> dict[str, list[Reply]]:
        """Return the requests that failed, by the model, without streams that were cut after they began."""
        failed: dict[str, list[Reply]] = {}
        for reply in self.replies:
            if not reply.answered and not is_cut_stream(reply):
                failed.setdefault(reply.request.model, []).append(reply)
        return failed

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        longest = sorted(reply.ended - reply.begun for reply in self.replies)
        return {
            "requests": len(self.replies),
            "seconds": round(self.seconds, 1),
            "answered": sum(reply.answered for reply in self.replies),
            "streams_cut": sum(is_cut_stream(reply) for reply in self.replies),
            "failed": {
                name: dict(Counter(f"{each.status} {each.code or each.broken}" for each in replies))
                for name, replies in sorted(self.list_failed().items())
            },
            "seconds_p50": round(longest[len(longest) // 2], 2),
            "seconds_p99": round(longest[int(len(longest) * 0.99)], 2),
            "seconds_max": round(longest[-1], 2),
            "calls": dict(sorted(self.calls.items())),
            "broken": [
                {"rule": check.rule, "breaches": list(check.breaches[:10])}
                for check in self.audit.checks
                if check.breaches
            ],
        }


def is_cut_stream(reply: Reply) -> bool:
    """Return whether a reply is a stream that its endpoint broke off after a part had been sent."""
    return (
        reply.request.model in CUTTING
        and reply.request.stream
        and reply.code == "stage.stream_cut"
        and reply.request.expected.startswith(reply.text)
    )


def make_layout(failures: Sequence[str]) -> Layout:
    """Return two machines with a healthy model seat each, and one with a seat for each failure."""
    machines = [
        Machine(
            name.partition(".")[0], {"model": "model"}, format_model_seat(name, api, failures, CONCURRENCY)
        )
        for name, api in HEALTHY.items()
    ]
    terms = "\n".join(format_model_seat(f"m3.{name}", "openai", (name,), CONCURRENCY) for name in failures)
    machines.append(Machine("m3", dict.fromkeys(failures, "failing"), terms))
    endpoints: dict[str, ProtocolModel] = {f"m3.{name}": "openai" for name in failures}
    return Layout(
        machines=tuple(machines),
        profiles=("llm",),
        endpoints={**endpoints, **HEALTHY},
        answer_seconds=ANSWER_SECONDS,
    )


def run_trial(
    requests: int,
    folder: Path,
    *,
    failures: Sequence[str] = tuple(FAILURES),
    seed: int = 1,
    within: float = 600.0,
    report: Callable[[str], None] = lambda text: None,
) -> Trial:
    """Send `requests` requests, those for each failure in turn, and return once all have ended or `within`
    seconds are over.
    """
    grid = ChaosGrid(folder, layout=make_layout(failures), routers=1, report=report)
    try:
        grid.start()
        assert grid.endpoints is not None
        for name in failures:
            grid.endpoints.set_mode(f"m3.{name}", *FAILURES[name])
        clients = Clients(make_requests(seed, requests, 0.0, failures), grid.urls.split(","), threads=THREADS)
        began = told = time.monotonic()
        clients.start()
        while clients.busy and time.monotonic() < began + within:
            time.sleep(0.1)
            if time.monotonic() > told + 10:
                told = time.monotonic()
                report(f"{told - began:7.1f} s  {len(clients.replies)} of {requests} requests ended")
        seconds = time.monotonic() - began
        clients.stop()
        audit = audit_endpoints(grid, {}, clients.replies)
        if clients.busy:
            audit.checks.append(Check("every request ends", (f"{clients.busy} requests have not ended",)))
        calls = Counter(call.endpoint for call in read_calls(grid.calls).values())
        return Trial(clients.replies, seconds, audit, calls)
    finally:
        grid.stop()


def main(arguments: list[str]) -> int:
    """Run the trial and print its figures as JSON. Return 1 if a request failed or a rule is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.endpoints.trial", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--failures", default="all", help="all, or some of " + ", ".join(FAILURES))
    parser.add_argument("--within", type=float, default=3600.0, help="the longest duration, in seconds")
    options = parser.parse_args(arguments)
    failures = tuple(FAILURES) if options.failures == "all" else tuple(options.failures.split(","))
    if unknown := set(failures) - FAILURES.keys():
        parser.error(f"there are no failures {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="gridq-trial-") as folder:
        trial = run_trial(
            options.requests,
            Path(folder),
            failures=failures,
            seed=options.seed,
            within=options.within,
            report=lambda text: print(text, file=sys.stderr),
        )
    print(json.dumps(trial.to_json(), indent=1))
    return int(bool(trial.list_failed()) or any(check.breaches for check in trial.audit.checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
