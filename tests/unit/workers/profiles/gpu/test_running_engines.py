"""Engines that already run: what each is known by, what it has, its loads, its faults, its owner's table."""

from __future__ import annotations

import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ConfigError, ModelUnavailable, SeatUnavailable, SeatUnreachable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Effect, ProbeReport, SeatOffer, StageCall
from tests.fakes.engine_servers import (
    FakeEngine,
    FakeLlamaRouter,
    FakeLMStudio,
    FakeLocalAI,
    FakeMlx,
    FakeModel,
    FakeOllama,
    FakeSGLang,
    FakeTgi,
    FakeVllm,
)
from tests.fakes.http_server import Handler, LocalServer
from tests.waiting import wait_for
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.running_engines import engine_offers, finding
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault
from workers.profiles.gpu.running_engines.engine_seat_runner import EngineSeatRunner

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def run() -> Iterator[Any]:
    """Start fake engines; they end with the test."""
    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture
def usual_ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that count as usual, for a test to add to."""
    ports: list[int] = []
    monkeypatch.setattr(engine_offers, "USUAL_PORTS", ports)
    monkeypatch.delenv("GRIDQ_SKIP_ENGINES")
    return ports


def probe(*engines: dict[str, Any]) -> ProbeReport:
    return GpuProfile().probe({"cpu": False, "gpus": False, "engines": list(engines)})


def find_offer(report: ProbeReport, name: str) -> SeatOffer:
    return next(each for each in report.found if each.name == name)


def model_names(offer: SeatOffer) -> list[str]:
    return [model["name"] for model in offer.capability["models"]]


# -- known by its own API


@pytest.mark.parametrize(
    ("fake", "kind", "slots"),
    [
        (FakeOllama, "ollama", 1),
        (FakeLMStudio, "lm-studio", 1),
        (FakeLlamaRouter, "llama-server", 3),
        (FakeVllm, "vllm", 8),
        (FakeSGLang, "sglang", 48),
        (FakeTgi, "tgi", 64),
        (FakeMlx, "mlx", 8),
        (FakeLocalAI, "localai", 1),
    ],
)
def test_each_engine_is_adopted_with_its_models_and_slots(
    run: Any, usual_ports: list[int], fake: type[FakeEngine], kind: str, slots: int
) -> None:
    engine = run(fake(FakeModel("org/chat-model", is_loaded=True)))
    usual_ports.append(engine.port)
    [offer] = probe().found
    assert (offer.name, offer.kind) == (f"{kind}-{engine.port}", "gpu")
    assert (offer.concurrency, offer.capability["engine"]) == (slots, kind)
    assert model_names(offer) == ["org/chat-model"]
    context = offer.capability["models"][0]["context"]
    assert context == (None if kind in {"mlx", "localai"} else 4096)
    profile = GpuProfile()
    queues = profile.queues(profile.Capability.model_validate(offer.capability))
    assert queues == ["llm:org%2Fchat-model", "llm:any"]
    assert engine.url in offer.notice
    added = offer.notice.partition("in three lines: ")[2].replace(", ", "\n")
    tables = tomllib.loads(added)["gpu"]["engines"]  # what it says to add does leave it out
    assert probe(*tables).found == []


def test_an_old_sglang_and_an_old_lm_studio_are_known_too(run: Any, usual_ports: list[int]) -> None:
    sglang, studio = run(FakeSGLang(FakeModel("a"))), run(FakeLMStudio(FakeModel("b", is_loaded=True)))
    sglang.info_path, studio.is_old = "/get_server_info", True
    usual_ports += [sglang.port, studio.port]
    found = {offer.capability["engine"]: offer for offer in probe().found}
    assert set(found) == {"sglang", "lm-studio"}
    assert found["lm-studio"].capability["models"][0]["context"] == 4096


def test_embeddings_come_from_the_engine_not_from_the_name(run: Any, usual_ports: list[int]) -> None:
    vectors, text = FakeModel("plain-name", embeddings=True), FakeModel("embed-chat")
    usual_ports += [run(fake(vectors, text)).port for fake in (FakeOllama, FakeLMStudio, FakeLlamaRouter)]
    for offer in probe().found:
        uses = {each["name"]: (each["embeddings"], each["any"]) for each in offer.capability["models"]}
        assert uses["plain-name"] == (True, False)
        if offer.capability["engine"] != "llama-server":  # a router says it only by its arguments
            assert uses["embed-chat"] == (False, True)


def test_ollamas_names_work_without_latest_and_its_cloud_stays_out(run: Any, usual_ports: list[int]) -> None:
    cloud = FakeModel("gpt-oss:120b-cloud", more={"remote_host": "https://ollama.com:443"})
    usual_ports.append(run(FakeOllama(FakeModel("llama3.2:latest"), FakeModel("qwen3:8b"), cloud)).port)
    report = probe()
    [offer] = report.found
    assert model_names(offer) == ["llama3.2:latest", "qwen3:8b"]
    assert offer.capability["models"][0]["families"] == ["llama3.2"]
    assert any("gpt-oss:120b-cloud" in note for note in report.not_lent)


@pytest.mark.parametrize("fake", [FakeVllm, FakeSGLang, FakeTgi, FakeMlx, FakeLlamaRouter])
def test_a_model_that_is_named_by_its_path_has_a_short_name(
    run: Any, usual_ports: list[int], fake: type[FakeEngine]
) -> None:
    usual_ports.append(run(fake(FakeModel("/srv/models/tiny"))).port)
    [offer] = probe().found
    assert offer.capability["models"][0]["families"] == ["tiny"]


def test_an_mlx_server_without_a_cache_says_what_it_lacks(run: Any, usual_ports: list[int]) -> None:
    engine = run(FakeMlx(FakeModel("org/m")))
    engine.has_cache = False
    usual_ports.append(engine.port)
    report = probe()
    assert report.found == []
    assert any(note.startswith(f"mlx-{engine.port}:") and "HF_HOME" in note for note in report.missing)
    engine.has_cache = True
    assert model_names(find_offer(probe(), f"mlx-{engine.port}")) == ["org/m"]


def test_a_probe_shows_what_could_be_loaded_and_what_is_and_how_to_leave_the_engine_out(
    run: Any, usual_ports: list[int]
) -> None:
    engine = run(FakeOllama(FakeModel("a"), FakeModel("b", is_loaded=True)))
    usual_ports.append(engine.port)
    [offer] = probe().found
    assert offer.note.endswith("models: a, b; loaded: b")
    notice = offer.notice
    assert all(part in notice for part in (f'url = "{engine.url}"', "[[gpu.engines]]", "lend = false"))
    assert "\n" not in notice


def test_an_ollama_with_hundreds_of_models_is_adopted_at_once(run: Any, open_seat: Any) -> None:
    class Slow(FakeOllama):
        def post(self, path: str, body: Any) -> tuple[int, Any] | None:
            time.sleep(0.02)
            return super().post(path, body)

    engine = run(Slow(*[FakeModel(f"m{at:03}", context=777) for at in range(300)]))
    runner, _ = open_seat(engine)
    assert len(runner.capability.models) == 300

    def all_known() -> bool:
        runner.look()
        return all(model.context == 777 for model in runner.capability.models)

    wait_for(all_known)


# -- the owner decides


def test_an_engine_can_be_left_out(run: Any, usual_ports: list[int]) -> None:
    engine = run(FakeOllama(FakeModel("m")))
    usual_ports.append(engine.port)
    assert len(probe().found) == 1
    assert probe({"url": f"http://localhost:{engine.port}/v1", "lend": False}).found == []


def test_all_can_be_left_out(run: Any, usual_ports: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = run(FakeOllama(FakeModel("m")))
    usual_ports.append(engine.port)
    monkeypatch.setenv("GRIDQ_SKIP_ENGINES", "1")
    assert probe().found == []
    assert not engine.asked
    assert len(probe({"url": engine.url}).found) == 1  # the owner has named it


def test_a_table_names_the_seat_its_models_and_its_slots(run: Any) -> None:
    engine = run(FakeVllm(FakeModel("a"), FakeModel("b"), FakeModel("c")))
    models = ["c", {"name": "a", "families": ["fast"], "context": 1000}]
    table = {"url": f"{engine.url}/v1/", "name": "box", "models": models, "concurrency": 5}
    [offer] = probe(table).found
    assert (offer.name, offer.concurrency, model_names(offer)) == ("box", 5, ["c", "a"])
    assert offer.capability["models"][1]["families"] == ["fast"]
    assert [each["context"] for each in offer.capability["models"]] == [4096, 1000]


def test_a_server_without_an_api_of_its_own_is_only_adopted_by_name(run: Any, usual_ports: list[int]) -> None:
    engine = run(FakeEngine(FakeModel("m")))
    usual_ports.append(engine.port)
    assert probe().found == []
    [offer] = probe({"url": engine.url}).found
    assert offer.capability["engine"] == "openai-compatible"


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({}, "gpu.engines[0]"),
        ({"url": "ftp://127.0.0.1"}, "gpu.engines[0].url"),
        ({"url": "http://192.0.2.7:11434"}, "gpu.engines[0].url"),
        ({"url": "http://user:pw@127.0.0.1:1"}, "gpu.engines[0].url"),
        ({"url": "http://127.0.0.1:1", "name": "Not OK"}, "gpu.engines[0].name"),
        ({"url": "http://127.0.0.1:1", "concurrency": 0}, "gpu.engines[0].concurrency"),
        ({"url": "http://127.0.0.1:1", "modles": []}, "gpu.engines[0].modles"),
        ({"url": "http://127.0.0.1:1", "models": [{"context": 5}]}, "gpu.engines[0].models"),
        ({"url": "http://127.0.0.1:1", "key_env": "A", "key_file": "b"}, "gpu.engines[0]"),
    ],
)
def test_a_wrong_table_is_refused_at_its_place(table: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(table)
    assert str(caught.value.details["path"]).startswith(place)
    assert caught.value.details["expected"]


def test_two_tables_with_one_address_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        probe({"url": "http://127.0.0.1:9/v1"}, {"url": "http://localhost:9"})
    assert caught.value.details["path"] == "gpu.engines[1].url"


# -- what is no engine, or not there


class _WebHandler(Handler):
    def do_GET(self) -> None:
        self.answer(200, b"<html>hello</html>")


class _GatewayHandler(Handler):
    def do_GET(self) -> None:
        self.answer(404, {"error": "no such path"}, {"x-gridq-code": "http.not_found"})


def test_a_web_site_at_a_usual_port_is_ignored_and_at_a_named_one_an_error(
    run: Any, usual_ports: list[int]
) -> None:
    port = int(run(LocalServer(_WebHandler)).url.rpartition(":")[2])
    usual_ports.append(port)
    report = probe()
    assert report.found == []
    assert not any(str(port) in why for why in report.missing)
    named = probe({"url": f"http://127.0.0.1:{port}", "name": "box"})
    assert any(why.startswith("box: ") and str(port) in why for why in named.missing)


def test_a_gateway_of_gridq_is_never_adopted(run: Any, usual_ports: list[int]) -> None:
    port = int(run(LocalServer(_GatewayHandler)).url.rpartition(":")[2])
    usual_ports.append(port)
    assert probe().found == []
    named = probe({"url": f"http://127.0.0.1:{port}"})
    assert any("gateway of gridq" in why for why in named.missing)
    assert model_names(named.found[0]) == []


def test_an_engine_that_never_answers_takes_a_probe_no_more_than_two_seconds(usual_ports: list[int]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        usual_ports.append(silent.getsockname()[1])
        began = time.monotonic()
        report = probe({"url": f"http://127.0.0.1:{usual_ports[0]}"})
        assert time.monotonic() - began < 3  # two seconds, and a margin for a busy machine
    assert report.missing


def test_a_named_engine_that_is_down_is_a_seat_without_models() -> None:
    with FakeVllm(FakeModel("m")) as engine:
        url = engine.url
    [offer] = probe({"url": url, "name": "later"}).found
    assert (offer.name, model_names(offer)) == ("later", [])
    assert any("later" in why for why in probe({"url": url, "name": "later"}).missing)


def test_an_engine_that_is_loading_its_model_says_so(run: Any) -> None:
    class Loading(FakeLlamaRouter):
        def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
            return 503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}

    report = probe({"url": run(Loading(FakeModel("m"))).url, "name": "slow"})
    assert any("slow" in why and "loading" in why for why in report.missing)


def test_an_engine_that_wants_a_key_says_so(run: Any) -> None:
    class Locked(FakeVllm):
        def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
            if path == "/v1/models":
                return 401, {"error": "Unauthorized"}
            return super().get(path, query)

    engine = run(Locked(FakeModel("m")))
    report = probe({"url": engine.url, "name": "locked"})
    assert any("locked" in why and "key" in why for why in report.missing)


def test_an_engine_whose_key_is_nowhere_says_where_it_should_be(run: Any, tmp_path: Path) -> None:
    engine = run(FakeVllm(FakeModel("m")))
    file = tmp_path / "key"
    for key, place in (("key_env", "NO_SUCH_KEY"), ("key_file", str(file))):
        missing = probe({"url": engine.url, "name": "box", key: place}).missing
        assert any(why.startswith("box: ") and place in why for why in missing)
    file.write_text("abcd")
    missing = probe({"url": engine.url, "name": "box", "key_file": str(file)}).missing
    assert not any(why.startswith("box: ") for why in missing)


# -- loading and unloading


@pytest.fixture
def identify() -> Iterator[Any]:
    apis: list[EngineApi] = []

    def ask(engine: FakeEngine) -> Any:
        apis.append(EngineApi(engine.url))
        return finding.identify(apis[-1], is_named=False)

    yield ask
    for api in apis:
        api.close()


@pytest.mark.parametrize("fake", [FakeOllama, FakeLMStudio, FakeLlamaRouter, FakeLocalAI])
def test_a_model_is_loaded_and_unloaded_by_order(run: Any, identify: Any, fake: type[FakeEngine]) -> None:
    engine = run(fake(FakeModel("m"), FakeModel("v", embeddings=True)))
    adopted = identify(engine)
    assert adopted.read_state().loaded == []
    for _ in range(2):  # an order that changes nothing succeeds too
        adopted.load("m")
        assert adopted.read_state().loaded == ["m"]
    for _ in range(2):
        adopted.unload("m")
        assert adopted.read_state().loaded == []
    with pytest.raises(EngineFault):
        adopted.load("unknown")


def test_vllm_sleeps_and_wakes(run: Any, identify: Any) -> None:
    engine = run(FakeVllm(FakeModel("m")))
    adopted = identify(engine)
    with pytest.raises(EngineFault, match="sleep mode"):
        adopted.unload("m")
    engine.has_sleep_mode = True
    adopted.unload("m")
    assert (engine.is_sleeping, adopted.read_state().loaded) == (True, [])
    adopted.load("m")
    assert adopted.read_state().loaded == ["m"]


# -- at work


@pytest.fixture
def open_seat(run: Any) -> Iterator[Any]:
    """Open the seat of an engine: its runner, and the times that it reported a change."""
    runners: list[EngineSeatRunner] = []

    def start(engine: FakeEngine, **table: Any) -> tuple[EngineSeatRunner, list[int]]:
        [offer] = probe({"url": engine.url, **table}).found
        changes: list[int] = []
        capability = GpuProfile.Capability.model_validate(offer.capability)
        seat = engine_offers.EngineSeat.model_validate(offer.config)
        runners.append(EngineSeatRunner(capability, seat, lambda: changes.append(1)))  # type: ignore[arg-type]
        return runners[-1], changes

    yield start
    for runner in runners:
        runner.close()


def test_a_load_that_the_seat_ordered_is_shown_while_it_lasts(run: Any, open_seat: Any) -> None:
    may_load = threading.Event()

    class Slow(FakeOllama):
        def post(self, path: str, body: Any) -> tuple[int, Any] | None:
            if path == "/api/generate":
                may_load.wait(10)
            return super().post(path, body)

    runner, _ = open_seat(run(Slow(FakeModel("first", context=99), FakeModel("m", context=99))))
    assert runner.describe_loading() == {}
    loading = threading.Thread(target=runner.load, args=("m", StageContext()))
    loading.start()
    shown = wait_for(runner.describe_loading)
    assert shown == {"llm:m": {"model": "m", "share": None}}, "not llm:any, for which `first` is used"
    may_load.set()
    loading.join()
    assert runner.describe_loading() == {}


def test_a_load_that_a_router_began_by_itself_is_shown(run: Any, open_seat: Any) -> None:
    model = FakeModel("m", more={"status": {"value": "loading", "args": []}})
    runner, _ = open_seat(run(FakeLlamaRouter(model)))
    assert runner.describe_loading()["llm:m"] == {"model": "m", "share": None}


def chat(runner: EngineSeatRunner, model: str, text: str = "Hi", context: StageContext | None = None) -> Any:
    stage = StageCall(
        id="s",
        name="s",
        path="root",
        implementation="llm:chat",
        effects=[Effect.model_validate({"effect": "Llm", "model": model})],
        queue=queue_names.make_queue_name(queue_names.LLM, model),
    )
    return runner.run(stage, {"messages": text, "model": model}, context or StageContext())


def test_a_stage_is_sent_to_the_model_and_its_usage_is_reported(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("m:latest")))
    runner, _ = open_seat(engine)
    context = StageContext()
    assert chat(runner, "m", context=context)["content"] == "hello there"
    assert engine.requests[0]["body"]["model"] == "m:latest"
    assert (context.usage.tokens_in, context.usage.tokens_out) == (7, 2)
    assert context.usage.seconds > 0
    runner.look()
    assert runner.list_loaded() == ["m:latest"]
    assert "llm:any" in runner.warm_queues()


def test_the_seat_of_an_engine_reports_its_models_and_the_seconds_that_stages_took(run: Any) -> None:
    engine = run(FakeOllama(FakeModel("m")))
    engine.pause = 0.1
    [offer] = probe({"url": engine.url}).found
    profile = GpuProfile()
    profile.open(profile.Capability.model_validate(offer.capability), offer.config)
    try:
        assert profile.metrics() == {"gpu_seconds_total": 0.0}
        effects = [Effect.model_validate({"effect": "Llm", "model": "m"})]
        stage = StageCall(
            id="s", name="s", path="root", implementation="llm:chat", effects=effects, queue="llm:m"
        )
        pieces: list[Any] = []
        context = StageContext(emit=pieces.append)
        profile.run(stage, {"messages": CHAT["messages"], "model": "m"}, context)
        found = wait_for(profile.metrics, true=lambda found: len(found) == 2)
        assert found['model_loaded{model="m"}'] == 1.0
        assert found["gpu_seconds_total"] == pytest.approx(context.usage.seconds, abs=0.5)
        assert found["gpu_seconds_total"] > 0.1
    finally:
        profile.close()


def test_embeddings_are_computed_by_the_model_that_has_them(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("chat"), FakeModel("vectors", embeddings=True)))
    runner, _ = open_seat(engine)
    effects = [Effect.model_validate({"effect": "Llm", "model": "any", "embeddings": True})]
    stage = StageCall(id="s", name="s", path="root", implementation="llm:embed", effects=effects)
    assert runner.run(stage, {"input": ["a", "b"]}, StageContext()) == [[0.5, 0.25], [0.5, 0.25]]
    assert engine.requests[0]["body"]["model"] == "vectors"


def test_the_key_goes_to_the_engine_and_no_proxy_comes_between(
    run: Any, open_seat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOX_KEY", "sk-box")
    engine = run(FakeVllm(FakeModel("m")))
    runner, _ = open_seat(engine, key_env="BOX_KEY")
    assert chat(runner, "m")["content"] == "hello there"
    assert engine.requests[0]["authorization"] == "Bearer sk-box"


def test_a_sleeping_vllm_is_woken_before_a_request(run: Any, open_seat: Any) -> None:
    engine = run(FakeVllm(FakeModel("m")))
    engine.has_sleep_mode = engine.is_sleeping = True
    runner, _ = open_seat(engine)
    assert runner.warm_queues() == []
    assert chat(runner, "m")["content"] == "hello there"


@pytest.mark.parametrize("fake", [FakeOllama, FakeVllm, FakeSGLang, FakeTgi, FakeLMStudio])
def test_a_prompt_over_the_context_is_refused_with_both_numbers(
    run: Any, open_seat: Any, fake: type[FakeEngine]
) -> None:
    engine = run(fake(FakeModel("m", context=100, is_loaded=True)))
    runner, _ = open_seat(engine)
    with pytest.raises(StageError) as caught:
        chat(runner, "m", "word " * 300)
    details = caught.value.details
    assert details["endpoint_code"] == "context_length_exceeded"
    words = str(details.get("reason", caught.value.message))
    assert "100" in words
    assert any(number in words for number in ("300", "301", "302", "303", "304", "305", "250", "101"))


class LateOllama(FakeOllama):
    """Its models' files set no context: Ollama chooses it when it loads one."""

    is_broken = False

    def post(self, path: str, body: Any) -> tuple[int, Any] | None:
        if path == "/api/generate":
            assert body.get("keep_alive", 0) == 0, "how long a model stays is its owner's choice"
            if self.is_broken:
                return 500, {"error": "llama-server process has terminated: exit status 1"}
        status, value = super().post(path, body) or (404, {})
        return status, value | ({"parameters": ""} if path == "/api/show" else {})


