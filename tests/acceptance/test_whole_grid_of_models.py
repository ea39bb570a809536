"""Four workers serve three models, one of them at a real llama-server, and a stage of user code that needs a
device, while engines and workers are killed.

Two homes share the CPU and its book. Each may use so much memory that one of the two models fits which both
have, beside a stage; so the models evict each other. Every request ends as it should, each answer is on the
bill once with what its client was told, and a witness outside of the grid sees no memory that was not
reserved.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from gridq.client import BrokerClient
from gridq.config.settings import Settings
from gridq.limits.ledger import RECORDED, Entry, read_entries
from gridq.protocol.states import StageState
from gridq.views.jobs import StageView
from tests import llama_server
from tests.acceptance.grids import NOTE
from tests.acceptance.homes import HomeFolder
from tests.acceptance.memory_witness import Witness, watch_memory
from tests.processes import is_running
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import load_catalogue
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE
from workers.supervisor.embedded_server import find_free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    NEEDS_SMALL_MODEL,
]

CAP_MB = 500
"""Each of the two models is planned with 290 to 330 MB."""

STAGE_MB = 160
SECONDS = 200.0
"""For any one event: the machine may be busy with other tests, and nothing here depends on time."""

LONG_STOP = "~" * 4000
"""Makes a request longer than those of all other clients, and costs the engine nothing."""

STORY = "Tell me a very long story about a small boat."

STAGES = (
    NOTE
    + f"""
import hashlib
from gridq import Gpu, stage

@stage(effects=["Process"], input="Any", output="Any")
def prepare(value):
    return value

@stage(effects=[Gpu(memory_mb={STAGE_MB}, backend="cpu", seconds=1)], input="Any", output="Any")
def compute(value):
    digest = b""
    for _ in range(100_000):
        digest = hashlib.sha256(digest).digest()
    note(value["file"], value["number"])
    return value["number"]
