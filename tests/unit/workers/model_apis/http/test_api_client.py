"""The body of a request as it is sent."""

from __future__ import annotations

import json

import pytest

from workers.model_apis.http.api_client import _encode_body


@pytest.mark.parametrize("text", ["Grüße, 世界", "half \ud83d", "😀"])
def test_a_body_is_utf_8_and_reads_back_the_same(text: str):
    encoded = _encode_body({"text": text})
    assert json.loads(encoded.decode("utf-8")) == {"text": text}
    assert (b"\\u" in encoded) == ("\ud83d" in text), "escapes make a body up to three times longer"
