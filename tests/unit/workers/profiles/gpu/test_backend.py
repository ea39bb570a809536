"""The requests of the backend to an engine, and those that it rejects itself."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from gridq.errors import StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.profiles.gpu.backend import EngineBackend


class Engine:
    """A model's process that repeats the prompt of the request."""

    def request(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        yield {"choices": [{"index": 0, "text": repr(body["prompt"]), "finish_reason": "stop"}]}


def complete(prompt: Any) -> Json:
    body = {"model": "m", "prompt": prompt}
    answer: Any = EngineBackend(Engine()).post("completions", body, StageContext())  # type: ignore[arg-type]
    return answer["choices"][0]["text"]


@pytest.mark.parametrize("prompt", ["Rain", [504, 3575], ""])
def test_a_single_prompt_may_be_in_a_list(prompt: Any) -> None:
    assert complete(prompt) == complete([prompt]) == repr(prompt)


@pytest.mark.parametrize("prompts", [["Rain", "Snow"], [[504], [3575]]])
def test_several_prompts_are_a_request_error(prompts: Any) -> None:
    with pytest.raises(StageError) as caught:
        complete(prompts)
    assert (caught.value.details["status"], caught.value.details["param"]) == (400, "prompt")
    assert caught.value.fix


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_tool_call_is_refused_by_name(choice: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": choice}
    with pytest.raises(StageError) as caught:
        EngineBackend(Engine()).post("chat/completions", body, StageContext())  # type: ignore[arg-type]
    assert (caught.value.details["status"], caught.value.details["param"]) == (400, "tool_choice")