def test_the_context_of_a_model_that_is_not_loaded_yet_is_known_before_its_first_prompt(
    run: Any, open_seat: Any
) -> None:
    engine = run(LateOllama(FakeModel("m", context=100)))
    runner, _ = open_seat(engine)
    assert runner.capability.models[0].context is None
    with pytest.raises(StageError) as caught:
        chat(runner, "m", "word " * 300)
    assert caught.value.details["endpoint_code"] == "context_length_exceeded"
    assert engine.requests == []
    assert chat(runner, "m")["content"] == "hello there"


def test_a_load_for_a_request_that_fails_blames_the_model_and_leaves_the_others(
    run: Any, open_seat: Any
) -> None:
    engine = run(LateOllama(FakeModel("bad"), FakeModel("good", is_loaded=True)))
    engine.is_broken = True
    runner, _ = open_seat(engine)
    with pytest.raises(ModelUnavailable) as caught:
        chat(runner, "bad")
    assert "exit status 1" in str(caught.value.reason)
    assert chat(runner, "good")["content"] == "hello there"
    assert not runner.fault


def test_models_that_come_and_go_change_the_offer(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("a"), FakeModel("b")))
    runner, changes = open_seat(engine)
    engine.models = [FakeModel("b"), FakeModel("c")]
    runner.look()
    assert [model.name for model in runner.capability.models] == ["b", "c"]
    assert changes == [1]
    runner.look()
    assert changes == [1]


