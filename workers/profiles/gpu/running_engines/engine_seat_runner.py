"""The seat of a running engine at work: it follows what the engine has, and sends it the stages."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from gridq.config.settings import settings
from gridq.errors import GridError, ModelUnavailable, SeatUnavailable, SeatUnreachable, StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from workers.model_apis import stage_runner, stages
from workers.model_apis.api_request import CHAT, COMPLETIONS, CONTEXT_LENGTH_EXCEEDED, EMBEDDINGS, ApiRequest
from workers.model_apis.context_wrappers import PricedContext
from workers.model_apis.demand import list_warm_queues
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.stages import ModelRequest
from workers.model_apis.token_estimates import count_characters
from workers.profiles.gpu.capability import GpuCapability
from workers.profiles.gpu.pricing import start_pricing
from workers.profiles.gpu.running_engines import finding
from workers.profiles.gpu.running_engines.engine import EngineState, RunningEngine
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault, EngineUnreachable
from workers.profiles.gpu.running_engines.engine_offers import EngineSeat, explain_no_models, make_capability
from workers.profiles.gpu.running_engines.launched_engine import LaunchedEngine

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Time between two looks at the engine: what it has, and what of that is loaded."""

POLL_SECONDS = 0.2
"""Interval at which a stage that waits for a load checks for its cancellation."""

MAX_FAULTS = 3
"""Looks in a row that an engine may fail, as one does that is busy, before it counts as gone."""

MAX_CHARACTERS_PER_TOKEN = 6
"""Text has fewer in each language: a prompt has at least as many tokens as this says."""

PROMPT_FIELDS = ("messages", "prompt", "input", "system", "instructions", "tools", "contents")
PARAMETERS = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input"}


