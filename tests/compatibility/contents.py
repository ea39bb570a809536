"""What the tests of all clients send: texts, tools, schemas, and small media of real formats."""

from __future__ import annotations

import base64
import json
from typing import Any

from pydantic import BaseModel

WORDS = "so it goes on"
HELLO: Any = [{"role": "user", "content": WORDS}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "The weather in a city", "parameters": CITY}
CALL = 'Look.\nCALL weather {"city": "Bern"}'
TWO_CALLS = f'{CALL}\nCALL weather {{"city": "Oslo"}}'

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n1 0 obj << /Type /Catalog >> endobj\ntrailer << /Root 1 0 R >>\n%%EOF\n"
WAV = (
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00"
    b"\x80\x3e\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"
)


class City(BaseModel):
    """The structured answer."""

    city: str


def make_data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ask(text: str) -> Any:
    """Return the messages of one question."""
    return [{"role": "user", "content": text}]


def ask_for_city() -> Any:
    """Return messages to which the model answers with the JSON of Bern, with the word JSON in them."""
    question = {"role": "user", "content": json.dumps({"city": "Bern"})}
    return [{"role": "system", "content": "Answer with JSON."}, question]
