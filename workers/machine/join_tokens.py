"""Join tokens: an operator creates one, and the owner of another machine uses it to join the grid.

A token holds the server's user and password, never its address, and a secret of 256 bits. The server keeps a
hash of the secret and the number of uses left, and deletes both when the token expires.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit

from redis import Redis
from redis.client import Pipeline

from gridq.errors import JoinTokenInvalid
from gridq.store.connection import now_ms
from gridq.store.keys import Keys

PREFIX = "gqjoin_"
"""The start of every token, so that a leaked one can be recognised."""

MAX_TTL_SECONDS = 30 * 24 * 3600.0
"""The longest validity of a token."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """The content of a token. `user` and `password` are the server's; empty: it asks for none."""

    id: str
    secret: str
    user: str
    password: str
    prefix: str
    version: str

    def __repr__(self) -> str:
        return f"JoinToken({self.id!r})"

    def encode(self) -> str:
        data = json.dumps(asdict(self), separators=(",", ":")).encode()
        return PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """Parse a token. JoinTokenInvalid: `text` is not a token, or not a whole one."""
        body = text.strip().removeprefix(PREFIX)
        try:
            if body == text.strip():
                raise ValueError("the prefix is missing")
            found = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True))
            token = cls(**found)
            if not all(isinstance(value, str) for value in found.values()):
                raise ValueError("a field is not a string")
        except (ValueError, TypeError, binascii.Error):
            raise JoinTokenInvalid(
                "This is not a join token",
                {
                    "path": "--token",
                    "expected": f"{PREFIX}…, as gridq token create prints it",
                    "fix": "copy the whole token, or pass it in a file: --token @FILE",
                },
            ) from None
        return token


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The server's record of a token. `left`: uses left. Times are seconds since 1970 by the
    server's clock.
    """

    id: str
    uses: int
    left: int
    made_at: float
    expires_at: float


def create(client: Redis, keys: Keys, url: str, *, ttl: float, uses: int) -> tuple[str, TokenRecord]:
    """Create a token for the server at `url` that `uses` machines may use within `ttl` seconds.

    Return its text, which is shown once, and its record.
    """
    parts = urlsplit(url)
    token = JoinToken(
        id=secrets.token_hex(4),
        secret=secrets.token_urlsafe(32),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        prefix=keys.prefix,
        version=version("gridq"),
    )
    now = now_ms(client) / 1000
    expires = now + ttl
    key, index = keys("token", token.id), keys("tokens")
    with client.pipeline(transaction=True) as write:
        write.hset(key, mapping={"hash": _hash(token.secret), "uses": uses, "left": uses, "at": now})
        write.pexpireat(key, int(expires * 1000))
        write.zremrangebyscore(index, "-inf", now)
        write.zadd(index, {token.id: expires})
        write.pexpireat(index, int(expires * 1000), nx=True)
        write.pexpireat(index, int(expires * 1000), gt=True)
        write.execute()
    return token.encode(), TokenRecord(token.id, uses, uses, now, expires)


def list_tokens(client: Redis, keys: Keys) -> list[TokenRecord]:
    """Return the tokens that have not expired, used up or not; the next to expire comes first."""
    index: list[tuple[bytes, float]] = client.zrangebyscore(  # type: ignore[assignment]
        keys("tokens"), f"({now_ms(client) / 1000}", "+inf", withscores=True
    )
    with client.pipeline(transaction=False) as pipe:
        for name, _ in index:
            pipe.hmget(keys("token", name.decode()), "uses", "left", "at")
        rows = pipe.execute()
    return [
        TokenRecord(name.decode(), int(uses), int(left), float(at), expires)
        for (name, expires), (uses, left, at) in zip(index, rows, strict=True)
        if uses is not None
    ]


def revoke(client: Redis, keys: Keys, token_id: str) -> bool:
    """Delete a token, so that nobody can join with it. False: there is no token of that id."""
    with client.pipeline(transaction=True) as write:
        write.unlink(keys("token", token_id))
        write.zrem(keys("tokens"), token_id)
        return bool(write.execute()[0])


def check(client: Redis, keys: Keys, token: JoinToken) -> None:
    """Raise JoinTokenInvalid if the token cannot be used now. It is not used."""
    _check(client.hgetall(keys("token", token.id)), token)


def use(client: Redis, keys: Keys, token: JoinToken) -> None:
    """Use the token once. If two machines claim the last use, one gets JoinTokenInvalid."""
    key = keys("token", token.id)

    def count_use(pipe: Pipeline) -> None:
        _check(pipe.hgetall(key), token)
        pipe.multi()
        pipe.hincrby(key, "left", -1)

    client.transaction(count_use, key)  # runs again if the key changed or expired in between


def _check(record: Any, token: JoinToken) -> None:
    given, stored = _hash(token.secret), record.get(b"hash", b"").decode()
    right = hmac.compare_digest(given, stored)
    if right and int(record[b"left"]) > 0:
        return
    reason = "it is used up" if right else "it has expired, was revoked, or belongs to another grid"
    raise JoinTokenInvalid(
        "The join token is not valid",
        {"reason": reason, "fix": "ask the grid's operator for a new one (gridq token create)"},
    )


def _hash(secret: str) -> str:
    # A secret of 256 random bits cannot be guessed, so a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()