def test_models_that_the_owner_chose_stay_the_only_ones(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("a"), FakeModel("b")))
    runner, _ = open_seat(engine, models=["a", "b"])
    engine.models.append(FakeModel("c"))
    runner.look()
    assert [model.name for model in runner.capability.models] == ["a", "b"]


def test_names_that_the_engine_does_not_have_are_reported_with_those_that_it_has(
    run: Any, open_seat: Any
) -> None:
    engine = run(FakeOllama(FakeModel("a")))
    missing = probe({"url": engine.url, "models": ["qwen"]}).missing
    runner, _ = open_seat(engine, models=["qwen"])
    for text in ("\n".join(missing), runner.fault):
        assert "(qwen); it has a" in text


def test_an_engine_that_ends_is_a_fault_until_one_listens_again(run: Any, open_seat: Any) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(FakeOllama(FakeModel("a")))
        runner, changes = open_seat(engine)
        port = engine.port
    wait_for(lambda: runner.fault)
    assert str(port) in runner.fault
    with pytest.raises(SeatUnreachable):
        chat(runner, "a")
    run(FakeVllm(FakeModel("z"), port=port))  # another program, with other models
    wait_for(lambda: not runner.fault)
    assert [model.name for model in runner.capability.models] == ["z"]
    assert runner.capability.engine == "vllm"
    assert len(changes) == 2


