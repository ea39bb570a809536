"""The `openai` package's chats."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.compatibility.matrix import Matrix
from tests.compatibility.seats import Seat

CLIENT = "openai (Python), chat"
WORDS = "so it goes on"
HELLO: Any = [{"role": "user", "content": WORDS}]


@pytest.fixture(scope="module")
def client(seat: Seat) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{seat.url}/v1", api_key=seat.key, max_retries=0) as made:
        yield made


def test_plain(matrix: Matrix, seat: Seat, client: openai.OpenAI) -> None:
    with matrix.cell(CLIENT, "plain answer", seat.kind):
        answer = client.chat.completions.create(model=seat.model, messages=HELLO, max_tokens=20)
        assert answer.choices[0].message.content
        if not seat.is_local:
            assert answer.choices[0].message.content == WORDS
            assert seat.sent.texts == [("user", WORDS)]
