"""Mask what a text says about somebody's key or account.

`mask_credentials` finds keys and tokens by their shape; log lines pass through it. `mask_account` is for the
words of a vendor that reach an agent: they may quote the owner's key, whole, shortened or encoded, and name
the owner's account.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"

MAX_CHARACTERS = 16_384
"""What `mask_account` reads of a text. It drops the rest, which could hold a key."""

MIN_FRAGMENT = 8
"""A run of so many characters of a known key counts as a part of it. A shorter key is looked for as it is."""

_VENDOR_PREFIX = (
    r"(?:sk|pk|rk|gq|ghp|gho|ghu|ghs|ghr|glpat|github_pat|xox[abeprs]|xai|gsk|hf|nvapi|pplx|crsr|csk|key)[-_]"
)

_CREDENTIALS = (
    (re.compile(r"(\w+://)[^/\s@'\"]*@"), rf"\1{MASK}@"),  # a login in a URL
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(rf"\b{_VENDOR_PREFIX}[A-Za-z0-9_-]{{8,}}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+"), MASK),  # a JSON web token
)

_SHORTENED = (
    # sk-proj-AB...5678, ***5678
    re.compile(
        rf"\b{_VENDOR_PREFIX}[A-Za-z0-9_-]*(?:\*+|\.{{2,}}|…|•+)(?:[A-Za-z0-9_*.…•-]*[A-Za-z0-9_*…•-])?"
    ),
    re.compile(r"[A-Za-z0-9_-]*(?:\*{3,}|…|•{2,})[*.…•]*[A-Za-z0-9_-]+"),
    re.compile(r"[A-Za-z0-9_-]+(?:\*{3,}|•{2,})"),
    re.compile(r"(?i)(?<=end in )\S{3,}|(?<=ends in )\S{3,}|(?<=ending in )\S{3,}|(?<=ending with )\S{3,}"),
    re.compile(r"(?i)(?<=starting with )\S{3,}|(?<=starts with )\S{3,}"),
)

_ACCOUNT = (
    (re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+"), MASK),
    # org-a1B2…, proj_a1B2…
    (re.compile(r"\b(?:org|proj|user|acct|team|wrkspc)[-_](?=[A-Za-z0-9-]*\d)[A-Za-z0-9-]{6,}"), MASK),
    (
        re.compile(
            r"(?i)\b((?:organi[sz]ation|account|workspace|tenant|project|team)s?(?:[ _-]?(?:id|name|number))?"
            r"(?:\s*[:=/]\s*|\s+))(?:'[^']+'|\"[^\"]+\"|`[^`]+`|[\w.-]*[\d][\w.-]*)"
        ),
        rf"\1{MASK}",
    ),
)


def mask_credentials(text: str) -> str:
    """Return `text` with *** in place of what has the shape of a key, a token or a login."""
    for pattern, replacement in _CREDENTIALS:
        text = pattern.sub(replacement, text)
    return text


def mask_account(text: str, keys: Iterable[str] = ()) -> str:
    """Return the words of a vendor with *** in place of keys, e-mail addresses and names of accounts.

    `keys` are the owner's. They are found in other case, across line ends, in base64, hexadecimal and
    percent encoding, and in parts of MIN_FRAGMENT characters.
    """
    text = text[:MAX_CHARACTERS]
    for key in keys:
        text = _mask_key(text, key) if len(key) >= MIN_FRAGMENT else text.replace(key or MASK, MASK)
    text = mask_credentials(text)
    for pattern in _SHORTENED:
        text = pattern.sub(MASK, text)
    for pattern, replacement in _ACCOUNT:
        text = pattern.sub(replacement, text)
    return text


def _mask_key(text: str, key: str) -> str:
    """Mask each run of the text that is a part of the key, whatever white space breaks it."""
    fragments = {
        form[start : start + MIN_FRAGMENT]
        for form in _write_forms(key)
        for start in range(len(form) - MIN_FRAGMENT + 1)
    }
    places = [place for place, character in enumerate(text) if not character.isspace()]
    packed = "".join(text[place].lower()[0] for place in places)  # a few characters become two in lower case
    masked, written, start = [], 0, 0
    while start <= len(packed) - MIN_FRAGMENT:
        if packed[start : start + MIN_FRAGMENT] not in fragments:
            start += 1
            continue
        end = start + MIN_FRAGMENT
        while end < len(packed) and packed[end - MIN_FRAGMENT + 1 : end + 1] in fragments:
            end += 1
        masked += [text[written : places[start]], MASK]
        written, start = places[end - 1] + 1, end
    return "".join([*masked, text[written:]])


def _write_forms(key: str) -> list[str]:
    """Return the key in the spellings that are looked for, in lower case."""
    raw = key.encode("utf-8", "surrogatepass")
    forms = [key, quote(key, safe=""), raw.hex()]
    for before in range(3):  # base64 of a text that holds the key, by the key's place in its group of three
        shifted = base64.b64encode(b"\0" * before + raw).decode("ascii").rstrip("=")
        # the first and last characters depend on what stands beside the key
        inner = shifted[(0, 2, 3)[before] : len(shifted) - 1]
        forms += [inner, inner.replace("+", "-").replace("/", "_")]
    return [form.lower() for form in forms]