def test_an_engine_without_models_is_no_use(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("a")))
    runner, _ = open_seat(engine)
    engine.models = []
    runner.look()
    assert runner.fault
    assert runner.capability.models == ()


def test_a_seat_loads_and_unloads_what_it_lends(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("m:latest")))
    runner, _ = open_seat(engine)
    runner.load("m", StageContext())
    assert engine.models[0].is_loaded
    runner.unload("m")
    assert not engine.models[0].is_loaded
    with pytest.raises(SeatUnavailable):
        runner.load("other", StageContext())


def test_a_model_in_use_is_not_unloaded(run: Any, open_seat: Any) -> None:
    engine = run(FakeOllama(FakeModel("m")))
    engine.pause = 0.5
    runner, _ = open_seat(engine)
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    thread = threading.Thread(target=chat, args=(runner, "m"), kwargs={"context": context})
    thread.start()
    wait_for(lambda: pieces)
    with pytest.raises(SeatUnavailable):
        runner.unload("m")
    thread.join()
    runner.unload("m")


def test_an_order_that_fails_says_why(run: Any, open_seat: Any) -> None:
    runner, _ = open_seat(run(FakeVllm(FakeModel("m"))))
    with pytest.raises(SeatUnavailable) as caught:
        runner.unload("m")
    assert "sleep" in str(caught.value.details["reason"])


