"""Budgets of a seat: concurrent slots reserve the estimates of their stages and never overdraw, and waiting
jobs name the budget.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from gridq import stages
from gridq.cli.commands.explain import explain_graph
from gridq.client import BrokerClient
from gridq.errors import DeadlineExceeded, DeadlineUnreachable, QueueTimeout, WaitTimeout
from gridq.limits.ledger_verification import verify
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.profiles.profile import StageContext
from gridq.protocol.meters import Meter, UsageEstimate
from gridq.protocol.models import Json, Limit, SeatTerms, StageCall
from gridq.seats.registry import LiveSeat, read_live_seats
from gridq.submission.admission import Admission
from gridq.submission.queue_snapshot import StageRequest
from gridq.submission.start_check import LiveForecast
from gridq.submission.start_forecast import StartForecast
from tests.builders import stage
from tests.conftest import GridEnv
from tests.fakes.openai_server import OpenAIServer
from tests.local_grid import LocalGrid
from tests.waiting import wait_for
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability

MODEL = {"name": "held", "families": ["talk", "meta/talk"], "price_in": 1.0, "price_out": 10.0}
QUEUES = ("llm:held", "llm:talk", "llm:any")
ASK = {"root": stage("llm_complete", prompt="one two three", max_tokens=100)}
TWICE = {"root": {"op": "Sequential", "stages": [ASK["root"], ASK["root"]]}}


class Endpoint:
    """Runs stages of a seat at a fake endpoint."""

    def __init__(self, url: str) -> None:
        self.profile = LlmProfile()
        self.capability = LlmCapability.model_validate({"host": "h", "models": [MODEL]})
        self.profile.open(
            self.capability, {"name": "main", "url": url, "models": [MODEL], "allow_loopback": True}
        )

    def __call__(self, call: StageCall, value: Json, context: StageContext) -> Json:
        if call.implementation.startswith("builtin:"):
            return stages.run_builtin(call, value, context)
        return self.profile.run(call, value, context)

    def terms(self, *limits: Limit, owner: str = "") -> SeatTerms:
        families = {queue: tuple(found) for queue, found in self.profile.families(self.capability).items()}
        prices = self.profile.prices(self.capability)
        return SeatTerms(limits=limits, owner=owner, families=families, prices=prices)


@dataclass(frozen=True)
class Desk:
    """A grid of one seat with eight slots, whose endpoint withholds its answers."""

    grid: LocalGrid
    api: OpenAIServer
    endpoint: Endpoint

    def may(self, *limits: Limit, owner: str = "") -> None:
        session = self.grid.sessions["m.llm"]
        session.terms = self.endpoint.terms(*limits, owner=owner)
        session.register()

    def ask(self, count: int, graph: Json = ASK, **options: float) -> list[str]:
        return [self.grid.client.submit(graph, {}, agent="ann", stream=True, **options) for _ in range(count)]

    @property
    def seat(self) -> LiveSeat:
        (seat,) = read_live_seats(self.grid.scripts.client, self.grid.scripts.keys)
        return seat

    def meter(self, account: str, name: str) -> Meter:
        return next(each for each in self.seat.meters if (each.account, each.name) == (account, name))


@pytest.fixture
def desk(grid_env: GridEnv) -> Iterator[Desk]:
    config = grid_env.settings.model_copy(update={"sweep_ms": 50, "profiles": ("llm",)})
    with OpenAIServer() as api:
        endpoint = Endpoint(api.url)
        with (
            closing(endpoint.profile),
            LocalGrid(grid_env.client, config, {"m.llm": QUEUES}, concurrency=8, runner=endpoint) as grid,
        ):
            grid.client._admission = Admission(grid.scripts, config, {"llm": endpoint.profile})
            yield Desk(grid, api, endpoint)
            api.go_on.set()
            found = verify(grid.scripts.client, grid.scripts.keys)
            assert (found.differences, found.notes) == ((), ())


def explain_steps(desk: Desk) -> list[dict[str, Any]]:
    """Return the steps of a job, as `gridq explain` shows them."""
    config = desk.grid.config
    with BrokerClient(config.broker_url.get_secret_value(), config=config) as client:
        return list(explain_graph(client, json.dumps(ASK), config)["steps"])


def test_slots_side_by_side_never_overdraw(desk: Desk) -> None:
    """Each stage reserves a hundred tokens of answer, $0.001, and its prompt; the budget fits three."""
    desk.may(Limit(resource="money", window="day", amount=3_100))
    jobs = desk.ask(8)
    wait_for(lambda: desk.seat.busy == 3)
    [step] = explain_steps(desk)
    assert step["seats"] == []
    assert "m.llm has $0.00" in step["no_seat_reason"]
    assert step["tokens"] > 100
    with pytest.raises(WaitTimeout):
        desk.grid.client.result(jobs[-1], 0.5)
    assert desk.seat.busy == 3
    held = desk.meter("own", "money/day")
    assert held.used == 0
    assert 3_000 < held.reserved <= 3_100
    waits = desk.grid.client.waits_for(jobs[-1])
    assert "a budget has too little left: m.llm has $0.00" in waits
    assert "left of $0.0031 a day" in waits
    desk.api.go_on.set()
    wait_for(lambda: desk.meter("own", "money/day").remaining < 0 or not desk.seat.busy)
    assert desk.meter("own", "money/day").used <= 3_100
    for job in jobs[:3]:
        assert desk.grid.client.result(job, 20)


@pytest.mark.parametrize(
    ("account", "file", "reason"),
    [
        ("o:alice", '[owners.alice]\nbudgets = [{requests = 2, per = "5h"}]', "owner alice has 0 requests"),
        ("f:talk", '[families.talk]\nbudgets = [{requests = 2, per = "5h"}]', "family talk has 0 requests"),
        (
            "f:meta%2Ftalk",
            '[families."Meta/Talk"]\nbudgets = [{requests = 2, per = "5h"}]',
            "family meta/talk has 0 requests",
        ),
        ("g", '[grid]\nbudgets = [{requests = 2, per = "5h"}]', "the whole grid has 0 requests"),
    ],
)
def test_a_waiting_job_names_the_shared_budget(desk: Desk, account: str, file: str, reason: str) -> None:
    put_in_force(desk.grid.scripts, parse(file, "q.toml"), "a test")
    desk.may(owner="alice")
    late, hurried = desk.ask(1, TWICE, queue_timeout=3)[0], desk.ask(1, TWICE, deadline=5)[0]
    wait_for(lambda: desk.seat.busy == 2)
    desk.api.go_on.set()
    wait_for(lambda: desk.meter(account, "requests/5h").used == 2)
    wait_for(lambda: f"{reason} left of 2 requests in 5h, until " in desk.grid.client.waits_for(late))
    read_again(desk.grid.client.admission.forecast)
    with pytest.raises(DeadlineUnreachable) as refused:  # it is refused at once
        desk.ask(1, queue_timeout=2_000)
    assert f"{reason} left of 2 requests in 5h, until " in str(refused.value.reason)
    assert refused.value.details["bottleneck"] == refused.value.reason
    assert str(refused.value.fix).startswith("raise a budget of its seats, or raise the queue_timeout to 1")
    with pytest.raises(QueueTimeout) as caught:
        desk.grid.client.result(late, 20)
    assert f"do not suffice: {reason} left of 2 requests in 5h, until " in str(caught.value.reason)
    assert datetime.fromisoformat(caught.value.details["retry_at"]) > datetime.now(UTC)
    with pytest.raises(DeadlineExceeded) as ended:
        desk.grid.client.result(hurried, 20)
    assert f"do not suffice: {reason} left of 2 requests in 5h, until " in str(ended.value.reason)


def test_tokens_a_minute_are_reserved_before_they_are_used(desk: Desk) -> None:
    desk.may(Limit(resource="tokens", window="1m", amount=250))
    desk.ask(8)
    wait_for(lambda: desk.seat.busy == 2)  # a hundred of answer each, and the prompt
    desk.api.go_on.set()
    wait_for(lambda: not desk.seat.busy)
    assert desk.meter("own", "tokens/1m").reserved == 0


def test_the_forecast_agrees_with_the_claim(desk: Desk) -> None:
    """The budget fits three such answers, or one that is as long as the three."""
    look = desk.grid.client.admission.forecast

    def forecast(tokens: int) -> StartForecast:
        expects = UsageEstimate(4, tokens)
        wait_for(lambda: look.forecast(StageRequest("llm:any", "ann", expects=expects)).position is not None)
        return look.forecast(StageRequest("llm:any", "ann", expects=expects))

    desk.may(Limit(resource="money", window="5h", amount=3_100))
    jobs = desk.ask(2)
    wait_for(lambda: desk.seat.busy == 2)
    read_again(look)
    assert forecast(100).is_now
    held = forecast(200)
    assert (held.is_now, held.resets_in) == (False, 0.0)  # one of the two may use less
    assert "m.llm has $0.00" in held.bottleneck
    assert desk.ask(1, queue_timeout=30)
    desk.api.go_on.set()
    for job in jobs:
        assert desk.grid.client.result(job, 20)
    wait_for(lambda: not desk.seat.busy)
    read_again(look)
    left = desk.meter("own", "money/5h").remaining
    assert forecast(left // 10 - 1).is_now
    dry = forecast(left // 10 + 1)
    assert 0 < dry.resets_in <= 5 * 3600
    assert "m.llm has $0.00" in dry.bottleneck
    graph = {"root": stage("llm_complete", prompt="one", max_tokens=left // 10 + 1)}
    with pytest.raises(DeadlineUnreachable) as caught:
        desk.ask(1, graph, deadline=0.5 * dry.resets_in)
    assert caught.value.reason == caught.value.details["bottleneck"]
    assert "m.llm has $0.00" in str(caught.value.reason)


def read_again(look: LiveForecast) -> None:
    """Let the forecast read the grid again."""
    look._cache.forget()
