"""The HTTP benchmark runs in its smallest form and computes correctly. No test depends on measured times."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack

import anthropic
import openai
import pytest

from benchmarks import http, http_answers, http_load, http_sides, http_upstream, report, streams
from benchmarks.http_load import Sample, Token
from benchmarks.http_sides import Side
from benchmarks.measure import Figure, Measurement, MissingComparison, Ratio
from workers.supervisor.embedded_server import find_free_port
from workers.supervisor.programs import Program


@pytest.fixture(scope="module")
def upstream():
    with http_upstream.run_upstream() as (port, _):
        yield port


def test_each_caller_gets_its_answers(upstream: int) -> None:
    sample = http_load.run_closed_loop(
        upstream, http_load.build_chat_request(upstream, "Again."), connections=3, seconds=0.05
    )
    assert len(sample.seconds) >= 3
    assert all(0 < each <= sample.duration for each in sample.seconds)


def test_the_upstream_sends_the_requested_tokens(upstream: int) -> None:
    request = http_load.build_chat_request(upstream, "paced 4 100", stream=True)
    calls: list[int] = []
    found = http_load.read_streams(
        upstream, request, streams=3, over=0.01, while_open=lambda: calls.append(1)
    )
    assert [len(tokens) for tokens in found] == [4, 4, 4]
    assert calls
    for tokens in found:
        sent = [token.sent for token in tokens]
        assert sent == sorted(set(sent))
        assert all(token.delay >= 0 for token in tokens)


def test_chat_streams_begin_with_a_role_without_text(upstream: int) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{upstream}/v1", api_key="sk-bench") as client:
        chunks = list(
            client.chat.completions.create(
                model="bench",
                messages=[{"role": "user", "content": "paced 2 100"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        answer = client.chat.completions.create(model="bench", messages=[{"role": "user", "content": "Hi."}])
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert [bool(delta.content) for delta in deltas] == [False, True, True, False]
    assert chunks[-1].usage == answer.usage
    assert answer.choices[0].message.content == http_answers.TEXT


def test_responses_have_the_events_of_real_endpoints(upstream: int) -> None:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{upstream}/v1", api_key="sk-bench") as client:
        with client.responses.stream(model="bench", input="paced 2 100") as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        answer = client.responses.create(model="bench", input="Hi.")
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 2,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    assert len(streamed.output_text.split()) == 2
    assert answer.output_text == http_answers.TEXT


def test_messages_have_the_events_of_real_endpoints(upstream: int) -> None:
    with anthropic.Anthropic(base_url=f"http://127.0.0.1:{upstream}", api_key="sk-bench") as client:
        ask = {"model": "bench", "max_tokens": 9}
        with client.messages.stream(messages=[{"role": "user", "content": "paced 2 100"}], **ask) as stream:
            kinds = [event.type for event in stream if event.type != "text"]
            text = stream.get_final_text()
        answer = client.messages.create(messages=[{"role": "user", "content": "Hi."}], **ask)
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 2,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert len(text.split()) == 2
    assert answer.content[0].text == http_answers.TEXT


@pytest.mark.parametrize("build_request", [http_load.build_chat_request, http_load.build_responses_request])
def test_each_token_of_a_stream_is_read_once(upstream: int, build_request) -> None:
    request = build_request(upstream, "paced 3 100", stream=True)
    found = http_load.read_streams(upstream, request, streams=1, over=0.01, while_open=lambda: None)
    assert streams.count_wrong_tokens(found, 3) == 0


def test_one_first_token_for_each_answer(upstream: int) -> None:
    request = http_load.build_chat_request(upstream, "At once.", stream=True)
    assert len(http_load.measure_first_tokens(upstream, request, 3)) == 3


def test_a_refusal_is_no_answer(upstream: int) -> None:
    wrong = http_load.build_chat_request(upstream, "Hello.").replace(b"HTTP/1.1", b"HTTP/9.9", 1)
    assert not http_load.is_answered(upstream, wrong)
    assert http_load.is_answered(upstream, http_load.build_chat_request(upstream, "Hello."))


def test_the_pace_in_a_message_is_parsed() -> None:
    assert http_upstream.parse_pace("paced 60 5") == (60, 0.2, 0)
    assert http_upstream.parse_pace("paced 60 5 40") == (60, 0.2, 40)
    assert http_upstream.parse_pace("Hello there") == (http_upstream.TOKENS, 0.0, 0)


def test_a_sample_grows_by_its_rounds() -> None:
    sample = Sample([0.1, 0.2], 1.0)
    sample.add(Sample([0.3], 0.5))
    assert sample.per_second == 2


def test_only_tokens_sent_while_all_streams_are_open_count() -> None:
    first = [Token(0.0, 9.0), Token(2.0, 2.05), Token(4.0, 4.2)]
    second = [Token(1.0, 1.01), Token(3.0, 3.02), Token(5.0, 9.0)]
    late = [round(each, 3) for each in streams.compute_delays([first, second])]
    assert sorted(late) == [0.01, 0.02, 0.05, 0.2]
    with pytest.raises(RuntimeError, match="began"):
        streams.compute_delays([first[:1], second[2:]])


def test_lost_and_repeated_tokens_do_not_cancel_out() -> None:
    first, second = [Token(0.0, 1.0), Token(2.0, 3.0)], [Token(1.0, 2.0), Token(1.0, 2.0)]
    assert streams.count_wrong_tokens([first, first], 2) == 0
    assert streams.count_wrong_tokens([first, second], 2) == 2
    assert streams.count_wrong_tokens([first, []], 2) == 2


def test_memory_and_cpu_are_parsed_from_proc() -> None:
    assert http_sides.parse_pss("7f00-7fff ---p [rollup]\nRss:  9 kB\nPss:  3 kB\nPss_Dirty:  1 kB\n") == 3072
    with pytest.raises(ValueError, match="Pss"):
        http_sides.parse_pss("Rss: 9 kB\n")
    stat = "12 (a (b) c) S 1 12 12 0 -1 4194560 100 0 0 0 70 30 9 9 20 0 1 0 5 1 1"
    assert http_sides.parse_cpu_ticks(stat) == 100


def test_a_program_is_counted_with_its_children() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert child.pid in http_sides.list_process_tree(os.getpid())
        assert http_sides.read_shared_memory_mb(os.getpid()) > http_sides.read_shared_memory_mb(child.pid) > 1
        child.stdin.close()
    assert child.pid not in http_sides.list_process_tree(os.getpid())
    side = Side("both", 0, {"a": os.getpid(), "b": os.getpid()})
    assert side.read_cpu()["a"] > 0
    assert side.memory > 20


def test_a_failed_installation_is_reported(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "proxy"
    monkeypatch.setattr(http_sides, "LITELLM", "/nothing/here.whl")
    with pytest.raises(http_sides.ProgramUnavailable, match=r"here\.whl"):
        http_sides.install_litellm(folder)
    assert not (folder / "ready").exists()


def test_a_program_that_does_not_start_is_reported_with_its_last_log_line(tmp_path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such setting')")
    program = Program("proxy", command, dict(os.environ), tmp_path / "proxy.log")
    with ExitStack() as stack, pytest.raises(http_sides.ProgramUnavailable, match="no such setting"):
        http_sides.start_program(stack, program, find_free_port())


def test_a_missing_comparison_is_listed_with_its_reason() -> None:
    rows: list[Measurement] = [
        Ratio("requests", 300.0, 50.0, "requests/s", 5, at_most=False, worst=3, other="LiteLLM 1.0"),
        MissingComparison("memory", 250.0, "MB", "≤ 1", "no such package"),
        Figure("first token", 7.0, "ms", 12),
    ]
    text = report.replace_group("# Page\n", "http", rows, 0.1)
    assert "| measured | gridq | LiteLLM 1.0 | goal | ratio | |" in text
    assert "| requests | 300 requests/s | 50 requests/s | ≥ 5, at worst 3 × | **6.00** | met |" in text
    assert "| memory | 250 MB | | ≤ 1 × | | not compared: no such package |" in text
    assert "| first token | 7 ms | ≤ 12 ms | met |" in text
    assert rows[1].to_line().endswith("no such package")


@pytest.mark.slow
def test_all_rows_without_the_other_side() -> None:
    found = {each.name: each for each in http.run(rounds=1, seconds=0.3, firsts=4, litellm=False)}
    compared = [each for each in found.values() if isinstance(each, MissingComparison)]
    assert len(compared) == 6 * len(http.ROUTES) + 1
    assert all(each.ours > 0 for each in compared)
    beside = [each for each in found.values() if isinstance(each, Ratio)]
    assert [each.other for each in beside] == [http.BARE]
    assert all(each.theirs > 0 for each in beside)
    assert len(found) == len(compared) + len(beside) + 1


@pytest.mark.slow
def test_streams_lose_no_token_and_are_compared_with_the_code_of_a_commit() -> None:
    compared, late, lost, memory = streams.run(loads=[(3, 20)], rounds=1, duration=1.0, before="HEAD")
    assert isinstance(compared, Ratio)
    assert compared.ours > 0
    assert compared.theirs > 0
    assert isinstance(lost, Figure)
    assert lost.value == 0
    assert isinstance(late, Figure)
    assert isinstance(memory, Figure)


def test_a_commit_that_is_not_there_is_reported() -> None:
    with pytest.raises(http_sides.ProgramUnavailable, match="0000"), streams._check_out("0000"):
        pass
