"""Text completions and embeddings of the `openai` package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.compatibility.contents import WORDS
from tests.compatibility.endpoints.openai import make_vector
from tests.compatibility.matrix import Matrix, find_hints
from tests.compatibility.seats import Seat

COMPLETIONS = "openai (Python), text completions"
EMBEDDINGS = "openai (Python), embeddings"


@pytest.fixture(scope="module")
def client(seat: Seat) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seat.url}/v1", api_key=seat.key, max_retries=0) as made:
        yield made


def make_request(seat: Seat, **fields: Any) -> Any:
    return {"model": seat.model, "prompt": WORDS, "temperature": 0, **fields}


def test_plain(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "plain answer", seat.kind):
        answer = client.completions.create(**make_request(seat))
        assert answer.choices[0].text
        assert answer.object == "text_completion"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        if not seat.is_local:
            assert answer.choices[0].text == WORDS
            assert seat.sent.texts == [("user", WORDS)]
            assert seat.sent.max_tokens == 16


def test_streamed(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "streamed answer", seat.kind):
        whole = client.completions.create(**make_request(seat)).choices[0]
        with client.completions.create(**make_request(seat), stream=True) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
        assert len(chunks) > 2
        assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_stop(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "stop texts", seat.kind):
        whole = client.completions.create(**make_request(seat)).choices[0].text
        stop = whole.split()[2]
        answer = client.completions.create(**make_request(seat, stop=stop))
        assert answer.choices[0].text == whole.partition(stop)[0]
        assert answer.choices[0].finish_reason == "stop"


def test_limit(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "token limit", seat.kind):
        answer = client.completions.create(**make_request(seat, max_tokens=2))
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2


def test_usage_in_a_stream(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "usage in a stream", seat.kind):
        options: Any = {"include_usage": True}
        with client.completions.create(
            **make_request(seat, max_tokens=4), stream=True, stream_options=options
        ) as stream:
            chunks = list(stream)
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4


def test_choices(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "several choices", seat.kind):
        answer = client.completions.create(**make_request(seat, n=2))
        assert [choice.index for choice in answer.choices] == [0, 1]


def test_logprobs(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "log probabilities", seat.kind):
        answer = client.completions.create(**make_request(seat, logprobs=1, max_tokens=4))
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert "".join(logprobs.tokens or ()) == answer.choices[0].text
        assert len(logprobs.token_logprobs or ()) == 4


def test_seed(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(COMPLETIONS, "seed", seat.kind):
        raw = client.completions.with_raw_response.create(**make_request(seat, seed=7))
        assert seat.is_local or seat.sent.seed == 7 or "seed" in find_hints(raw.headers)


def test_texts(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(EMBEDDINGS, "embeddings of text", seat.kind):
        texts = ["rain", "much snow"]
        answer = client.embeddings.create(model=seat.embedder, input=texts, encoding_format="float")
        vectors = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
        assert answer.usage.prompt_tokens > 0
        if seat.is_local:
            assert len(vectors[0]) == len(vectors[1]) > 2
            assert vectors[0] != vectors[1]
        else:
            assert vectors == [make_vector(text) for text in texts]


def test_base64(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """The package asks for base64 unless told otherwise, and unpacks it."""
    with matrix.cell(EMBEDDINGS, "embeddings as base64", seat.kind):
        packed = client.embeddings.create(model=seat.embedder, input="rain").data[0].embedding
        raw = client.embeddings.create(model=seat.embedder, input="rain", encoding_format="base64")
        plain = client.embeddings.create(model=seat.embedder, input="rain", encoding_format="float")
        assert isinstance(raw.data[0].embedding, str)
        assert packed == pytest.approx(plain.data[0].embedding, abs=0.02)


def test_tokens(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    """Tokens have a meaning for OpenAI's own models only."""
    with matrix.cell(EMBEDDINGS, "embeddings of tokens", seat.kind):
        answer = client.embeddings.create(
            model=seat.embedder, input=[[1, 2, 3], [4]], encoding_format="float"
        )
        assert [item.embedding for item in answer.data] == [make_vector([1, 2, 3]), make_vector([4])]
