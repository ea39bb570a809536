"""Make ids of the grid's own, and fit ids and names to what a seat takes.

Endpoints leave the id of a tool call out, repeat it, or use characters that another API rejects. So a client
gets an id of the grid's own, which is unique and contains the endpoint's:

    call_q<16 hex digits>            the endpoint stated none
    call_q<16 hex digits>-<id>       an id of letters, digits, `_` and `-`
    call_q<16 hex digits>_<base64>   any other id, in base64 for URLs

Behind the digits may stand eight more, which name the call's origin, and `S` with a signature in base32.

In the next request a seat gets its own id back, if it takes it and no other call of the request has it. Any
other id is replaced by a hash of it, which stays the same from turn to turn, as prompt caches need.

Sources of the rules: the API references of OpenAI, Anthropic and Google, and the error messages of Mistral
("a-z, A-Z, 0-9, with a length of 9"), Anthropic (`tool_use.id`, at most 128 characters of a tool's name) and
OpenAI (40 characters of an id).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import string
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from gridq.protocol.models import Json

DIGITS = string.digits + string.ascii_letters
OWN_ID = re.compile(
    r"(?P<own>(?:call|toolu)_q[0-9a-f]{16}(?P<origin>[0-9a-f]{8})?)(?:S(?P<signature>[A-Z2-7]+))?"
    r"(?P<rest>(?:(?P<mark>[-_])(?P<id>.+))?)",
    re.DOTALL,
)
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
MAX_KEPT_CHARACTERS = 128
"""A longer id of an endpoint is not kept in the grid's own."""

MAX_USER_CHARACTERS = {"user": 64, "user_id": 256}
"""By field: the longest name of an end user, of the OpenAI and the Anthropic API format."""


@dataclass(frozen=True)
class Rule:
    """The ids or names that a seat takes: a pattern, and the length of a replacement."""

    pattern: re.Pattern[str]
    length: int

    def accepts(self, text: str) -> bool:
        return self.pattern.fullmatch(text) is not None


