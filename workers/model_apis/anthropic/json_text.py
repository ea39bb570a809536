"""Answers in JSON from a model without a JSON mode: an instruction, and the text without its code fence."""

from __future__ import annotations

import json
import re

from gridq.protocol.models import Json

INSTRUCTION = "Answer with one JSON object and nothing else: no introduction, no explanation, no code fence."
FENCE_START = re.compile(r"\s*```[a-zA-Z]*\s*\n")
MAYBE_START = re.compile(r"\s*(?:`{0,2}|```[a-zA-Z]*[ \t\r]*)")
MAYBE_END = re.compile(r"\s*`{0,3}\s*\Z")


def make_instruction(schema: Json = None) -> str:
    """Return the instruction to answer with JSON, of `schema` if there is one."""
    if schema is None:
        return INSTRUCTION
    return f"{INSTRUCTION} It follows this JSON schema:\n{json.dumps(schema, ensure_ascii=False)}"


class JsonText:
    """Removes the code fence around a text that comes in pieces."""

    def __init__(self) -> None:
        self._started = False
        self._fenced = False
        self._held = ""

    def add(self, piece: str) -> str:
        """Return what of the text can be sent."""
        text, self._held = self._held + piece, ""
        if not self._started:
            if MAYBE_START.fullmatch(text):
                self._held = text
                return ""
            self._started = True
            found = FENCE_START.match(text)
            self._fenced = found is not None
            text = text[found.end() :] if found else text
        if not self._fenced:
            return text
        found = MAYBE_END.search(text)
        assert found is not None
        self._held = text[found.start() :]
        return text[: found.start()]

    def end(self) -> str:
        """Return the rest of the text."""
        held, self._held = self._held, ""
        if self._fenced and held.strip() == "```":
            return ""
        return held