class EngineSeatRunner:
    """Runs the stages of an engine's seat, and looks at the engine every LOOK_SECONDS.

    `capability` is what the seat offers at the moment. `on_change` is called when it changes, or when the
    engine goes or comes back.
    """

    def __init__(self, capability: GpuCapability, seat: EngineSeat, on_change: Callable[[], None]) -> None:
        self.capability = capability
        self._seat = seat
        self._on_change = on_change
        self._connect(seat.url)
        self._launched = self._make_launched() if seat.command else None
        self._engine: RunningEngine | None = None
        self._state = EngineState()
        self._fault = ""
        self._faults = 0
        self._look_now = threading.Event()
        self._is_closed = False
        self._load_lock = threading.Lock()
        self._lock = threading.Lock()
        self.use_seconds = 0.0
        """Seconds that stages have taken at the engine."""
        self._users: collections.Counter[str] = collections.Counter()  # stages that use a model now
        self._ordered: list[str] = []  # models whose load was ordered, and is not done
        if self._launched is None:
            self.look()
        else:
            self._fault = self._describe_launch("it is being started")
            self._launched.start()
        self._thread = threading.Thread(target=self._look_repeatedly, name="gridq-engine", daemon=True)
        self._thread.start()

    def _connect(self, url: str) -> None:
        """Use the engine at `url` from now on."""
        seat = self._seat
        self._url = url
        self._api = EngineApi(url, seat.read_key)
        self._client = OpenAIClient(f"{url}/v1", seat.read_key, silence=seat.silence, use_proxy=False)

    # -- the engine

    def _make_launched(self) -> LaunchedEngine:
        seat = self._seat
        log_file = settings().home / "logs" / f"engine-{self.capability.device}.log"
        return LaunchedEngine(
            seat.command,
            log_file,
            self._use_launched,
            env=seat.env,
            devices=seat.devices,
            memory_mb=seat.memory_mb,
            pass_env=seat.pass_env,
        )

    def _use_launched(self, url: str) -> None:
        """Talk to the engine that has just been started at `url`."""
        api, client = self._api, self._client
        self._connect(url)
        self._engine = None
        api.close()
        client.close()
        self._look_now.set()

    def _describe_launch(self, reason: str) -> str:
        return f"The engine {self._seat.command[0]} does not answer: {reason}"

    def look(self) -> None:
        """Read what the engine has now, and report it if it has changed."""
        before = (self.capability, self._fault)
        launched = self._launched
        try:
            if launched is not None and launched.reason:
                raise EngineUnreachable(launched.reason)
            if launched is not None:
                launched.measure_memory()
            self._state = self._read()
        except EngineUnreachable as exc:
            reason = f"Nothing answers at {self._url}: {exc}"
            if launched is not None:
                reason = self._describe_launch(launched.reason or "it is starting")
            self._fault = reason
        except EngineFault as fault:
            self._faults += 1
            if self._faults < MAX_FAULTS and self._state.models:
                return
            self._fault = f"The engine at {self._url} cannot be used: {fault}"
        else:
            self._faults = 0
            seat = self._seat.model_copy(update={"url": self._url})
            self.capability = make_capability(self.capability.device, seat, self._engine, self._state)
            named = seat.models if seat.is_limited else ()
            reason = "" if self.capability.models else explain_no_models(named, self._state)
            self._fault = reason and f"The engine at {self._url} {reason}"
        if (self.capability, self._fault) != before and not self._is_closed:
            self._on_change()

    def _read(self) -> EngineState:
        """Return the state of the engine: the one known, else the one that listens there by now.

        Raises EngineUnreachable and EngineFault.
        """
        if self._engine is not None:
            with contextlib.suppress(EngineFault):
                return self._engine.read_state()
        self._engine = finding.identify(self._api, is_named=self._seat.is_named)
        return self._engine.read_state()

    def _look_repeatedly(self) -> None:
        while not self._is_closed:
            self._look_now.wait(LOOK_SECONDS)
            self._look_now.clear()
            if self._is_closed:
                return
            try:
                self.look()
            except Exception:  # the server of the grid may be away; the next look reports again
                log.warning("The engine at %s could not be looked at", self._url, exc_info=True)

    @property
    def fault(self) -> str:
        """The reason why the engine cannot be used now; empty if it can."""
        return self._fault

    def list_loaded(self) -> list[str]:
        """Return the models that the engine has in memory, as of the last look."""
        lent = {model.name for model in self.capability.models}
        return [name for name in self._state.loaded if name in lent] if not self._fault else []

    def warm_queues(self) -> list[str]:
        """Return the queues whose first model is loaded."""
        return list_warm_queues(self.capability.models, self.list_loaded())

    def describe_loading(self) -> dict[str, Json]:
        """Return by queue the model that is loading, as far as the engine or this seat knows.
        No engine says the share that is done.
        """
        names = {*(model.name for model in self._state.models if model.is_loading), *self._ordered}
        return {
            queue: {"model": name, "share": None}
            for name in names
            for queue in list_warm_queues(self.capability.models, {name})
        }

    def load(self, model: str, context: StageContext) -> None:
        """Have the engine load `model`, and wait for it. Raises SeatUnavailable with the engine's reason."""
        context.check()
        self._order("load", self._find_model(model))

    def unload(self, model: str) -> None:
        """Have the engine unload `model`. Raises SeatUnavailable if stages of this seat use it, or with the
        engine's reason.
        """
        name = self._find_model(model)
        with self._lock:
            users = self._users[name]
        if users:
            raise SeatUnavailable(f"The model {name!r} is in use", {"model": name, "retry_after": 1})
        self._order("unload", name)

    def _find_model(self, model: str) -> str:
        """Return the engine's name of a model that the seat lends. Raises SeatUnavailable for another."""
        for each in self.capability.models:
            if model in {each.name, *each.families}:
                return each.name
        raise SeatUnavailable(f"The seat does not lend the model {model!r}", {"model": model})

    def _order(self, what: str, model: str) -> None:
        engine = self._engine
        if engine is None:
            raise SeatUnreachable(self._fault or "The engine is not known yet", {"retry_after": 1})
        is_load = what == "load"
        if is_load:
            self._ordered.append(model)
        try:
            with self._load_lock:
                (engine.load if is_load else engine.unload)(model)
        except EngineUnreachable as exc:
            raise SeatUnreachable(
                f"{engine.title} has ended", {"model": model, "reason": str(exc), "retry_after": 1}
            ) from None
        except EngineFault as fault:
            raise SeatUnavailable(
                f"{engine.title} could not {what} the model {model!r}", {"model": model, "reason": str(fault)}
            ) from None
        finally:
            if is_load:
                self._ordered.remove(model)
            self._look_now.set()

    # -- stages

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Send `stage` to the engine and return its output.

        Raises StageError for a wrong request or a prompt that is too long, SeatUnreachable if the engine is
        gone, ModelUnavailable if the model is, and what `ApiClient` raises.
        """
        request = stage_runner.parse_stage_input(stage, value)
        if self._fault:
            raise SeatUnreachable(self._fault, {"retry_after": 1})
        models = self.capability.models
        model = stages.choose_model(stage, request, models, in_cooldown=context.models_in_cooldown)
        context.check()
        context.use_model(model.name)
        self._check_length(request, model, context)
        priced = PricedContext(context, start_pricing(self._seat.price_per_hour))
        with self._lock:
            self._users[model.name] += 1
        began_at = time.monotonic()
        try:
            self._load_if_needed(model.name, context)
            return stage_runner.run_request(request, model.name, priced, self._client)
        except (SeatUnreachable, ModelUnavailable):
            self._look_now.set()
            raise
        finally:
            with self._lock:
                self._users[model.name] -= 1
                self.use_seconds += time.monotonic() - began_at

    def _load_if_needed(self, model: str, context: StageContext) -> None:
        """Have an engine that does not load a model for a request load it first."""
        if self._engine is not None and self._engine.loads_by_order and model not in self.list_loaded():
            self._load_for_request(model, context)

    def _load_for_request(self, model: str, context: StageContext) -> None:
        """Have the engine load `model`, and wait for it. If the client leaves, the load goes on.

        Raises ModelUnavailable with the engine's reason: its other models go on.
        """
        errors: list[GridError] = []

        def load() -> None:
            try:
                self._order("load", model)
            except SeatUnreachable as error:
                errors.append(error)
            except SeatUnavailable as error:
                errors.append(ModelUnavailable(error.message, error.details))

        thread = threading.Thread(target=load, name="gridq-engine-load", daemon=True)
        thread.start()
        while thread.is_alive():
            context.check()
            thread.join(POLL_SECONDS)
        if errors:
            raise errors[0]

    def _check_length(
        self, request: ModelRequest | ApiRequest, model: ModelOffer, context: StageContext
    ) -> None:
        """Raise StageError for a prompt that the engine would cut without saying so. Others refuse it."""
        if self._engine is None or not self._engine.truncates_prompts:
            return
        limit = model.context or self._load_for_limit(model.name, context)
        prompt = {name: request.body[name] for name in PROMPT_FIELDS if name in request.body}
        tokens = count_characters(prompt) // MAX_CHARACTERS_PER_TOKEN
        if limit is not None and tokens > limit:
            raise StageError(
                f"The prompt has at least {tokens} tokens, but {model.name} has a context of {limit}",
                {
                    "status": 400,
                    "endpoint_code": CONTEXT_LENGTH_EXCEEDED,
                    "param": PARAMETERS.get(request.path, "messages"),
                    "expected": f"at most {limit} tokens, the answer included",
                    "fix": "shorten the prompt, or have the engine load the model with a larger context",
                },
            )

    def _load_for_limit(self, model: str, context: StageContext) -> int | None:
        """Return the context of a model, in tokens, which the engine says once it has loaded the model, as
        the request would have it do anyway; None if it does not say it.
        """
        if model not in self.list_loaded():
            self._load_for_request(model, context)
            self.look()
        return next((each.context for each in self.capability.models if each.name == model), None)

    def close(self) -> None:
        """Drop the running calls. The engine goes on, unless this seat's worker started it."""
        self._is_closed = True
        self._look_now.set()
        if self._launched is not None:
            self._launched.close()
        with contextlib.suppress(RuntimeError):
            self._thread.join(1)
        self._client.close()
        self._api.close()