ANY_ID = Rule(re.compile(r".+", re.DOTALL), 32)
OPENAI_ID = Rule(re.compile(r".{1,40}", re.DOTALL), 32)
RESPONSES_ID = Rule(re.compile(r".{1,64}", re.DOTALL), 32)
ANTHROPIC_ID = Rule(re.compile(r"[A-Za-z0-9_-]+"), 32)
MISTRAL_ID = Rule(re.compile(r"[A-Za-z0-9]{9}"), 9)
OPENAI_NAME = Rule(re.compile(r"[A-Za-z0-9_-]{1,64}"), 64)
ANTHROPIC_NAME = Rule(re.compile(r"[A-Za-z0-9_-]{1,128}"), 128)
GOOGLE_NAME = Rule(re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"), 63)


def make_id(prefix: str) -> str:
    """Return a new id for an answer or one of its parts."""
    return f"{prefix}_{secrets.token_hex(16)}"


def make_completion_id(prefix: str = "chatcmpl") -> str:
    """Return a new id for a chat completion, or a text completion with the prefix `cmpl`."""
    return f"{prefix}-{secrets.token_hex(16)}"


def make_call_id(endpoint_id: Json, prefix: str = "call", origin: str = "") -> str:
    """Return a new id for a tool call, `call` or `toolu` in front, with the endpoint's own in it.

    `origin` is that of `identity.origins`, empty if nobody asks for it later.
    """
    own = f"{prefix}_q{secrets.token_hex(8)}{origin}"
    if not isinstance(endpoint_id, str) or not 0 < len(endpoint_id) <= MAX_KEPT_CHARACTERS:
        return own
    if PLAIN.fullmatch(endpoint_id):
        return f"{own}-{endpoint_id}"
    encoded = base64.urlsafe_b64encode(endpoint_id.encode("utf-8", "surrogatepass"))
    return f"{own}_{encoded.decode('ascii').rstrip('=')}"


def restore_call_id(call_id: str) -> str:
    """Return the endpoint's id that `call_id` contains, or `call_id` itself."""
    found = OWN_ID.fullmatch(call_id)
    if found is None or found["id"] is None:
        return call_id
    if found["mark"] == "-":
        return found["id"]
    try:
        padded = found["id"] + "=" * (-len(found["id"]) % 4)
        return base64.urlsafe_b64decode(padded).decode("utf-8", "surrogatepass") or call_id
    except (binascii.Error, ValueError):
        return call_id


def find_call_origin(call_id: Json) -> str:
    """Return the origin that an id of the grid's own names, "" for any other id."""
    found = OWN_ID.fullmatch(call_id) if isinstance(call_id, str) else None
    return (found["origin"] or "") if found else ""


def add_signature(call_id: str, signature: str) -> str:
    """Return an id of the grid's own that contains the signature that Google wants back with a call."""
    found = OWN_ID.fullmatch(call_id)
    if found is None:
        return add_signature(make_call_id(call_id), signature)
    encoded = base64.b32encode(signature.encode("utf-8", "surrogatepass")).decode("ascii")
    return f"{found['own']}S{encoded.rstrip('=')}{found['rest']}"


def split_signature(call_id: str) -> tuple[str, str | None]:
    """Return an id without the signature of `add_signature`, and the signature, None if it has none."""
    found = OWN_ID.fullmatch(call_id)
    if found is None or found["signature"] is None:
        return call_id, None
    encoded = found["signature"]
    try:
        signature = base64.b32decode(encoded + "=" * (-len(encoded) % 8)).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return call_id, None
    return found["own"] + found["rest"], signature


def hash_to_digits(text: str, length: int) -> str:
    """Return `length` letters and digits that depend on `text` alone, up to 43."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(DIGITS))
        digits.append(DIGITS[digit])
    return "".join(digits)


def shorten_user(user: str, field: str) -> str:
    """Return the name of an end user, or its hash if it is too long for `field`, `user` or `user_id`."""
    if len(user) <= MAX_USER_CHARACTERS[field]:
        return user
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()


class CallIds:
    """The ids of the tool calls in one request, one to one as a seat takes them.

    Take calls and results in the order of the conversation. Calls may share an id: results then belong to
    them in their order.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._used: set[str] = set()
        self._unanswered: dict[str, deque[str]] = defaultdict(deque)
        self._last: dict[str, str] = {}
        self._attempts: Counter[str] = Counter()

    def add_call(self, call_id: Json) -> str:
        """Return the id of a call as the seat takes it. Anything but a string counts as an empty id."""
        stated = split_signature(call_id)[0] if isinstance(call_id, str) else ""
        fitted = restore_call_id(stated)
        while fitted in self._used or not self._rule.accepts(fitted):
            fitted = self._replace(stated, self._attempts[stated])
            self._attempts[stated] += 1
        self._used.add(fitted)
        self._unanswered[stated].append(fitted)
        self._last[stated] = fitted
        return fitted

    def find_result(self, call_id: Json) -> str:
        """Return the id of the call that a result with `call_id` belongs to, as the seat takes it."""
        stated = split_signature(call_id)[0] if isinstance(call_id, str) else ""
        if self._unanswered[stated]:
            return self._unanswered[stated].popleft()
        return self._last.get(stated) or self.add_call(stated)

    def _replace(self, call_id: str, attempt: int) -> str:
        return hash_to_digits(f"{attempt}:{call_id}", self._rule.length)


class ToolNames:
    """The names of the tools in one request, one to one as a seat takes them."""

    def __init__(self, rule: Rule | None, names: Iterable[str]) -> None:
        """Take all names of the request. Without a rule every name stays as it is."""
        self._fitted: dict[str, str] = {}
        self._stated: dict[str, str] = {}
        if rule is None:
            return
        stated = set(names)
        taken = {name for name in stated if rule.accepts(name)}
        for name in sorted(stated - taken):
            attempt = 0
            while (fitted := _shorten(name, attempt, rule)) in taken:
                attempt += 1
            taken.add(fitted)
            self._fitted[name] = fitted
        self._stated = {fitted: name for name, fitted in self._fitted.items()}

    def fit(self, name: Json) -> Json:
        """Return a name as the seat takes it."""
        return self._fitted.get(name, name) if isinstance(name, str) else name

    def restore(self, name: Json) -> Json:
        """Return the client's name for a name that the seat used."""
        return self._stated.get(name, name) if isinstance(name, str) else name


def _shorten(name: str, attempt: int, rule: Rule) -> str:
    """Return the readable start of `name` and a hash."""
    start = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not start[:1].isalpha():
        start = f"_{start}"
    return f"{start[: rule.length - 9]}_{hash_to_digits(f'{attempt}:{name}', 8)}"
