"""Run grids of model seats in this process: the real profiles, at endpoints of the tests or on this CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from gridq import stages
from gridq.config.settings import Settings
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Json, StageCall
from gridq.seats import registry
from gridq.store.connection import connect
from tests.local_grid import LocalGrid
from workers.profiles.gpu import GpuProfile
from workers.profiles.llm import LlmProfile

MODELS = (
    "paced", "pausing", "held", "vast", "slow", "silent", "cut", "cut-first", "malformed", "error-event",
    "error-late", "ragged", "whole", "tools", "status-400", "status-404", "status-422", "org/Big Model",
)  # fmt: skip


class SeatRunner:
    """Runs stages like a seat of `profile`, the first one that it finds with `config`."""

    def __init__(self, profile: Profile, config: Any) -> None:
        self.profile = profile
        offer = profile.probe(config).found[0]
        self.capability: Any = profile.Capability.model_validate(offer.capability)
        profile.open(self.capability, offer.config)

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        return self.profile.run(stage, value, context)

    def find_queues(self, in_cooldown: Collection[str] = ()) -> Sequence[str]:
        """Return the queues that the seat serves while some of its models are in cooldown."""
        left = self.profile.exclude_models(self.capability, in_cooldown)
        return () if left is None else self.profile.queues(left)

    def advertise(self, name: str, grid: LocalGrid) -> None:
        """Advertise the seat `name` of `grid` as it is now."""
        session = grid.sessions[name]
        in_cooldown = session.list_model_cooldowns()
        left = self.profile.exclude_models(self.capability, {each.model for each in in_cooldown})
        why = session.unavailable
        advertisement = Advertisement(
            seat=name, machine="m", worker=f"{name.removeprefix('m.')}@m", incarnation="i",
            kind=self.profile.kind, concurrency=session.concurrency, queues=list(session.queues),
            started_at=1.0, capability=(left or self.capability).model_dump(mode="json"),
            models_in_cooldown=in_cooldown, state=why.state if why else "ready",
            reason=why.reason if why else "",
            until=why.until if why else None,
        )  # fmt: skip
        registry.advertise(session.scripts.client, session.scripts.keys, advertisement, 600.0)


class CpuRunner(SeatRunner):
    """Runs stages like a gpu seat on this machine's CPU, with gridq's own small model.

    Requests that state no temperature get 0: the model's answers, and where they end, are the same each time.
    """

    def __init__(self) -> None:
        super().__init__(GpuProfile(), {"gpus": False})

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if isinstance(value, dict) and isinstance(value.get("body"), dict):
            value = {**value, "body": {"temperature": 0, **value["body"]}}
        return super().__call__(stage, value, context)


class LlmRunner(SeatRunner):
    """Runs stages like an llm seat. `models`: those of the seat; default: all of OpenAIServer; None: those
    that its endpoint lists.
    """

    def __init__(self, url: str, models: Sequence[dict[str, Json]] | None = (), **table: Json) -> None:
        usual: list[dict[str, Json]] = [
            {"name": "echo", "families": ["small"]},
            {"name": "embed", "embeddings": True},
            *({"name": name} for name in MODELS),
        ]
        declared = [] if models is None else list(models) or usual
        seat = {"name": "api", "url": url, "allow_loopback": True, "models": declared, **table}
        super().__init__(LlmProfile(), [seat])


@contextmanager
def llm_grid(config: Settings, runners: Mapping[str, SeatRunner], *, concurrency: int) -> Iterator[LocalGrid]:
    """Run a grid of advertised model seats and a router; delete its keys afterwards."""
    with ExitStack() as stack:
        serves = {name: runner.find_queues() for name, runner in runners.items()}
        client = stack.enter_context(connect(config.broker_url.get_secret_value(), name="tests"))
        stack.callback(lambda: [client.unlink(key) for key in client.scan_iter(f"{config.prefix}*")])
        grid = LocalGrid(client, config, {**serves, "m.router": [queue_names.PURE]}, concurrency=concurrency)
        for name, runner in runners.items():
            session = grid.sessions[name]
            session.runner, session.find_queues = runner, runner.find_queues
            session.on_change = partial(runner.advertise, name, grid)
            stack.callback(runner.profile.close)
        stack.enter_context(grid)
        for name, runner in runners.items():
            runner.advertise(name, grid)
        yield grid