"""
)
GRAPH = {
    "root": {
        "op": "Sequential",
        "stages": [{"op": "Stage", "id": "prepare"}, {"op": "Stage", "id": "compute"}],
    }
}


@dataclass(frozen=True)
class Reply:
    """A whole answer: its job, and the use that the client was told."""

    job: str
    tokens_in: int
    tokens_out: int


class Machines:
    """Two homes on this machine, whose grid is that of the first."""

    def __init__(self, folder: Path, port: int) -> None:
        self.book = folder / "books" / "cpu.json"
        (folder / "own_stages.py").write_text(STAGES)
        file = next(each for each in load_catalogue() if each.name == "smollm2-135m-instruct").locate_file()
        table = f"[gpu]\ngpus = false\nconcurrency = 4\nmemory_mb = {CAP_MB}\nprompt_cache_mb = 16\n"
        for name, context in (("one", 1024), ("two", 1280)):
            table += f'[[gpu.models]]\nname = "{name}"\nfile = "{file}"\ncontext = {context}\n'
        engine = f'[[gpu.engines]]\nurl = "http://127.0.0.1:{port}"\nname = "box"\n'
        self.homes = [
            self._make_home(folder / name, table + more)
            for name, more in (("first", engine + "[local]\nconcurrency = 2\n"), ("second", ""))
        ]
        self.first, self.second = self.homes

    def _make_home(self, folder: Path, seats: str) -> HomeFolder:
        folder.mkdir()
        home = HomeFolder(folder, seats)
        home.configure(
            'profiles = ["gpu"]\ndrain = 1\nheartbeat = 1\nadmission_wait = 60\nlease_ms = 20000\n'
        )
        home.env[BOOKS_VARIABLE] = str(self.book.parent)
        home.env |= {"GRIDQ_STAGES": "own_stages", "GRIDQ_GATEWAY_PORT": "0"}
        home.env["PYTHONPATH"] = os.pathsep.join((str(folder.parent), home.env["PYTHONPATH"]))
        return home

    def start(self) -> None:
        self.first.start("up", "--no-flower", "--seat", "cpu", "--seat", "box", "--seat", "local")
        state = await_ready(self.first, "grid")
        self.url = state["gateway"]["url"]
        server = state["server"]
        token = self.first("token", "create").stdout.strip()
        self.second.start("join", server, "--token", token, "--seat", "cpu")
        self.cpus = [f"{state['machine']}.cpu", f"{await_ready(self.second, 'worker')['machine']}.cpu"]
        config = Settings(home=self.first.path, **read_settings(self.first))
        self.client = BrokerClient(config=config)

    def find_engine(self, home: HomeFolder, model: str) -> int:
        """Return the process of a loaded model; 0 if it is not loaded."""
        try:
            entries = json.loads(self.book.read_text())["entries"].values()
        except (FileNotFoundError, KeyError):
            return 0
        found = [
            each["child"][0]
            for each in entries
            if each["holder"].startswith(f"{home.path}:") and each["model"] == model and each["is_loaded"]
        ]
        return next((pid for pid in found if is_running(pid)), 0)

    def load(self, model: str, asker: Asker) -> int:
        """Have the first CPU seat load a model. Return its process."""

        def find() -> int:
            asker.ask(model, pin=self.cpus[0])
            return self.find_engine(self.first, model)

        return wait_for(find, SECONDS)

    def read_stage(self, name: str) -> StageView | None:
        """Return the stage of the job with this name, None while there is none."""
        job = next((each.job for each in self.client.jobs(limit=200) if each.name == name), None)
        stages = self.client.view(job).stages if job else []
        return stages[0] if stages else None

    def list_queues(self, seat: str) -> list[str]:
        return next((each.queues for each in self.client.workers() if each.seat.endswith(f".{seat}")), [])

    def await_run(self, name: str, worker: str) -> None:
        wait_for(
            lambda: self.read_stage(name),
            SECONDS,
            true=lambda stage: stage and stage.state is StageState.RUNNING and worker in stage.seat,
        )

    def end(self) -> None:
        for home in reversed(self.homes):
            home.end()


def await_ready(home: HomeFolder, name: str) -> dict[str, Any]:
    """Wait until all programs of a home are live, on a busy machine; return its record."""
    return wait_for(
        lambda: home.state(name), SECONDS, true=lambda state: state.get("ready"), explain=home.read_log
    )


def read_settings(home: HomeFolder) -> dict[str, Any]:
    """Return the settings with which the programs of a home reach their server."""
    code = (
        "import json; from gridq.config.settings import settings; found = settings(); "
        "print(json.dumps({'broker_url': found.get_broker_url(), 'prefix': found.prefix}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=home.env, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Asker:
    """Asks the grid by OpenAI's client, and keeps what it was answered."""

    def __init__(self, url: str) -> None:
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=SECONDS)
        self._lock = threading.Lock()
        self.replies: list[Reply] = []

    def ask(self, model: str, text: str = "Say hello.", *, tokens: int = 6, **headers: str) -> str:
        """Return the text of a whole answer."""
        raw = self._client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": text}],
            max_tokens=tokens,
            temperature=0,
            extra_headers=make_headers(headers),
        )
        answer = raw.parse()
        self._note(raw.headers["x-gridq-job"], answer.usage)
        assert answer.choices[0].finish_reason in {"stop", "length"}
        return answer.choices[0].message.content or ""

    def stream(
        self,
        model: str,
        *,
        tokens: int,
        on_first: Callable[[], object] = lambda: None,
        stop: str | None = None,
        **headers: str,
    ) -> tuple[float, float]:
        """Read a whole stream; return when its first and its last content came."""
        raw = self._client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": STORY}],
            max_tokens=tokens,
            temperature=0,
            stop=[stop] if stop else openai.omit,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=make_headers(headers),
        )
        times: list[float] = []
        usage = None
        for chunk in raw.parse():
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.monotonic())
                if len(times) == 1:
                    on_first()
        self._note(raw.headers["x-gridq-job"], usage)
        return times[0], times[-1]

    def _note(self, job: str, usage: Any) -> None:
        with self._lock:
            self.replies.append(Reply(job, usage.prompt_tokens, usage.completion_tokens))


def make_headers(options: dict[str, str]) -> dict[str, str]:
    return {f"x-gridq-{name}": value for name, value in options.items()}


class Load:
    """Clients that ask for models, and one that submits graphs of user code, one after another until `stop`.

    A failure ends its client and is raised by `end`.
    """

    def __init__(self, machines: Machines, asker: Asker, file: Path) -> None:
        self._machines, self._asker, self._file = machines, asker, file
        self.submitted = 0
        self.turns = {name: threading.Lock() for name in ("one", "two", "smol")}
        """Held by a client while it asks; by a test, to keep a client from asking."""
        self._over = {name: threading.Event() for name in ("one", "two", "smol", "stages")}
        self._pool = ThreadPoolExecutor(8)
        self._clients = [self._pool.submit(self._ask_on, model) for model in ("one", "two", "smol")]
        self._clients.append(self._pool.submit(self._submit_on))

    def _ask_on(self, model: str) -> None:
        for number in itertools.count():
            with self.turns[model]:
                if self._over[model].is_set():
                    return
                assert self._asker.ask(model, f"Name the number {number}.")
            time.sleep(0.01)  # a lock is not fair

    def _submit_on(self) -> None:
        while not self._over["stages"].is_set():
            self.submitted += 1
            value = {"file": str(self._file), "number": self.submitted}
            assert self._machines.client.run(GRAPH, value, timeout=SECONDS) == self.submitted

    def stop(self, *names: str) -> None:
        for name in names or self._over:
            self._over[name].set()

    def end(self) -> None:
        self.stop()
        for each in self._clients:
            each.result(SECONDS)
        self._pool.shutdown()


