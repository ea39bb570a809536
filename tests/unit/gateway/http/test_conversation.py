"""The name of a request's conversation: the next turn has it too, other conversations have others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gridq.gateway.http.conversation import GUESSED, ConversationNames
from gridq.jobs.idempotency import make_fingerprint
from gridq.jobs.record import JobOptions

NAMES = ConversationNames("redis://:secret@localhost/0")
CLAUDE = (b"x-claude-code-session-id", b"0b2f")


def find(body: dict[str, Any] | None = None, *headers: tuple[bytes, bytes], agent: str = "ada") -> str | None:
    return NAMES.find(headers, {"model": "any", **(body or {})}, agent)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


BRIEF, KIND = "Be brief.", "Be kind."
ASKED = said("user", "What is the capital of France?")
MORE = [said("assistant", "Paris."), said("user", "And of Spain?")]
TEXT_PART = {"type": "text", "text": "What is the capital of France?"}
OTHER_PART = {"type": "text", "text": "What is the capital of Peru?"}


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"messages": [said("system", BRIEF), ASKED]}, {"messages": [said("system", KIND), ASKED]}),
        ({"system": "Be brief.", "messages": [ASKED]}, {"system": "Be kind.", "messages": [ASKED]}),
        ({"messages": [said("developer", BRIEF), ASKED]}, {"messages": [said("developer", KIND), ASKED]}),
        ({"instructions": "Be brief.", "input": [ASKED]}, {"instructions": "Be kind.", "input": [ASKED]}),
        ({"messages": [ASKED]}, {"messages": [said("user", "What is the capital of Peru?")]}),
        ({"messages": [said("user", [TEXT_PART])]}, {"messages": [said("user", [OTHER_PART])]}),
        ({"user": "u1", "messages": [ASKED]}, {"user": "u2", "messages": [ASKED]}),
        (
            {"metadata": {"user_id": "u1"}, "messages": [ASKED]},
            {"metadata": {"user_id": "u2"}, "messages": [ASKED]},
        ),
        ({"safety_identifier": "a", "input": [ASKED]}, {"safety_identifier": "b", "input": [ASKED]}),
    ],
)  # fmt: skip
def test_the_next_turn_has_the_same_name_and_another_conversation_has_not(
    first: dict[str, Any], other: dict[str, Any]
) -> None:
    field = "messages" if "messages" in first else "input"
    name = find(first)
    assert name is not None
    assert re.fullmatch(r"@@[0-9a-f]{24}", name)
    assert find({**first, field: first[field] + MORE}) == name
    assert find(other) not in {name, None}


def test_marks_of_what_is_to_be_kept_may_move() -> None:
    marked = {**TEXT_PART, "cache_control": {"type": "ephemeral"}}
    one = {"messages": [said("user", [marked])]}
    assert find(one) == find({"messages": [said("user", [TEXT_PART]), *MORE]})


def test_a_first_turn_may_be_a_text_and_the_next_a_list() -> None:
    assert find({"input": "Hi, I am Ada."}) == find({"input": [said("user", "Hi, I am Ada."), *MORE]})


def test_agents_and_models_have_conversations_of_their_own() -> None:
    body = {"messages": [ASKED]}
    assert len({find(body), find(body, agent="bob"), find({**body, "model": "small"})}) == 3


def test_of_a_long_text_its_end_and_its_length_count() -> None:
    texts = ["x" * 9000 + end for end in ("1", "2", "11")]
    assert len({find({"messages": [said("user", text)]}) for text in texts}) == 3


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [said("system", "Be brief.")]},
        {"messages": 3},
        {"messages": [3, None, "x"]},
        {"user": "u1", "messages": [said("user", [{"type": "image_url", "image_url": {"url": "data:"}}])]},
        {"input": [["x"], 1]},
        {"prompt": "short"},
        {"prompt": ["x" * 5000]},
        {"prompt_cache_key": ""},
        {"prompt_cache_key": 3},
        {"prompt_cache_key": ["k"]},
    ],
)
def test_what_tells_no_conversation_from_another_has_no_name(body: dict[str, Any]) -> None:
    assert find(body) is None


def test_a_prompt_without_messages_is_known_by_its_first_thousand_characters() -> None:
    text = "word " * 300
    assert find({"prompt": text}) == find({"prompt": text + "and more"}) is not None
    assert find({"prompt": text}) != find({"prompt": text[1:]})


def test_a_programs_own_name_comes_first_and_the_bodys_before_a_headers() -> None:
    body = {"messages": [ASKED]}
    key = find({**body, "prompt_cache_key": "Letters to Ada"})
    assert key is not None
    assert not key.startswith(GUESSED)
    assert "Ada" not in key
    assert find({"prompt_cache_key": "Letters to Ada"}, CLAUDE) == key
    assert find({"prompt_cache_key": "Letters to Bob"}) != key
    assert find(body, CLAUDE) == find({}, CLAUDE) not in {key, None}
    sub_agent = (b"x-claude-code-agent-id", b"7")
    assert find(body, CLAUDE, sub_agent) not in {find(body, CLAUDE), None}


def test_any_text_may_stand_anywhere() -> None:
    text = "\ud800 \U0001f600" * 3000
    assert find({"prompt_cache_key": text}) is not None
    assert find({"system": text, "messages": [said("user", text)], "user": text}) is not None


def test_names_need_the_password_of_the_server() -> None:
    def name(url: str) -> str | None:
        return ConversationNames(url).find((), {"messages": [ASKED]}, "ada")

    assert name("redis://:one@a:1/0") == name("rediss://user:one@b/2") == name("sentinel://:one@a,b/main")
    assert name("redis://:one@a/0") != name("redis://:two@a/0")
    for url in ("redis://a/0", "redis://a:6379/0?client_name=x@y"):
        assert name(url) != name(url), "each process has its own key"


def test_a_conversation_is_no_part_of_an_idempotent_submission() -> None:
    prints = [
        make_fingerprint(
            b"{}", b"1", JobOptions(agent="ada", idempotency_key="k", session=session), is_new_id=True
        )
        for session in (None, "@1", "@@2")
    ]
    assert len(set(prints)) == 1
