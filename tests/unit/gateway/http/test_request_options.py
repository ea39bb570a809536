"""The options that the headers of a request set."""

from __future__ import annotations

from gridq.gateway.http.request_options import read_request_options


def test_gridqs_own_session_comes_before_the_conversation_of_the_request() -> None:
    assert read_request_options((), "ada", stream=False, session="@1").job_options.session == "@1"
    mine = read_request_options(((b"x-gridq-session", b"mine"),), "ada", stream=False, session="@1")
    assert mine.job_options.session == "mine"
