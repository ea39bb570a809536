"""The metrics of a gateway, as Prometheus' own parser reads them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from gridq.gateway.metrics.catalogue import METRICS
from gridq.gateway.metrics.collector import CACHE_SECONDS
from gridq.limits import api_keys
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import lift, put_in_force, write_calendar
from gridq.profiles.profile import Profile
from gridq.protocol.models import Advertisement
from tests.builders import seq, stage
from tests.fakes.programs import FakePrograms
from tests.gateways import Benches, Gateway, benches
from tests.local_grid import advertised
from tests.waiting import wait_for
from workers.profiles.gpu import GpuProfile
from workers.profiles.llm import LlmProfile
from workers.supervisor.embedded_server import EmbeddedServer


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    with benches(server, tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def gateway(place: Benches) -> Gateway:
    return place.gateway


def read(gateway: Gateway, accept: str = "") -> dict[str, dict[tuple[str, ...], float]]:
    """Return each sample by its name and the values of its labels."""
    reply = gateway.http.get("/metrics", headers={"accept": accept})
    assert reply.status_code == 200, reply.text
    parse: Any = read_openmetrics if "openmetrics" in reply.headers["content-type"] else read_text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse(reply.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def run(gateway: Gateway, graph: Any, **options: Any) -> str:
    job = gateway.post("/jobs", {"graph": graph, "input": {}, **options}, 202)["job"]
    gateway.get(f"/jobs/{job}?wait=30")
    return str(job)


def test_the_metrics_are_those_of_the_catalogue(gateway: Gateway) -> None:
    run(gateway, {"root": stage("bench_spend", micro_dollars=1, tokens_in=1)})
    text = gateway.http.get("/metrics").text
    families = {family.name: family for family in read_text(text)}
    assert set(families) == set(METRICS)
    for name, measure in METRICS.items():
        assert (families[name].type, families[name].documentation) == (measure.kind, measure.help), name
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(measure.labels), name


def test_ended_jobs_are_counted(gateway: Gateway) -> None:
    before = read(gateway)
    spends = stage("bench_spend", micro_dollars=25_000, tokens_in=3, tokens_out=4)
    run(gateway, {"root": seq(spends, stage("bench_echo"))}, agent="ann")
    run(gateway, {"root": stage("bench_fail")}, agent="ann")
    now = wait_for(
        lambda: read(gateway), true=lambda found: found["gridq_jobs_ended_total"]["failed",] >= 1, poll=0.3
    )

    def grew(name: str, *labels: str) -> float:
        return now[name].get(labels, 0.0) - before.get(name, {}).get(labels, 0.0)

    assert (grew("gridq_jobs_ended_total", "done"), grew("gridq_jobs_ended_total", "failed")) == (1, 1)
    assert grew("gridq_stages_total", "bench:any", "done") == 2
    assert grew("gridq_stage_tokens_total", "out", "bench:any") == 4
    assert grew("gridq_stage_run_seconds_count", "bench:any") == 3
    assert grew("gridq_agent_spent_dollars_total", "ann") == pytest.approx(0.025)
    assert grew("gridq_seat_spent_dollars_total", "m.bench") == pytest.approx(0.025)
    assert grew("gridq_jobs_submitted_total") == 2
    assert grew("noether_grid_jobs_succeeded_total") == 1
    assert grew("noether_grid_jobs_failed_total") == 1
    assert grew("noether_grid_cents_spent_total") == pytest.approx(2.5)
    assert grew("gridq_http_requests_total", "POST", "/jobs", "202") == 2
    assert grew("gridq_http_request_duration_seconds_count", "/jobs/{id}") == 2


def test_counters_begin_at_the_gateways_start(server: EmbeddedServer, tmp_path: Path) -> None:
    with benches(server, tmp_path) as started:
        run(started.gateway, {"root": stage("bench_echo")})
        now = wait_for(
            lambda: read(started.gateway),
            true=lambda found: found["gridq_jobs_ended_total"]["done",],
            poll=0.3,
        )
        assert now["gridq_jobs_submitted_total"][()] == 1


def test_gauges_show_the_current_state(gateway: Gateway) -> None:
    job = gateway.post("/jobs", {"graph": {"root": stage("bench_sleep", ms=60_000)}, "input": {}}, 202)["job"]
    asleep = gateway.post(
        "/jobs",
        {"graph": {"root": stage("bench_echo", slug="rare")}, "wait_for_seat": True, "priority": "batch"},
        202,
    )["job"]
    try:
        now = wait_for(
            lambda: read(gateway), true=lambda found: found["gridq_seat_busy"]["m.bench",] == 1, poll=0.3
        )
        assert now["gridq_jobs"] == {("queued",): 0, ("running",): 2}
        assert now["gridq_queue_depth"]["batch", "bench:rare"] == 1
        assert now["gridq_queue_oldest_seconds"]["batch", "bench:rare"] > 0
        assert now["gridq_queue_oldest_seconds"]["interactive", "bench:rare"] == 0
        assert now["gridq_queue_running"]["bench:any",] == 1
        assert now["gridq_seat_concurrency"]["m.bench",] == 4
        assert now["noether_grid_workers_total"][()] == 2
        with gateway.http.stream("GET", f"/jobs/{job}/events") as reply:
            parts = reply.iter_bytes()
            next(parts)
            open_now = wait_for(
                lambda: read(gateway), true=lambda found: found["gridq_http_open_streams"][()] == 1, poll=0.3
            )
            assert open_now["gridq_job_followers"][()] == 1
        wait_for(
            lambda: read(gateway), true=lambda found: found["gridq_http_open_streams"][()] == 0, poll=0.3
        )
    finally:
        for each in (job, asleep):
            gateway.ask("DELETE", f"/jobs/{each}", 200)


LIMITS = """
[agents.dora]
monthly_jobs = 9
budgets = [{dollars = 3, per = "day"}, {tokens = 50, per = "week"}]
"""


def test_accounts_show_limits_of_each_window(place: Benches, gateway: Gateway) -> None:
    put_in_force(place.grid.scripts, parse(LIMITS, "q.toml"), "a test")
    try:
        run(gateway, {"root": stage("bench_spend", micro_dollars=500_000, tokens_in=7)}, agent="dora")
        now = wait_for(  # an answer may be a second old
            lambda: read(gateway),
            true=lambda found: (
                found.get("gridq_account_used", {}).get(("agent", "dora", "tokens a week")) == 7
            ),
            poll=0.3,
        )
        used = {key[2]: amount for key, amount in now["gridq_account_used"].items() if key[1] == "dora"}
        assert used == {"money": 0.5, "jobs": 1, "money a day": 0.5, "tokens a week": 7}
        most = {key[2]: amount for key, amount in now["gridq_account_limit"].items() if key[1] == "dora"}
        assert most == {"jobs": 9, "money a day": 3, "tokens a week": 50}
    finally:
        lift(place.grid.scripts)


BUDGETS = """
[grid]
budgets = [{requests = 1000, per = "5h"}]
[owners.olga]
budgets = [{tokens = 500, per = "week"}]
[agents.bea]
monthly_dollars = 3
budgets = [{dollars = 2, per = "day"}]
[seats."m.bench"]
budgets = [{dollars = 7, per = "day"}]
"""


def test_accounts_show_use_rest_and_reset(place: Benches, gateway: Gateway) -> None:
    scripts = place.grid.scripts
    write_calendar(scripts, "UTC")
    put_in_force(scripts, parse(BUDGETS, "quotas.toml"), "a test")
    try:
        spends = stage("bench_spend", micro_dollars=250_000, tokens_in=3, tokens_out=4)
        run(gateway, {"root": spends}, agent="bea")
        now = wait_for(
            lambda: read(gateway),
            true=lambda found: found.get("gridq_account_used", {}).get(("agent", "bea", "money")) == 0.25,
            poll=0.3,
        )
        found = {
            key: tuple(
                now[f"gridq_account_{name}"].get(key) for name in ("limit", "used", "reserved", "left")
            )
            for key in now["gridq_account_limit"]
        }
        assert found == {
            ("agent", "bea", "money"): (3, 0.25, 0, 2.75),
            ("agent", "bea", "money a day"): (2, 0.25, 0, 1.75),
            ("grid", "all of it", "requests in 5h"): (1000, 1, 0, 999),
            ("owner", "olga", "tokens a week"): (500, 0, 0, 500),
            ("seat", "m.bench", "grid money a day"): (7, 0.25, 0, 6.75),
        }
        assert now["gridq_account_used"]["agent", "bea", "jobs"] == 1  # which has no limit
        turns = now["gridq_account_reset_timestamp_seconds"]
        assert 0 < turns["grid", "all of it", "requests in 5h"] - time.time() <= 5 * 3600
        assert turns["agent", "bea", "money a day"] % 86_400 == 0
        assert now["gridq_seat_budget_left_dollars"]["m.bench",] == 6.75
        assert now["gridq_capacity_used_ratio"]["m.bench",] == pytest.approx(0.25 / 7)
    finally:
        lift(scripts)


@contextmanager
def reporting(place: Benches, seat: str, profile: Profile) -> Iterator[None]:
    """Keep a seat live that reports the metrics of `profile`, as its worker would."""
    ad = Advertisement(
        seat=seat, machine="t", worker=f"{seat}@t", incarnation="i", kind=profile.kind, concurrency=1,
        queues=["bench:rare"], metrics={"busy": 0.0, **profile.metrics()},
    )  # fmt: skip
    with advertised(place.grid.scripts, ad):
        yield


def open_profile(profile: Profile, config: Any) -> Profile:
    """Open the first seat that `profile` finds by `config`."""
    offer = profile.probe(config).found[0]
    profile.open(profile.Capability.model_validate(offer.capability), offer.config)
    return profile


def test_what_profiles_report_is_shown_under_its_own_names(
    place: Benches, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(tmp_path / "bin", "claude")
    for name, text in programs.environ.items():
        monkeypatch.setenv(name, text)
    models = [{"name": "sonnet"}]
    seats = {
        "t.cpu": open_profile(GpuProfile(), {"gpus": False}),
        "t.api": open_profile(LlmProfile(), [{"name": "a", "url": "https://x.example/v1", "models": models}]),
        "t.cli": open_profile(LlmProfile(), [{"name": "c", "cli": "claude", "models": models}]),
    }
    wanted = {
        "gridq_gpu_seconds_total": "t.cpu",
        "gridq_api_calls_total": "t.api",
        "gridq_jobs_routed_total": "t.cli",
    }
    with ExitStack() as stack:
        for name, profile in seats.items():
            stack.callback(profile.close)
            stack.enter_context(reporting(place, name, profile))
        now = wait_for(lambda: read(gateway), true=lambda found: wanted.keys() <= found.keys(), poll=0.3)
    for name, seat in wanted.items():
        [(labels, count)] = now[name].items()
        assert seat in labels
        assert count == 0


def test_unknown_paths_are_one_route(gateway: Gateway) -> None:
    for number in range(5):
        gateway.http.get(f"/made/up/{number}")
    now = wait_for(
        lambda: read(gateway)["gridq_http_requests_total"],
        true=lambda found: ("GET", "(none)", "404") in found,
    )
    assert not [key for key in now if "made" in key[1]]


def test_frequent_scrapes_read_the_server_once(place: Benches, gateway: Gateway) -> None:
    def written() -> int:
        about: Any = place.grid.scripts.client.info("commandstats")
        return int(about["cmdstat_zcount"]["calls"])

    read(gateway)
    before, began = written(), time.monotonic()
    for _ in range(20):
        read(gateway)
    assert written() - before <= 1 + (time.monotonic() - began) / CACHE_SECONDS


def test_openmetrics_on_request(gateway: Gateway) -> None:
    found = read(gateway, "application/openmetrics-text; version=1.0.0")
    assert "gridq_jobs_ended_total" in found


def test_local_scrapes_need_no_key_unless_proxied(place: Benches, gateway: Gateway) -> None:
    client, keys = place.grid.scripts.client, place.grid.scripts.keys
    _, reader = api_keys.create(client, keys, "watcher", scopes=("read",))
    _, sender = api_keys.create(client, keys, "sender", scopes=("submit",))
    far = {"x-forwarded-for": "203.0.113.9"}
    try:
        wait_for(lambda: gateway.http.get("/jobs").status_code, true=lambda status: status == 401)
        assert gateway.http.get("/metrics").status_code == 200
        assert gateway.http.get("/metrics", headers=far).status_code == 401
        assert gateway.http.get("/metrics", headers={**far, "x-api-key": sender}).status_code == 403
        assert gateway.http.get("/metrics", headers={**far, "x-api-key": reader}).status_code == 200
        assert gateway.http.get("/metrics", headers={"host": "evil.example.com"}).status_code == 403
    finally:
        client.unlink(keys("api_keys"))
