"""Redaction of log lines: keys, tokens, logins, prompts and answers are hidden.

The rule is that none of these is ever passed to a logger. This is the second line of defence: it hides fields
by their names, secrets by their shape or because this process knows them, and every exception's message,
which may quote anything.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from gridq.config.settings import Settings
from gridq.protocol.masking import MASK, mask_credentials
from gridq.protocol.models import Json

HIDDEN = "[hidden]"

FIELDS = frozenset(
    (  # requests and answers
        *("prompt", "prompts", "system", "message", "messages", "content", "text", "body", "graph"),
        *("input", "inputs", "output", "outputs", "answer", "result", "value", "values", "piece", "pieces"),
        *("args", "kwargs", "argsrepr", "kwargsrepr"),
        # credentials
        *("key", "keys", "apikey", "token", "secret", "password", "passwd", "login", "credentials"),
        *("authorization", "auth", "header", "headers", "cookie", "cookies", "url"),
    )
)
"""Names of fields whose values are never shown."""

_SUFFIXES = ("_key", "_token", "_secret", "_password", "_prompt", "_text", "_url")

_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD)$")

SECRET_MIN_CHARACTERS = 8
"""Shorter values are not taken for secrets: they would hide plain words."""

TEXT_MAX_CHARACTERS = 2000
"""The characters of a text that a line shows."""

_PATTERNS = (
    (re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+"), rf"\1?{MASK}"),  # a URL's query
    # Celery logs a message that it cannot use as a whole.
    (
        re.compile(r"(?is)((?:contents of the message|message) (?:body|headers)\s*(?:was:?|:)).*"),
        rf"\1 {HIDDEN}",
    ),
)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]|[\t\n]+")


class Secrets:
    """Hides secrets in log lines: `known` ones wherever they turn up, others by their shape."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({word for word in known if len(word) >= SECRET_MIN_CHARACTERS}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    @classmethod
    def of(cls, config: Settings) -> Secrets:
        """Return this process's secrets: the server's password, and the values of variables like `…_KEY`."""
        try:
            raw = urlsplit(config.broker_url.get_secret_value()).password or ""
        except ValueError:
            raw = ""
        given = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
        return cls([raw, unquote(raw), *given])

    def hide(self, line: Mapping[str, Json]) -> dict[str, Json]:
        """Return a line without secrets. A value that is not JSON is shown as its type."""
        return {
            name: value if name in ("at", "level") else self._field(name, value)
            for name, value in line.items()
        }

    def text(self, text: str, *, lines: bool = False) -> str:
        """Return a text without secrets, on one line unless `lines`: nobody may forge a line of the log."""
        if not lines:
            text = text[: 8 * TEXT_MAX_CHARACTERS]  # of which a line shows the beginning
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = mask_credentials(text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        if not lines:
            text = _CONTROL_CHARACTERS.sub(" ", text)
        return text if len(text) <= TEXT_MAX_CHARACTERS or lines else text[:TEXT_MAX_CHARACTERS] + "…"

    def _field(self, name: str, value: Json) -> Json:
        plain = name.lower().replace("-", "_")
        if plain in FIELDS or plain.endswith(_SUFFIXES):
            return HIDDEN
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            return self.text(value, lines=name == "exception")
        if isinstance(value, Mapping):
            return {str(inner): self._field(str(inner), each) for inner, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._field("", each) for each in value]
        return f"<{type(value).__name__}>"


def format_traceback(fault: BaseException) -> str:
    """Return where an exception came from, the cause first: files, lines, functions and exception types.

    Messages and lines of code are left out: both may contain what a user wrote.
    """
    parts = []
    seen: set[int] = set()
    at: BaseException | None = fault
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        frames = [
            f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
            for frame in traceback.extract_tb(at.__traceback__)
        ]
        parts.append("\n".join([*frames, type(at).__qualname__]))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return "\nwhich led to\n".join(reversed(parts))


def strip_arguments(record: logging.LogRecord) -> bool:
    """Keep every record, but hide a failed task's arguments and its exception's message. A logging filter."""
    args = record.args
    if isinstance(args, Mapping) and "exc" in args:
        name = str(args["exc"]).partition("(")[0]
        record.args = {**args, "exc": name, "args": HIDDEN, "kwargs": HIDDEN, "return_value": HIDDEN}
    return True
