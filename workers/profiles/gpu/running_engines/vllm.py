"""vLLM's OpenAI-compatible server: https://docs.vllm.ai/en/stable/serving/online_serving.html."""

from __future__ import annotations

import time
from typing import ClassVar

from gridq.protocol.models import Json
from workers.profiles.gpu.running_engines.engine import (
    LOAD_SECONDS,
    UNLOAD_SECONDS,
    EngineModel,
    EngineState,
    RunningEngine,
    find_short_names,
    guess_uses,
    parse_tokens,
)
from workers.profiles.gpu.running_engines.engine_api import EngineApi, EngineFault

OWNER = "vllm"
POLL_SECONDS = 0.1


class Vllm(RunningEngine):
    """One model, in memory while the server runs. In sleep mode (`--enable-sleep-mode` and
    VLLM_SERVER_DEV_MODE=1) it can give the memory back, and a request needs it to be woken first.

    It does not say how many requests it runs at once (`--max-num-seqs`).
    """

    kind: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM"
    ports: ClassVar[tuple[int, ...]] = (8000,)
    default_slots: ClassVar[int] = 8
    loads_by_order: ClassVar[bool] = True

    @classmethod
    def recognizes(cls, api: EngineApi) -> bool:
        if not isinstance(api.get("version").fields.get("version"), str):
            return False
        reply = api.get("v1/models")
        items = reply.fields.get("data")
        return reply.status == 401 or (
            isinstance(items, list)
            and any(isinstance(each, dict) and each.get("owned_by") == OWNER for each in items)
        )

    def read_state(self) -> EngineState:
        version = self.api.get("version").fields.get("version")
        items = self._read_listed_models()
        is_awake = not self._is_sleeping()
        models = tuple(
            EngineModel(
                item["id"],
                context=parse_tokens(item.get("max_model_len")),
                is_loaded=is_awake,
                aliases=find_short_names(item["id"]),
                **guess_uses(item["id"]),
            )
            for item in items
        )
        return EngineState(str(version or ""), models)

    def load(self, model: str) -> None:
        """Wake the server, and return once it is awake."""
        self._order("wake_up", LOAD_SECONDS, wanted=False)

    def unload(self, model: str) -> None:
        """Let the server sleep: the weights move to the machine's memory, the rest is given back.

        Its other users' requests may end first: without `mode=wait` it would abort them.
        """
        self._order("sleep?level=1&mode=wait", UNLOAD_SECONDS, wanted=True)

    def _order(self, path: str, seconds: float, *, wanted: bool) -> None:
        try:
            self.api.order(path, None, seconds)
        except EngineFault as fault:
            if str(fault).startswith("HTTP 404"):
                raise EngineFault(
                    "vLLM runs without its sleep mode (--enable-sleep-mode and VLLM_SERVER_DEV_MODE=1)"
                ) from None
            raise
        until = time.monotonic() + seconds
        while self._is_sleeping() != wanted:
            if time.monotonic() > until:
                raise EngineFault(f"vLLM is still {'awake' if wanted else 'asleep'} after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _is_sleeping(self) -> bool:
        """Return whether it sleeps. Without the sleep mode it has no such path, and never does."""
        sleeping: Json = self.api.get("is_sleeping").fields.get("is_sleeping")
        return sleeping is True
