"""Name the conversation of a request, so that its next turn finds the seat that has its prompt in memory.

The name that a program gives comes first: the body's `prompt_cache_key`, then the headers in
CONVERSATION_HEADERS. A request without one is known by its beginning, which the next turn repeats: the system
text and the messages up to the user's first. `safety_identifier`, `user` and `metadata.user_id` name a
person, not a conversation. They only tell conversations apart that begin alike.

Names are keyed digests (BLAKE2b), so whoever reads a copy of the server's data learns no text, and cannot
test a guess without the grid's password.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from gridq.jobs.record import CONVERSATION

CONVERSATION_HEADERS = frozenset(
    {
        *(b"x-claude-code-session-id", b"x-claude-code-agent-id"),  # a sub-agent has one of its own
        *(b"session-id", b"thread-id", b"session_id", b"conversation_id"),  # Codex, and its older versions
        *(b"x-session-affinity", b"x-session-id"),  # opencode
        b"x-openwebui-chat-id",
    }
)
"""Headers in which programs name their conversation, in lower case. All that a request has are used together.

Source: requests that the programs in tests/real_programs sent, Codex's older source, Open WebUI's settings.
Cline, Aider and llm send none.
"""

GUESSED = CONVERSATION * 2
"""The prefix of a name made from a conversation's beginning. The scripts remember the seat of such a session
only if it keeps prompts (store/lua/lib/claiming.lua).
"""

DIGEST_BYTES = 12
CLIP_CHARACTERS = 2000
"""Of a text longer than twice this, so much of its beginning and its end is used, and its length."""

MAX_MESSAGES = 16
"""Messages, and parts of one message, that are read. The user's first is among the first few."""

PROMPT_CHARACTERS = 1000
"""A prompt without messages is known by so many characters. A shorter one, soon computed, has no name."""


class ConversationNames:
    """Names conversations with one key.

    The key comes from the password in `broker_url`. All gateways of a grid have it, and the server's files do
    not. Without a password, each process has a key of its own.
    """

    def __init__(self, broker_url: str) -> None:
        password = urlsplit(broker_url).password
        self._key = (
            hashlib.blake2b(password.encode(), person=b"gridq-sessions").digest()
            if password
            else secrets.token_bytes(64)
        )

    def find(self, headers: Iterable[tuple[bytes, bytes]], body: dict[str, Any], agent: str) -> str | None:
        """Return the name of a request's conversation, None if it has none. It differs by agent and model."""
        key = body.get("prompt_cache_key")
        named: list[bytes] = []
        if isinstance(key, str) and key:
            named.append(_encode(key))
        else:
            named += (name + b"=" + raw for name, raw in headers if name in CONVERSATION_HEADERS and raw)
        parts = named or list(_find_beginning(body))
        if not parts:
            return None
        model = body.get("model")
        digest = hashlib.blake2b(key=self._key, digest_size=DIGEST_BYTES)
        for part in (agent.encode(), _encode(model) if isinstance(model, str) else b"", *parts):
            digest.update(b"%d:" % len(part))
            digest.update(part)
        return (CONVERSATION if named else GUESSED) + digest.hexdigest()


def _find_beginning(body: dict[str, Any]) -> Iterator[bytes]:
    """Yield what all requests of a conversation begin with; nothing if that does not tell it from others."""
    messages = body.get("messages", body.get("input"))
    if messages is None:
        prompt = body.get("prompt")
        if isinstance(prompt, str) and len(prompt) >= PROMPT_CHARACTERS:
            yield _encode(prompt[:PROMPT_CHARACTERS])
        return
    parts: list[bytes] = []
    if isinstance(messages, str):
        parts.append(_encode(_clip(messages)))
    elif isinstance(messages, list):
        for message in messages[:MAX_MESSAGES]:
            if isinstance(message, dict):
                parts += _list_texts(message.get("content"))
                if message.get("role") == "user":
                    break
        else:
            return
    if not parts:
        return
    for field in ("system", "instructions"):
        parts += _list_texts(body.get(field))
    metadata = body.get("metadata")
    people = (
        body.get("safety_identifier"),
        body.get("user"),
        metadata.get("user_id") if isinstance(metadata, dict) else None,
    )
    yield from parts
    yield from (_encode(_clip(person)) for person in people if isinstance(person, str))


def _list_texts(content: object) -> list[bytes]:
    """Return the texts of a message. Only these: marks such as `cache_control` move from turn to turn."""
    if isinstance(content, str):
        return [_encode(_clip(content))]
    if not isinstance(content, list):
        return []
    texts = (part.get("text") for part in content[:MAX_MESSAGES] if isinstance(part, dict))
    return [_encode(_clip(text)) for text in texts if isinstance(text, str)]


def _clip(text: str) -> str:
    if len(text) <= 2 * CLIP_CHARACTERS:
        return text
    return f"{text[:CLIP_CHARACTERS]}{len(text)}{text[-CLIP_CHARACTERS:]}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
