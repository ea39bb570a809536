"""Nothing that may be secret or somebody's text gets past the censor."""

from __future__ import annotations

import logging

import pytest

from gridq.config.settings import Settings
from gridq.telemetry.redaction import HIDDEN, TEXT_MAX_CHARACTERS, Secrets, format_traceback, strip_arguments


@pytest.mark.parametrize(
    "name",
    [
        "prompt",
        "Messages",
        "api_key",
        "X-Api-Key",
        "join_token",
        "Authorization",
        "output",
        "url",
        "redis_url",
    ],
)
def test_fields_with_secret_names_are_hidden(name: str) -> None:
    assert Secrets().hide({name: "canary"}) == {name: HIDDEN}
    assert Secrets().hide({"about": {name: ["canary"]}}) == {"about": {name: HIDDEN}}


def test_other_fields_are_unchanged() -> None:
    line = {
        "event": "stage done",
        "job": "3f2a",
        "tokens_out": 40,
        "run_ms": 1.5,
        "queues": ["llm:any"],
        "n": None,
    }
    assert Secrets().hide(line) == line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach redis://:s3cret@h:6379/0", "cannot reach redis://***@h:6379/0"),
        ("for url 'https://h/v1?key=canary&a=b'", "for url 'https://h/v1?***'"),
        ("Authorization: Bearer canary-canary", "Authorization: Bearer ***"),
        ("Incorrect API key provided: sk-canary123456", "Incorrect API key provided: ***"),
        ("contents of the message body was: ['canary'\n 'x']", f"contents of the message body was: {HIDDEN}"),
        ("Can't decode message body: DecodeError() [type:x]", f"Can't decode message body: {HIDDEN}"),
        ("one\n2026-01-01 forged\x1b[31m", "one 2026-01-01 forged [31m"),
        ("x" * 3000, "x" * TEXT_MAX_CHARACTERS + "…"),
    ],
)  # fmt: skip
def test_secrets_in_text_are_hidden(text: str, shown: str) -> None:
    assert Secrets().text(text) == shown


def test_known_secrets_are_hidden_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VENDOR_KEY", "plain-looking")
    monkeypatch.setenv("SHORT_TOKEN", "the")
    secrets = Secrets.of(Settings(broker_url="redis://:pass%2Fword1@h:1/0"))
    assert secrets.text("the plain-looking pass/word1 pass%2Fword1") == f"the {HIDDEN} {HIDDEN} {HIDDEN}"


def test_values_that_are_not_json_are_replaced_by_their_type() -> None:
    assert Secrets().hide({"thing": object(), "raw": b"canary"}) == {"thing": "<object>", "raw": "<bytes>"}


def _inner() -> None:
    raise ValueError("canary")


def test_a_traceback_has_neither_messages_nor_code() -> None:
    try:
        try:
            _inner()
        except ValueError as exc:
            raise RuntimeError("canary too") from exc
    except RuntimeError as exc:
        text = format_traceback(exc)
    assert "canary" not in text
    assert "in _inner\nValueError\nwhich led to\n" in text
    assert text.endswith("RuntimeError")


def test_a_cycle_of_causes_ends() -> None:
    one, two = ValueError(), TypeError()
    one.__cause__, two.__cause__ = two, one
    assert format_traceback(one) == "TypeError\nwhich led to\nValueError"


def test_a_failed_task_shows_only_the_type_of_its_error() -> None:
    about = {"id": "1", "name": "t", "exc": "ValueError('canary')", "args": "canary", "kwargs": "canary"}
    record = logging.LogRecord("celery.app.trace", 40, "", 0, "%(name)s %(exc)s %(args)s", (about,), None)
    assert strip_arguments(record)
    assert record.getMessage() == f"t ValueError {HIDDEN}"