def count_unread(pid: int) -> int:
    """Return how many bytes a process has not read of its input."""
    with open(f"/proc/{pid}/fd/0", "rb") as pipe:
        return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"))[0])


def count_evictions(machines: Machines) -> dict[str, float]:
    name = 'model_evictions_total{cause="room"}'
    return {each.seat: each.metrics.get(name, 0) for each in machines.client.workers()}


def test_the_witness_sees_memory_over_a_limit_and_what_nobody_reserved(tmp_path: Path) -> None:
    """A program that calls itself an engine, and takes 200 MB."""
    code = "import sys; block = bytearray(b'x') * 200_000_000; print(flush=True); sys.stdin.read()"
    program = subprocess.Popen(
        [sys.executable, "-c", code, "workers.profiles.gpu.engine_process"],
        env={**os.environ, "HOME": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        program.stdout.readline()
        witness = Witness(tmp_path / "book.json", 150, [str(tmp_path)])
        witness.look()
    finally:
        program.communicate()
    assert any("of 150 MB taken" in each for each in witness.breaches)
    assert any("nobody reserved" in each for each in witness.breaches)


@pytest.fixture
def port() -> int:
    return find_free_port()


@pytest.fixture
def machines(tmp_path: Path, port: int) -> Iterator[Machines]:
    found = Machines(tmp_path, port)
    try:
        yield found
    finally:
        found.end()


def test_nothing_is_lost_overcommitted_or_billed_twice(machines: Machines, port: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        boxes = stack.enter_context(ExitStack())
        box = boxes.enter_context(llama_server.llama_server(port, "smol", "512", "4"))
        folders = [home.folder for home in machines.homes]
        end_watch = stack.enter_context(watch_memory(machines.book, CAP_MB, folders))
        machines.start()
        asker = Asker(machines.url)
        pool = stack.enter_context(ThreadPoolExecutor(8))
        load = Load(machines, asker, tmp_path / "witness")

        let_models_evict_each_other(machines, asker, pool)
        with load.turns["two"]:  # which would have the other model unloaded meanwhile
            stream_side_by_side(machines, asker, pool)
            kill_engine_before_the_first_token(machines, asker, pool)
            kill_engine_in_mid_stream(machines, asker)
            unload_a_model_in_use(machines, asker)
        kill_worker(machines, asker, pool)

        # The adopted server dies: what streams is cut, what has no token yet waits for the next server.
        held = kill_box(machines, asker, pool, box.pid)
        boxes.close()
        boxes.enter_context(llama_server.llama_server(port, "smol", "512", "4"))
        assert held.result(SECONDS)
        # It starts again with another model, while nobody asks for the one that it had.
        load.stop("smol")
        with load.turns["smol"]:
            boxes.close()
            boxes.enter_context(llama_server.llama_server(port, "other", "512", "2"))
            wait_for(lambda: machines.list_queues("box"), SECONDS, true=lambda queues: "llm:other" in queues)
        assert asker.ask("other")

        load.end()
        unload_all(machines)
        seen = end_watch()
        entries = list(read_entries(machines.client.redis, machines.client.keys))
        verified = machines.first.json("ledger", "verify")

    print(json.dumps(seen))
    assert verified["differences"] == []
    check_bill(entries, asker.replies, load.submitted)
    check_runs(entries, tmp_path / "witness", load.submitted)
    assert seen["breaches"] == []
    assert seen["looks"] > 100
    assert all(peak > CAP_MB / 3 for peak in seen["peaks"].values()), "it saw the engines"
    assert all(0 < mb <= CAP_MB for mb in seen["most_reserved"].values())
    assert seen["models"].keys() == {"one", "two", "compute"}
    assert seen["models"]["one"] + seen["models"]["two"] >= 7, "two at each seat, and one after each kill"


def let_models_evict_each_other(machines: Machines, asker: Asker, pool: ThreadPoolExecutor) -> None:
    """Have each seat of the CPU serve both models, of which its memory holds one."""
    pairs = [(seat, model) for seat in machines.cpus for model in ("one", "two")]
    asked = [pool.submit(asker.ask, model, pin=seat) for seat, model in pairs]
    assert all(each.result(SECONDS) for each in asked)
    wait_for(
        lambda: count_evictions(machines), SECONDS, true=lambda found: all(found[s] for s in machines.cpus)
    )


def stream_side_by_side(machines: Machines, asker: Asker, pool: ThreadPoolExecutor) -> None:
    """Read three streams of one model: each begins before another has ended."""
    spans = [pool.submit(asker.stream, "one", tokens=48, pin=machines.cpus[0]) for _ in range(3)]
    times = [each.result(SECONDS) for each in spans]
    assert max(began for began, _ in times) < min(ended for _, ended in times)


def kill_engine_before_the_first_token(machines: Machines, asker: Asker, pool: ThreadPoolExecutor) -> None:
    """Kill an engine that has the whole request: the client sees nothing of it."""
    seat = machines.cpus[0]
    engine = machines.load("one", asker)
    os.kill(engine, signal.SIGSTOP)
    held = pool.submit(asker.stream, "one", tokens=8, stop=LONG_STOP, pin=seat, name="held")
    wait_for(lambda: count_unread(engine), SECONDS, true=lambda count: count > len(LONG_STOP))
    os.kill(engine, signal.SIGKILL)
    held.result(SECONDS)
    stage = machines.read_stage("held")
    assert stage is not None
    assert stage.losses + stage.deaths == 1


def kill_engine_in_mid_stream(machines: Machines, asker: Asker) -> None:
    """Kill an engine after the first token: the client is told."""
    engine = machines.load("one", asker)
    with pytest.raises(openai.APIError) as cut:
        asker.stream(
            "one", tokens=600, pin=machines.cpus[0], on_first=lambda: os.kill(engine, signal.SIGKILL)
        )
    assert cut.value.code == "stage.stream_cut"


def unload_a_model_in_use(machines: Machines, asker: Asker) -> None:
    """Order a seat to unload a model that streams: it refuses. The engine stands still meanwhile."""
    engine = machines.load("one", asker)
    errors: list[str] = []

    def unload() -> None:
        os.kill(engine, signal.SIGSTOP)
        try:
            answer = machines.first("unload", machines.cpus[0], "one", "--json")
            errors.append(json.loads(answer.stdout)["error"]["code"])
        finally:
            os.kill(engine, signal.SIGCONT)

    asker.stream("one", tokens=24, pin=machines.cpus[0], on_first=unload)
    assert errors == ["seat.unavailable"]


def kill_worker(machines: Machines, asker: Asker, pool: ThreadPoolExecutor) -> None:
    """Kill a worker while it answers: the answer comes all the same."""
    seat = machines.cpus[1]
    answer = pool.submit(asker.ask, "two", STORY, tokens=60, pin=seat, name="moved")
    machines.await_run("moved", f"cpu@{seat.partition('.')[0]}")
    worker = machines.second.part("cpu", "worker")["pid"]
    os.kill(worker, signal.SIGKILL)
    assert answer.result(SECONDS)
    assert machines.second.part("cpu", "worker")["pid"] != worker


def kill_box(machines: Machines, asker: Asker, pool: ThreadPoolExecutor, pid: int) -> Future[str]:
    """Kill the adopted server while it streams and has another request. Return the answer to that one."""
    held: list[Future[str]] = []

    def hold() -> None:
        os.kill(pid, signal.SIGSTOP)
        held.append(pool.submit(asker.ask, "smol", name="held-box"))
        machines.await_run("held-box", "box@")
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(openai.APIError) as cut:
        asker.stream("smol", tokens=400, on_first=hold)
    assert cut.value.code == "stage.stream_cut"
    return held[0]


def unload_all(machines: Machines) -> None:
    """Order the idle models out of memory, and check that their processes are gone."""
    for home, seat in zip(machines.homes, machines.cpus, strict=True):
        for model in ("one", "two"):
            done = machines.first("unload", seat, model)
            assert done.returncode == 0, done.stderr
            assert not machines.find_engine(home, model)


def check_bill(entries: list[Entry], replies: list[Reply], stages: int) -> None:
    """Check that the ledger has each answer once with the client's use, and nothing else but waste."""
    recorded = [each for each in entries if each.what == RECORDED]
    billed = {(each.job, each.step): each for each in recorded}
    assert len(billed) == len(recorded)
    of_models = {each.job for each in recorded if each.queue.startswith("llm:")}
    assert of_models == {reply.job for reply in replies}
    assert len(of_models) == len(replies)
    for reply in replies:
        entry = billed[reply.job, 0]
        assert (entry.tokens_in, entry.tokens_out) == (reply.tokens_in, reply.tokens_out)
    on_devices = [each for each in recorded if each.queue.startswith("gpu:")]
    assert len(on_devices) == stages
    assert len(recorded) == len(replies) + stages, "the stages of the seat `local` use nothing"


def check_runs(entries: list[Entry], witness: Path, stages: int) -> None:
    """Check that each stage of user code ran, and again only if it was lost."""
    noted = list(map(int, witness.read_text().split()))
    assert set(noted) == set(range(1, stages + 1))
    lost = [each for each in entries if each.what != RECORDED and each.queue.startswith("gpu:")]
    assert len(noted) - stages <= len(lost)
