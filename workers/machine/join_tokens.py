"""Join tokens: an operator makes one, a machine's owner spends it to join the grid.

A token holds what the other machine needs to reach the server (its user and password, never its address) and
a secret of 256 bits. The server keeps a hash of the secret, how often it may still be used, and forgets both
when the token expires.
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

MARK = "gqjoin_"
"""How every token begins, so that it is known for one where it turns up."""

MAX_TTL_SECONDS = 30 * 24 * 3600.0
"""The most seconds that a token may live."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a token says. `user` and `password` are the server's, empty where it asks for none."""

    id: str
    secret: str
    user: str
    password: str
    prefix: str
    version: str

    def __repr__(self) -> str:
        return f"JoinToken({self.id!r})"

    def encode(self) -> str:
        """The token as text."""
        data = json.dumps(asdict(self), separators=(",", ":")).encode()
        return MARK + base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> JoinToken:
        """The token in `text`. JoinTokenInvalid: it is none, or a part of one."""
        body = text.strip().removeprefix(MARK)
        try:
            if body == text.strip():
                raise ValueError("the mark is missing")
            found = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True))
            token = cls(**found)
            if not all(isinstance(value, str) for value in found.values()):
                raise ValueError("a field is no text")
        except (ValueError, TypeError, binascii.Error):
            raise JoinTokenInvalid(
                "This is not a join token",
                {
                    "path": "--token",
                    "expected": f"{MARK}… as gridq token create prints it, whole",
                    "fix": "copy it anew, or hand it over as a file: --token @FILE",
                },
            ) from None
        return token


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What the server knows of a token; times in seconds since 1970 by the server's clock."""

    id: str
    uses: int
    left: int
    made_at: float
    expires_at: float


def create(client: Redis, keys: Keys, url: str, *, ttl: float, uses: int) -> tuple[str, TokenRecord]:
    """Make a token for the server at `url` that `uses` machines may use within `ttl` seconds.

    Gives (its text, to be shown once; its record).
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
    """The tokens that have not expired, also those that are used up, the next to expire first."""
    index: list[tuple[bytes, float]] = client.zrangebyscore(  # type: ignore[assignment]
        keys("tokens"), f"({now_ms(client) / 1000}", "+inf", withscores=True
    )
    with client.pipeline(transaction=False) as look:
        for name, _ in index:
            look.hmget(keys("token", name.decode()), "uses", "left", "at")
        rows = look.execute()
    return [
        TokenRecord(name.decode(), int(uses), int(left), float(at), expires)
        for (name, expires), (uses, left, at) in zip(index, rows, strict=True)
        if uses is not None
    ]


def revoke(client: Redis, keys: Keys, token_id: str) -> bool:
    """Forget a token, so that nobody joins with it any more; False where there is none of that id."""
    with client.pipeline(transaction=True) as write:
        write.unlink(keys("token", token_id))
        write.zrem(keys("tokens"), token_id)
        return bool(write.execute()[0])


def check(client: Redis, keys: Keys, token: JoinToken) -> None:
    """JoinTokenInvalid where the token could not be spent now. Nothing is spent."""
    _check(client.hgetall(keys("token", token.id)), token)


def spend(client: Redis, keys: Keys, token: JoinToken) -> None:
    """Use the token once. Of two machines that spend a token's last use, one gets JoinTokenInvalid."""
    key = keys("token", token.id)

    def once(pipe: Pipeline) -> None:
        _check(pipe.hgetall(key), token)
        pipe.multi()
        pipe.hincrby(key, "left", -1)

    client.transaction(once, key)  # again where somebody else wrote in between, also where it expired


def _check(record: Any, token: JoinToken) -> None:
    given, kept = _hash(token.secret), record.get(b"hash", b"").decode()
    right = hmac.compare_digest(given, kept)
    if right and int(record[b"left"]) > 0:
        return
    reason = "it is used up" if right else "it has expired, was revoked, or is another grid's"
    raise JoinTokenInvalid(
        "The join token is not valid",
        {"reason": reason, "fix": "ask the grid's operator for another: gridq token create"},
    )


def _hash(secret: str) -> str:
    # A secret of 256 random bits cannot be guessed, so a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()
