"""Find the engines that run on this machine, at their usual ports and at addresses that the owner names."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from workers.profiles.gpu.running_engines.engine import EngineState, RunningEngine
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault, EngineUnreachable
from workers.profiles.gpu.running_engines.engine_table import read_port
from workers.profiles.gpu.running_engines.llama_server import LlamaServer
from workers.profiles.gpu.running_engines.lm_studio import LMStudio
from workers.profiles.gpu.running_engines.local_ai import LocalAI
from workers.profiles.gpu.running_engines.ollama import Ollama
from workers.profiles.gpu.running_engines.openai_compatible import Mlx, OpenAICompatible
from workers.profiles.gpu.running_engines.sglang import SGLang
from workers.profiles.gpu.running_engines.tgi import Tgi
from workers.profiles.gpu.running_engines.vllm import Vllm

KINDS: tuple[type[RunningEngine], ...] = (LocalAI, Ollama, LlamaServer, LMStudio, Vllm, SGLang, Tgi, Mlx)
"""The engines that have something of their own to be known by, in the order in which they are tried: LocalAI
also answers Ollama's API.
"""

USUAL_PORTS = tuple(dict.fromkeys(port for kind in KINDS for port in kind.ports))
FIND_SECONDS = 1.6
"""Time for all engines together. A probe has two seconds."""

CONNECT_SECONDS = 0.2

MAX_LOOKS = 5
"""Looks after which a program that is no engine is left alone. An engine that starts may look like one."""

LOADING = 503
"""The status of llama-server while it loads its model, and of others that are not ready."""

NOTHING_YET = EngineState()
GRIDQ_HEADERS = "x-gridq-"


class OwnGateway(EngineFault):
    """The address is that of a gateway of gridq, whose seats are engines already."""


class NoEngine(EngineFault):
    """The program at the address is no engine that gridq knows."""


@dataclass(frozen=True)
class FoundEngine:
    """What was found at `url`, an engine's root: the engine and its state, or what is wrong there.

    `engine` is None if nothing that gridq can use is there.
    """

    url: str
    engine: RunningEngine | None = None
    state: EngineState = NOTHING_YET
    fault: str = ""
    is_other: bool = False
    """True if the program there is none to lend: gridq's own gateway, or no engine."""


def identify(api: EngineApi, *, is_named: bool) -> RunningEngine:
    """Return the engine behind `api`. `is_named`: its owner says that there is one, so that any server of the
    OpenAI API format will do.

    Raises EngineUnreachable; OwnGateway, NoEngine and other EngineFaults.
    """
    first = api.get("props")
    if any(name.startswith(GRIDQ_HEADERS) for name in first.headers):
        raise OwnGateway("it is a gateway of gridq")
    if first.status == LOADING:
        raise EngineFault("it is still loading its model")
    kinds: list[type[RunningEngine]] = [*KINDS, *([OpenAICompatible] if is_named else [])]
    for kind in kinds:
        if kind.recognizes(api):
            return kind(api)
    raise NoEngine("gridq does not know this program: it has no OpenAI-compatible API at /v1")


def look_at(url: str, get_key: Callable[[], str | None], *, is_named: bool) -> FoundEngine:
    """Return what runs at `url`, with its state."""
    api = EngineApi(url, get_key)
    try:
        return _look(api, is_named=is_named)
    finally:
        api.close()


def _look(api: EngineApi, *, is_named: bool) -> FoundEngine:
    url = api.url
    try:
        engine = identify(api, is_named=is_named)
    except EngineUnreachable as exc:
        return FoundEngine(url, fault=f"nothing answers there ({exc})")
    except EngineFault as fault:
        return FoundEngine(url, fault=str(fault), is_other=isinstance(fault, NoEngine | OwnGateway))
    try:
        return FoundEngine(url, engine, engine.read_state())
    except EngineUnreachable:
        return FoundEngine(url, fault="it has just ended")
    except EngineFault as fault:
        return FoundEngine(url, engine, fault=str(fault))


class NewEngines:
    """Looks for engines that have come to the usual ports `ports` since the last look.

    A port where nothing listens costs one refused connection. A program that is no engine is asked MAX_LOOKS
    times while it listens, and an engine until it has models.
    """

    def __init__(self, ports: Collection[int] = USUAL_PORTS) -> None:
        self._ports = ports
        self._looks: dict[int, int] = {}

    def look(self) -> bool:
        """Return whether a new one has models."""
        is_new = False
        for port in self._ports:
            if not _is_listening(port):
                self._looks.pop(port, None)
                continue
            looks = self._looks.get(port, 0)
            if looks >= MAX_LOOKS:
                continue
            found = look_at(f"http://127.0.0.1:{port}", lambda: None, is_named=False)
            has_models = bool(found.state.models)
            self._looks[port] = MAX_LOOKS if has_models else looks + found.is_other
            is_new = is_new or has_models
        return is_new


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(CONNECT_SECONDS)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def look_at_all(
    named: Sequence[tuple[str, Callable[[], str | None]]], besides: Collection[int] = ()
) -> tuple[list[FoundEngine], list[FoundEngine]]:
    """Return what runs at each of the `named` addresses, in their order, and the engines at the ports
    `besides`, where everything else is ignored. The answer takes at most FIND_SECONDS.
    """
    jobs: list[tuple[str, Callable[[], str | None], bool]] = [(url, key, True) for url, key in named]
    taken = {read_port(url) for url, _ in named}
    jobs += [(f"http://127.0.0.1:{port}", lambda: None, False) for port in besides if port not in taken]
    found: dict[int, FoundEngine] = {}

    def look(at: int, url: str, get_key: Callable[[], str | None], is_named: bool) -> None:
        found[at] = look_at(url, get_key, is_named=is_named)

    threads = [
        threading.Thread(target=look, args=(at, *job), name="gridq-find", daemon=True)
        for at, job in enumerate(jobs)
    ]
    until = time.monotonic() + FIND_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = f"it did not answer within {FIND_SECONDS:g} s"
    results = [found.get(at, FoundEngine(url, fault=late)) for at, (url, _, _) in enumerate(jobs)]
    unnamed = [each for each in results[len(named) :] if each.engine is not None]
    return results[: len(named)], unnamed
