"""Ids of the grid's own, and ids and names as a seat takes them."""

from __future__ import annotations

import pytest

from workers.model_apis.identity.fitting import (
    ANTHROPIC_ID,
    ANTHROPIC_NAME,
    ANY_ID,
    GOOGLE_NAME,
    MISTRAL_ID,
    OPENAI_ID,
    OPENAI_NAME,
    CallIds,
    Rule,
    ToolNames,
    add_signature,
    make_call_id,
    restore_call_id,
    shorten_user,
    split_signature,
)

ENDPOINT_IDS = [
    "call_1",
    "functions.get_weather:0",
    "a-b_c",
    "é \n/+?",
    "toolu_q0123456789abcdef-x",
    "-",
    "_",
    "0",
]


@pytest.mark.parametrize("endpoint_id", ENDPOINT_IDS)
@pytest.mark.parametrize("prefix", ["call", "toolu"])
def test_an_id_contains_the_endpoints_and_fits_every_client(endpoint_id: str, prefix: str):
    made, other = (make_call_id(endpoint_id, prefix) for _ in range(2))
    assert made != other
    assert ANTHROPIC_ID.accepts(made)
    assert restore_call_id(made) == endpoint_id


@pytest.mark.parametrize("endpoint_id", [None, "", 7, "x" * 200])
def test_a_call_without_a_usable_id_gets_one(endpoint_id: object):
    made = make_call_id(endpoint_id)
    assert ANTHROPIC_ID.accepts(made)
    assert restore_call_id(made) == made
    assert made != make_call_id(endpoint_id)


@pytest.mark.parametrize("foreign", ["call_1", "toolu_01ABC", "call_q", "call_q0123456789abcdef_!", ""])
def test_ids_of_others_stay_as_they_are(foreign: str):
    assert restore_call_id(foreign) == foreign


@pytest.mark.parametrize("rule", [ANY_ID, OPENAI_ID, ANTHROPIC_ID, MISTRAL_ID])
def test_every_id_of_a_request_fits_the_seat_and_is_unique(rule: Rule):
    histories = [
        *ENDPOINT_IDS,
        "",
        "x" * 300,
        *(make_call_id("call_0") for _ in range(3)),
        "call_0",
        "call_0",
    ]
    ids = CallIds(rule)
    made = []
    for call_id in histories:
        made.append(ids.add_call(call_id))
        assert ids.find_result(call_id) == made[-1]
    assert len(set(made)) == len(histories)
    assert all(map(rule.accepts, made))
    again = CallIds(rule)
    assert [again.add_call(call_id) for call_id in histories] == made, "prompt caches need the same ids"


def test_a_seat_gets_its_own_id_back():
    ours = make_call_id("functions.get_weather:0", "toolu")
    assert CallIds(ANY_ID).add_call(ours) == "functions.get_weather:0"
    assert CallIds(ANTHROPIC_ID).add_call(ours) not in (ours, "functions.get_weather:0")
    assert MISTRAL_ID.accepts(CallIds(MISTRAL_ID).add_call(make_call_id("D681PevKs")))
    assert CallIds(MISTRAL_ID).add_call(make_call_id("D681PevKs")) == "D681PevKs"


@pytest.mark.parametrize("endpoint_id", [None, "call_1", "functions.get_weather:0", "a_sig_b"])
def test_a_signature_travels_in_the_id(endpoint_id: str | None):
    own = make_call_id(endpoint_id)
    signed = add_signature(own, "CiQB+/= é")
    assert ANTHROPIC_ID.accepts(signed)
    assert split_signature(signed) == (own, "CiQB+/= é")
    assert split_signature(own) == (own, None)
    assert CallIds(ANY_ID).add_call(signed) == CallIds(ANY_ID).add_call(own)


@pytest.mark.parametrize("foreign", ["call_sig_ABC", "toolu_q0123456789abcdef_sig_1", "_sig_", ""])
def test_ids_of_others_have_no_signature(foreign: str):
    assert split_signature(foreign) == (foreign, None)


def test_results_of_parallel_calls_with_one_id_go_to_them_in_order():
    ids = CallIds(ANTHROPIC_ID)
    calls = [ids.add_call("call_0"), ids.add_call("call_0")]
    assert calls[0] != calls[1]
    assert [ids.find_result("call_0"), ids.find_result("call_0")] == calls
    later = ids.add_call("call_0")
    assert ids.find_result("call_0") == later


@pytest.mark.parametrize("rule", [OPENAI_NAME, ANTHROPIC_NAME, GOOGLE_NAME])
def test_names_are_fitted_one_to_one_and_back(rule: Rule):
    long = "mcp__plugin_with_a_long_name__" + "x" * 120
    stated = ["weather", "a.b", "a_b", "a/b", "0start", "", "größe", long, f"{long}y"]
    names = ToolNames(rule, stated)
    fitted = [names.fit(name) for name in stated]
    assert len(set(fitted)) == len(stated)
    assert all(isinstance(name, str) and rule.accepts(name) for name in fitted)
    assert [names.restore(name) for name in fitted] == stated
    assert names.fit("weather") == "weather"
    assert names.restore("unknown") == "unknown"
    assert [ToolNames(rule, reversed(stated)).fit(name) for name in stated] == fitted


def test_without_a_rule_names_stay():
    assert ToolNames(None, ["a.b"]).fit("a.b") == "a.b"


def test_a_long_user_becomes_its_hash():
    long = "user_" + "a" * 145
    assert len(shorten_user(long, "user")) <= 64
    assert shorten_user(long, "user") != shorten_user(f"{long}b", "user")
    assert shorten_user(long, "user_id") == long
    assert shorten_user("u", "user") == "u"


def test_many_calls_may_share_one_id() -> None:
    """The time grows with their number. It grew with its square, and nothing could stop it."""
    first, later = CallIds(MISTRAL_ID), CallIds(MISTRAL_ID)
    ids = [first.add_call("a") for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    assert [later.add_call("a") for _ in range(100)] == ids[:100]
