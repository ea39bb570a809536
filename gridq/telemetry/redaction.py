"""What may stand in a log line, and what is hidden in it: keys, tokens, logins, prompts, answers.

The rule is that no such thing is handed to a logger. This is the second lock: fields by their names, secrets
by their looks or because this process knows them, and no exception's message, which may quote anything.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from gridq.config.settings import Settings
from gridq.protocol.models import Json

HIDDEN = "[hidden]"

FIELDS = frozenset(
    (  # what was asked and answered
        *("prompt", "prompts", "system", "message", "messages", "content", "text", "body", "graph"),
        *("input", "inputs", "output", "outputs", "answer", "result", "value", "values", "piece", "pieces"),
        *("args", "kwargs", "argsrepr", "kwargsrepr"),
        # who one is
        *("key", "keys", "apikey", "token", "secret", "password", "passwd", "login", "credentials"),
        *("authorization", "auth", "header", "headers", "cookie", "cookies", "url"),
    )
)
"""Names of fields that are never shown."""

_ENDINGS = ("_key", "_token", "_secret", "_password", "_prompt", "_text", "_url")

_VARIABLE = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD)$")

LEAST = 8
"""Characters from which a value is taken for a secret: shorter ones would blank out plain words."""

LONGEST = 2000
"""Characters of a text that a line shows at most."""

_LOOKS = (
    (re.compile(r"(\w+://)[^/\s@'\"]*@"), r"\1***@"),  # a login in a URL
    (re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+"), r"\1?***"),  # a URL's query
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    (
        re.compile(r"\b(?:sk|pk|rk|gq|ghp|xox[bp])[-_][A-Za-z0-9_-]{8,}"),
        HIDDEN,
    ),  # keys as their makers mark them
    # Celery shows the whole of a message that it cannot use.
    (
        re.compile(r"(?is)((?:contents of the message|message) (?:body|headers)\s*(?:was:?|:)).*"),
        rf"\1 {HIDDEN}",
    ),
)
_NO_LINE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]|[\t\n]+")


class Secrets:
    """Hides what must not stand in a line, `known` secrets wherever they turn up."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        words = sorted({word for word in known if len(word) >= LEAST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, words))) if words else None

    @classmethod
    def of(cls, config: Settings) -> Secrets:
        """Those of this process: the server's password and what stands in variables named `…_KEY` and the
        like.
        """
        try:
            raw = urlsplit(config.broker_url.get_secret_value()).password or ""
        except ValueError:
            raw = ""
        given = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
        return cls([raw, unquote(raw), *given])

    def hide(self, line: Mapping[str, Json]) -> dict[str, Json]:
        """A line without secrets. What is no JSON is told by its type."""
        return {
            name: value if name in ("at", "level") else self._field(name, value)
            for name, value in line.items()
        }

    def text(self, text: str, *, lines: bool = False) -> str:
        """A text without secrets, on one line unless `lines`: a line of the log must not be forged."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for look, shown in _LOOKS:
            text = look.sub(shown, text)
        if not lines:
            text = _NO_LINE.sub(" ", text)
        return text if len(text) <= LONGEST or lines else text[:LONGEST] + "…"

    def _field(self, name: str, value: Json) -> Json:
        plain = name.lower().replace("-", "_")
        if plain in FIELDS or plain.endswith(_ENDINGS):
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


def traceback_of(fault: BaseException) -> str:
    """Where an exception came from, the cause first: files, lines and functions, and the types of the faults.

    Neither their messages nor the lines of code are shown: both may hold what a user wrote.
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
    """A filter that keeps every record, but of a task that Celery saw fail only the type of its exception."""
    args = record.args
    if isinstance(args, Mapping) and "exc" in args:
        name = str(args["exc"]).partition("(")[0]
        record.args = {**args, "exc": name, "args": HIDDEN, "kwargs": HIDDEN, "return_value": HIDDEN}
    return True
