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

_KEY_START = (
    r"(?:(?:sk|gq|ghp|gho|ghu|ghs|ghr|glpat|github_pat|xox[abeprs]|gsk|nvapi|pplx|crsr|csk)[-_]"
    # these also begin plain words, such as key_findings
    r"|(?:key|hf|pk|rk)[-_](?=[A-Za-z0-9_-]{0,200}\d)"
    r"|xai-(?=[A-Za-z0-9]{16}))"  # not a model, such as xai-grok-4
)
"""The start of a key with its vendor's prefix."""

# Each pattern takes linear time: a run of characters is matched from its first one, and never given back.
_CREDENTIALS = (
    (re.compile(r"(?<!\w)(\w++://)[^/\s@'\"]*+@"), rf"\1{MASK}@"),  # a login in a URL
    (re.compile(r"(?i)\b(bearer\s+|basic\s+(?=\S{0,200}[\d=]))[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(rf"\b{_KEY_START}[A-Za-z0-9_-]{{8,}}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+"), MASK),  # a JSON web token
)

_SHORTENED = (
    # sk-proj-AB...5678
    (
        re.compile(
            rf"\b{_KEY_START}[A-Za-z0-9_-]*+(?:\*++|\.{{2,}}|…|•++)(?:[A-Za-z0-9_*.…•-]*[A-Za-z0-9_*…•-])?"
        ),
        MASK,
    ),
    # ***5678
    (
        re.compile(r"(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++)?(?:(?<!\*)\*{3}|(?<!•)••)[*.…•]*+[A-Za-z0-9_-]++"),
        MASK,
    ),
    (
        re.compile(
            r"(?:(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++)?(?<!…)…[*.…•]*+(?=[A-Za-z0-9_-]{0,40}\d)[A-Za-z0-9_-]++"
        ),
        MASK,
    ),
    (re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]++(?:\*{3,}|•{2,})"), MASK),
    (
        re.compile(
            r"(?i)(\b(?:key|token|secret)\b[^.\n]{0,60}?\b(?:start|end)(?:s|ing)? (?:in|with) )"
            r"(?=\S{0,40}[\d*…•_-])\S{3,}"
        ),
        rf"\1{MASK}",
    ),
)

_ACCOUNT_WORD = r"\b(?:organi[sz]ation|account|workspace|tenant|project|team)s?"
_QUOTED = r"'[^'\n]{1,100}'|\"[^\"\n]{1,100}\"|`[^`\n]{1,100}`"

_ACCOUNT = (
    (re.compile(r"(?<![\w.+%-])[\w.+%-]++@[\w-]++(?:\.[\w-]++)+"), MASK),
    # org-a1B2…, proj_a1B2…
    (
        re.compile(
            r"\b(?:org|proj|user|acct|team|wrkspc)[-_]"
            r"(?:(?=[A-Za-z0-9]{0,64}\d)[A-Za-z0-9]{6,}|(?=[A-Za-z0-9]{0,64}[A-Z])[A-Za-z0-9]{16,})"
        ),
        MASK,
    ),
    (
        re.compile(
            rf"(?i)({_ACCOUNT_WORD}(?:[ _-]?(?:id|name|number)\b\s*+(?:[:=]\s*+)?|\s*+[:=]\s*+|s/))"
            rf"(?:{_QUOTED}|(?=[\w.-]{{0,100}}\d)[\w.-]{{4,}})"
        ),
        rf"\1{MASK}",
    ),
    # organization 'Acme Corp', project acme-1; but not "project 60 requests"
    (
        re.compile(
            rf"(?i)({_ACCOUNT_WORD}\s++)(?:{_QUOTED}|(?=[\w.-]{{0,100}}\d)(?=[\d.-]{{0,100}}[A-Za-z])[\w.-]+)"
        ),
        rf"\1{MASK}",
    ),
)

_PARTS = re.compile(r"([A-Za-z0-9_-]{2,12})(?:\.{2,}|…|\*+|•+)([A-Za-z0-9_-]{2,12})")
"""Two parts of a key, as in `f3a9...beef`."""


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
    for pattern, replacement in (*_SHORTENED, *_ACCOUNT):
        text = pattern.sub(replacement, text)
    return text


def _mask_key(text: str, key: str) -> str:
    """Mask each run of the text that is a part of the key, whatever white space breaks it, and what is the
    start and the end of the key with dots between them.
    """
    lower = key.lower()

    def mask_parts(match: re.Match[str]) -> str:
        is_key = lower.startswith(match[1].lower()) and lower.endswith(match[2].lower())
        return MASK if is_key else match[0]

    text = _PARTS.sub(mask_parts, text)
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
    return ["".join(form.lower().split()) for form in forms]
