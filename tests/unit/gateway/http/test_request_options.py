"""The session of a request, as clients of model APIs name it."""

from __future__ import annotations

import pytest

from gridq.gateway.http.request_options import add_session, read_request_options

CLAUDE = (b"x-claude-code-session-id", b"0b2f")


def find_session(*headers: tuple[bytes, bytes], key: object = None) -> str | None:
    options = read_request_options(headers, "ada", stream=False)
    return add_session(options, headers, key).job_options.session


def test_a_clients_own_name_of_a_session_is_one_and_not_in_the_clear() -> None:
    session = find_session(key="Letters to Ada")
    assert session is not None
    assert "Ada" not in session
    assert session == find_session(key="Letters to Ada")
    assert session != find_session(key="Letters to Bob")
    assert find_session(CLAUDE) not in {None, session, "0b2f"}


def test_gridqs_own_header_comes_first_and_the_body_before_a_programs_header() -> None:
    assert find_session((b"x-gridq-session", b"mine"), CLAUDE, key="k") == "mine"
    assert find_session(CLAUDE, key="k") == find_session(key="k")


@pytest.mark.parametrize("key", [None, "", 3, ["k"], {"k": 1}])
def test_what_is_no_name_makes_no_session(key: object) -> None:
    assert find_session(key=key) is None


def test_a_name_may_be_any_text() -> None:
    assert find_session(key="\ud800 \U0001f600" * 1000) is not None