# -- what no engine should say


@pytest.mark.parametrize(
    "items",
    [
        [FakeModel(""), FakeModel("m")],
        [FakeModel("\ud800"), FakeModel("m")],  # half of a pair of JSON's escapes
        [FakeModel("a\nb"), FakeModel("a\0b"), FakeModel("m")],
        [FakeModel("x" * 1_000_000), FakeModel("m")],
        [FakeModel("m"), FakeModel("m"), FakeModel("any")],
    ],
)
def test_models_whose_names_cannot_be_used_are_left_out(
    run: Any, open_seat: Any, items: list[FakeModel]
) -> None:
    runner, _ = open_seat(run(FakeVllm(*items)))
    assert [model.name for model in runner.capability.models] == ["m"]
    assert not runner.fault


def test_an_engine_that_lists_a_whole_catalogue_lends_a_part_and_says_so(run: Any) -> None:
    engine = run(FakeEngine(*[FakeModel(f"m{number}") for number in range(2000)]))
    report = probe({"url": engine.url, "name": "box"})
    assert len(model_names(report.found[0])) == 1000
    assert any(note.startswith("box: ") and "2000" in note for note in report.not_lent)


class _NonsenseHandler(Handler):
    """Lists a model and answers each request for it with `answer` and status 200."""

    answer_bytes = b""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "m"}]}
        self.answer(*((200, models) if self.path == "/v1/models" else (404, {})), {"Connection": "close"})

    def do_POST(self) -> None:
        self.body()
        self.answer(200, self.answer_bytes, {"Connection": "close"})


@pytest.mark.parametrize("emit", [None, lambda piece: None], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe",
        b"<html>hello</html>",
        b"null",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}',
        b"data: {\n\n",
        b'data: {"choices": 5}\n\n',
    ],
)
def test_nonsense_with_status_200_is_the_seats_fault(
    run: Any, open_seat: Any, answer: bytes, emit: Any
) -> None:
    handler = type("OwnHandler", (_NonsenseHandler,), {"answer_bytes": answer})
    runner, _ = open_seat(run(LocalServer(handler)))
    with pytest.raises(SeatUnavailable):
        chat(runner, "m", context=StageContext(emit=emit) if emit else None)
