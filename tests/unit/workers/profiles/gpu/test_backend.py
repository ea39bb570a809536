"""The requests of the backend to an engine, and those that it rejects itself."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.profiles.gpu.backend import EngineBackend
from workers.profiles.gpu.model_process import LoadOrder


class Engine:
    """A model's process that repeats the prompt of the request."""

    order = LoadOrder("m", "xllamacpp", Path("m.gguf"), 512, 1, 1, 0, False, {})

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


class ChatEngine(Engine):
    """A model's process that keeps the request."""

    def __init__(self) -> None:
        self.body: dict[str, Json] = {}

    def request(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        self.body = body
        yield {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}

    def reads_field(self, name: str, context: StageContext) -> bool:
        return True


def test_an_engine_gets_what_it_knows_and_the_rest_is_told() -> None:
    engine, context = ChatEngine(), StageContext()
    messages = [{"role": "user", "content": "x"}]
    passed = {"temperature": 0, "seed": 1, "top_k": 3, "mirostat": 2, "logit_bias": {"5": 1}}
    hints = {
        "user": "ada",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "verbosity": "low",
    }
    body = {"model": "m", "messages": messages, "max_completion_tokens": 5, "stop": None, **passed, **hints}
    EngineBackend(engine).post("chat/completions", body, context)  # type: ignore[arg-type]
    assert engine.body == {"messages": messages, "max_tokens": 5, **passed}
    assert context.dropped_fields == ["user", "metadata", "verbosity"]


@pytest.mark.parametrize("most", [512, 513, 2**31, 2**63, 10**30])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_engine_is_never_asked_for_more_tokens_than_its_context(field: str, most: int) -> None:
    """Of 2**31 it made a negative number, and of 2**63 one token."""
    engine = ChatEngine()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], field: most}
    EngineBackend(engine).post("chat/completions", body, StageContext())  # type: ignore[arg-type]
    assert engine.body["max_tokens"] == 512


@pytest.mark.parametrize("field", ["web_search_options", "audio", "moderation"])
def test_what_an_engine_cannot_do_is_refused_by_name(field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], field: {"a": "b"}}
    with pytest.raises(StageError) as caught:
        EngineBackend(ChatEngine()).post("chat/completions", body, StageContext())  # type: ignore[arg-type]
    assert (caught.value.details["status"], caught.value.details["param"]) == (400, field)


class BlindEngine(ChatEngine):
    """A model's process whose chat template reads neither tools nor an effort."""

    def reads_field(self, name: str, context: StageContext) -> bool:
        return False


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    ],
)
def test_what_a_model_would_not_see_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(StageError) as caught:
        EngineBackend(BlindEngine()).post("chat/completions", body, StageContext())  # type: ignore[arg-type]
    assert (caught.value.details["status"], caught.value.details["param"]) == (400, param)


def test_tools_that_may_not_be_called_and_an_effort_without_effect_are_left_out() -> None:
    engine, context = BlindEngine(), StageContext()
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low"}
    body |= {"tools": [TOOL], "tool_choice": "none"}
    EngineBackend(engine).post("chat/completions", body, context)  # type: ignore[arg-type]
    assert engine.body == {"messages": body["messages"]}
    assert context.dropped_fields == ["reasoning_effort"]
