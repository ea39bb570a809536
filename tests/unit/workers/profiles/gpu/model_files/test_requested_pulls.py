"""A request pulls the model that it needs: the pull is a real process, at a hub on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridq.errors import (
    GridError,
    JobCancelled,
    ModelFileError,
    ModelInCooldown,
    ModelLoading,
    SeatUnavailable,
)
from gridq.gateway.http.errors import compute_retry_after, find_status
from gridq.profiles.profile import StageContext
from tests.fakes.hub_server import HubServer
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.model_files import requested_pulls
from workers.profiles.gpu.model_files.local_models import LocalModels
from workers.profiles.gpu.model_files.pulling import read_progress
from workers.profiles.gpu.model_files.requested_pulls import RequestedPulls

MODEL = Model(name="lazy", file="hf:org/Tiny-GGUF", context=512)


@pytest.fixture
def pulls(hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequestedPulls]:
    monkeypatch.setattr(requested_pulls, "HOLD_SECONDS", 0.0)
    found = RequestedPulls(home, 10_000_000, None)
    yield found
    found.close()


def ask(pulls: RequestedPulls, job: str = "job", *, is_refused: bool = False, model: Model = MODEL) -> Model:
    return pulls.find_model(model, StageContext(job=job), is_refused=is_refused)


def ask_until_here(pulls: RequestedPulls, model: Model = MODEL) -> Model:
    """Ask as a queue does, again and again."""

    def found() -> Model | None:
        try:
            return ask(pulls, model=model)
        except ModelInCooldown:
            return None

    return wait_for(found, 60)


def test_many_requests_attach_to_one_pull_and_wait_without_a_slot(
    hub_server: HubServer, pulls: RequestedPulls, home: Path
) -> None:
    hub_server.gate.clear()
    for job in ("a", "b", "c"):
        with pytest.raises(ModelInCooldown) as caught:
            ask(pulls, job)
        assert caught.value.details["retry_after"] == requested_pulls.RETRY_SECONDS
    wait_for(hub_server.list_downloads, 60)
    assert pulls.list_shares() == {"lazy": 0.0}
    hub_server.gate.set()
    model = ask_until_here(pulls)
    assert not model.is_reference
    wait_for(lambda: pulls.list_shares() == {}, 60)
    assert Path(model.file).exists()
    assert len(hub_server.list_downloads()) == 1
    assert LocalModels(home).get("lazy").context == 512


def test_a_model_api_is_refused_while_http_can_still_say_so(
    hub_server: HubServer, pulls: RequestedPulls, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_server.gate.clear()
    with pytest.raises(ModelInCooldown):
        ask(pulls, is_refused=True)
    wait_for(lambda: (found := read_progress(home, "lazy")) and found.state == "downloading", 60)
    monkeypatch.setattr(requested_pulls, "REFUSE_SECONDS", 0.0)
    with pytest.raises(ModelLoading) as caught:
        ask(pulls, is_refused=True)
    loading = caught.value.details["loading"]
    assert loading["state"] == "downloading"
    assert loading["machine"]
    assert loading["progress"] == 0.0
    assert "eta" not in loading  # too little has come to tell
    assert find_status(caught.value) == 503
    assert compute_retry_after(caught.value) == requested_pulls.DEFAULT_RETRY_AFTER_SECONDS


def test_a_client_that_leaves_does_not_end_the_pull(hub_server: HubServer, pulls: RequestedPulls) -> None:
    hub_server.gate.clear()
    context = StageContext(job="gone")
    context.cancel()
    with pytest.raises(JobCancelled):
        pulls.find_model(MODEL, context, is_refused=True)
    hub_server.gate.set()
    assert not ask_until_here(pulls).is_reference


@pytest.mark.parametrize(("is_damaged", "code"), [(False, 0), (True, 1)])
def test_the_exit_code_says_how_a_pull_ended(
    hub_server: HubServer, home: Path, is_damaged: bool, code: int
) -> None:
    hub_server.damaged = is_damaged
    order = {"reference": "hf:org/Tiny-GGUF", "home": str(home), "options": {"name": "lazy"}}
    process = subprocess.Popen([sys.executable, "-m", requested_pulls.PULL_PROGRAM], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()  # and stays open, as a worker's does
    assert process.wait(60) == code
    process.stdin.close()


def test_a_pull_that_fails_is_told_once_and_then_tried_again(
    hub_server: HubServer, pulls: RequestedPulls, home: Path
) -> None:
    hub_server.damaged = True
    with pytest.raises(ModelFileError) as caught:
        ask_until_here(pulls)
    assert "model.digest" in (caught.value.reason or "")
    assert caught.value.fix
    assert LocalModels(home).read() == []
    assert len(hub_server.list_downloads()) == 1  # its process ended by itself: nothing killed it
    hub_server.damaged = False
    assert not ask_until_here(pulls).is_reference


def test_a_killed_pull_goes_on_and_its_requests_do_not_notice(
    hub_server: HubServer, pulls: RequestedPulls
) -> None:
    hub_server.gate.clear()
    with ThreadPoolExecutor(50) as threads:
        asking = [threads.submit(ask, pulls, f"job{number}") for number in range(50)]
        assert {type(each.exception()) for each in asking} == {ModelInCooldown}
        wait_for(hub_server.list_downloads, 60)
        pulls._running["lazy"].kill()
        pulls._running["lazy"].wait()
        again = [threads.submit(ask, pulls, f"job{number}") for number in range(50)]
        assert {type(each.exception()) for each in again} == {ModelInCooldown}
    hub_server.gate.set()
    assert not ask_until_here(pulls).is_reference


def test_a_pull_that_is_killed_again_and_again_is_told(hub_server: HubServer, pulls: RequestedPulls) -> None:
    hub_server.gate.clear()
    for _ in range(requested_pulls.MAX_KILLS + 1):
        with pytest.raises(ModelInCooldown):
            ask(pulls)
        pulls._running["lazy"].kill()
        pulls._running["lazy"].wait()
    with pytest.raises(ModelFileError) as caught:
        ask(pulls)
    assert caught.value.reason
    assert caught.value.fix


def test_a_request_that_waits_while_its_seat_closes_starts_no_other_pull(
    hub_server: HubServer, pulls: RequestedPulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requested_pulls, "HOLD_SECONDS", 60.0)
    hub_server.gate.clear()
    with ThreadPoolExecutor() as threads:
        asking = threads.submit(ask, pulls)
        wait_for(hub_server.list_downloads, 60)
        pulls.close()
        assert type(asking.exception(60)) is SeatUnavailable
    assert pulls._running == {}
    hub_server.gate.set()


def test_the_owners_limit_of_size_holds(hub_server: HubServer, home: Path, model_file: Path) -> None:
    small = RequestedPulls(home, model_file.stat().st_size - 1, None)
    with pytest.raises(ModelFileError) as caught:
        ask_until_here(small)
    assert "model.too_large" in (caught.value.reason or "")
    assert "pull_limit_gb" in (caught.value.fix or "")
    assert not hub_server.list_downloads()


def test_the_pull_ends_with_its_seat_and_goes_on_later(
    hub_server: HubServer, home: Path, pulls: RequestedPulls
) -> None:
    hub_server.gate.clear()
    first = RequestedPulls(home, 10_000_000, None)
    with pytest.raises(ModelInCooldown):
        ask(first)
    wait_for(hub_server.list_downloads, 60)
    first.close()
    wait_for(lambda: (found := read_progress(home, "lazy")) and found.state == "failed", 60)
    hub_server.gate.set()
    assert not ask_until_here(pulls).is_reference


def test_a_pull_by_hand_is_attached_to(hub_server: HubServer, home: Path, pulls: RequestedPulls) -> None:
    from workers.profiles.gpu.model_files.pulling import PullOptions, pull
    from workers.profiles.gpu.model_files.references import parse_reference

    hub_server.gate.clear()
    errors: list[GridError] = []

    def by_hand() -> None:
        try:
            pull(parse_reference(MODEL.file), home, PullOptions(name="lazy", context=512))
        except GridError as exc:
            errors.append(exc)

    thread = threading.Thread(target=by_hand)
    thread.start()
    wait_for(hub_server.list_downloads, 60)
    with pytest.raises(ModelInCooldown):
        ask(pulls)
    time.sleep(0.1)
    hub_server.gate.set()
    assert not ask_until_here(pulls).is_reference
    thread.join(30)
    assert errors == []
    assert len(hub_server.list_downloads()) == 1
