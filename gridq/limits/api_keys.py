"""API keys identify the agent that submits a job.

A key reads `gq_<id>_<secret>`. The id is public: lists and logs show it. Of the secret only the SHA-256 is
stored, and it is compared in constant time. A slow password hash would add nothing, because the secret is 256
random bits. A key cannot be read back from the grid, a job, a message or a log.

The grid requires keys as soon as it has one, and still does when the last one is revoked. Scripts check the
key with each admission, so a revoked key stops working everywhere at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import SecretStr
from redis import Redis
from redis.client import Pipeline

from gridq.config.settings import Settings
from gridq.errors import (
    AuthError,
    ConfigError,
    KeyInvalid,
    KeyMissing,
    KeyNotFound,
    KeyRevoked,
    KeyScopeMissing,
)
from gridq.jobs.record import JobOptions
from gridq.limits.quotas_file import NAME, NO_TEAM
from gridq.store.connection import now_ms
from gridq.store.keys import Keys

SCOPES = ("submit", "read", "read-all", "operate")
"""The scopes of keys: `submit` jobs, `read` one's own jobs, `read-all` jobs, and `operate`: drain seats,
cancel others' jobs, act on quarantined stages, and read everything.
"""

DEFAULT_SCOPES = ("submit", "read")
"""The scopes of a key that is created without naming any."""

ALL_SCOPES = frozenset(SCOPES)

GRANTS = {"read": {"read", "read-all", "operate"}, "read-all": {"read-all", "operate"}}
"""Scope → the scopes that include it."""

_KEY = re.compile(r"gq_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"").hexdigest()


MAX_RPM = 60_000
MAX_PARALLEL = 10_000
MIN_BODY_BYTES = 1024

_ORIGIN = re.compile(
    r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-fA-F:.]{2,45}\](:[0-9]{1,5})?"
)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of one key, for all gateways together.

    `rpm`: requests per minute; `parallel`: open requests; `max_body`: bytes of a body. `origins`: web pages
    of other origins may not use the key. None, or no origins: the gateway's own setting applies.
    """

    rpm: int | None = None
    parallel: int | None = None
    max_body: int | None = None
    origins: tuple[str, ...] = ()

    def check(self) -> None:
        bounds = (
            ("rpm", self.rpm, 1, MAX_RPM),
            ("parallel", self.parallel, 1, MAX_PARALLEL),
            ("max-body", self.max_body, MIN_BODY_BYTES, 2**40),
        )
        for name, value, least, most in bounds:
            if value is not None and not least <= value <= most:
                raise ConfigError(
                    f"Invalid limit {value}", {"path": f"--{name}", "expected": f"{least} to {most}"}
                )
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"Invalid origin {origin[:100]!r}",
                    {
                        "path": "--origin",
                        "expected": "scheme, host and port only, such as https://app.example.com",
                    },
                )

    def dump(self) -> dict[str, Any]:
        """Return the limits that are set, as JSON."""
        found = {"rpm": self.rpm, "parallel": self.parallel, "max_body": self.max_body}
        more = {"origins": list(self.origins)} if self.origins else {}
        return {name: value for name, value in found.items() if value is not None} | more


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Key:
    """The record of one key. Times are in ms by the server's clock."""

    id: str
    agent: str
    team: str | None
    scopes: tuple[str, ...]
    hash: str
    created: int
    expires_at: int | None = None
    limits: KeyLimits = UNLIMITED

    def is_valid(self, now_ms: int) -> bool:
        """Return whether it is accepted at `now_ms`."""
        return self.expires_at is None or now_ms < self.expires_at

    def may(self, scope: str) -> bool:
        """Return whether it has a scope, or one that includes it."""
        return not GRANTS.get(scope, {scope}).isdisjoint(self.scopes)

    def dump(self) -> str:
        """Return the record as Redis stores it."""
        record = {"agent": self.agent, "scopes": self.scopes, "hash": self.hash, "created": self.created}
        more = {"team": self.team, "ends": self.expires_at, "limits": self.limits.dump() or None}
        return json.dumps(record | {name: value for name, value in more.items() if value is not None})


def create(
    client: Redis,
    keys: Keys,
    agent: str,
    *,
    team: str | None = None,
    scopes: Sequence[str] = DEFAULT_SCOPES,
    limits: KeyLimits = UNLIMITED,
) -> tuple[Key, str]:
    """Create a key for an agent. Return its record and the key itself, which is not stored.

    Raises ConfigError if a name, scope or limit is invalid, or the agent's other keys are of another team.
    """
    limits.check()
    for what, name in (("agent", agent), ("team", team)):
        if name is not None and (not NAME.fullmatch(name) or (what == "team" and name == NO_TEAM)):
            raise ConfigError(
                f"Invalid {what} name {name!r}",
                {"path": f"--{what}", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
            )
    wrong = [scope for scope in scopes if scope not in SCOPES]
    if wrong or not scopes:
        raise ConfigError(
            f"Unknown scope {wrong[0]!r}" if wrong else "A key needs at least one scope",
            {"path": "--scope", "expected": " or ".join(SCOPES)},
        )
    now = now_ms(client)
    for other in list_keys(client, keys):
        if other.agent == agent and other.is_valid(now) and other.team != team:
            where = f"in the team {other.team!r}" if other.team else "in no team"
            raise ConfigError(
                f"The agent {agent!r} already has a key {where}",
                {
                    "path": "--team",
                    "expected": "the same team for all keys of an agent",
                    "fix": f"use the same team, or run `gridq keys revoke {other.id}` first",
                },
            )
    secret = secrets.token_urlsafe(32)
    chosen = tuple(dict.fromkeys(scopes))
    key = Key(secrets.token_hex(6), agent, team, chosen, hash_secret(secret), now, limits=limits)
    client.hset(keys("api_keys"), key.id, key.dump())
    return key, _format_key(key, secret)


def list_keys(client: Redis, keys: Keys) -> list[Key]:
    """Return all keys, also revoked ones, the oldest first, without their secrets."""
    found: Any = client.hgetall(keys("api_keys"))
    records = [_read(key.decode(), data) for key, data in found.items()]
    return sorted(records, key=lambda key: (key.created, key.id))


def revoke(client: Redis, keys: Keys, key_id: str) -> Key:
    """Revoke a key at once. Its record stays, so the grid still requires keys. Raises KeyNotFound."""
    return _expire(client, keys, key_id, now_ms(client))[0]


def forget(client: Redis, keys: Keys, key_id: str) -> bool:
    """Delete a key's record. Return True if it was the last: no key is required then. Raises KeyNotFound."""
    if not client.hdel(keys("api_keys"), key_id):
        raise _build_not_found_error(key_id)
    return not client.exists(keys("api_keys"))


def rotate(client: Redis, keys: Keys, key_id: str, overlap: float = 0.0) -> tuple[Key, str]:
    """Create a new key for the same agent, team, scopes and limits. The old one expires after `overlap`
    seconds.

    Raises KeyNotFound, and KeyRevoked if the old one has expired, or is revoked meanwhile; then nothing is
    created.
    """
    secret = secrets.token_urlsafe(32)
    new_id = secrets.token_hex(6)

    def build_successor(old: Key) -> Key:
        now = now_ms(client)  # read at each try: the old key may have been revoked just now
        if not old.is_valid(now):
            raise _build_revoked_error(key_id)
        return replace(old, id=new_id, hash=hash_secret(secret), created=now, expires_at=None)

    _, key = _expire(client, keys, key_id, now_ms(client) + int(overlap * 1000), build_successor)
    assert key is not None
    return key, _format_key(key, secret)


def verify(client: Redis, keys: Keys, given: SecretStr, scope: str | None = "submit") -> Key:
    """Return the record of a key that has `scope`; None: any scope.

    Raises KeyInvalid, KeyRevoked and KeyScopeMissing. No message contains any part of the secret.
    """
    match = _KEY.fullmatch(given.get_secret_value().strip())
    data: Any = client.hget(keys("api_keys"), match[1]) if match else None
    record = _read(match[1], data) if match and data is not None else None
    known = record.hash if record else _NOBODY
    same = hmac.compare_digest(hash_secret(match[2] if match else ""), known)
    if record is None or not same:
        raise build_key_error("unknown")
    if not record.is_valid(now_ms(client)):
        raise build_key_error("revoked", record.id)
    if scope is not None and not record.may(scope):
        raise build_scope_error(record.id, scope)
    return record


def build_scope_error(key_id: str, scope: str) -> KeyScopeMissing:
    """Return the error for a valid key without a scope."""
    return KeyScopeMissing(
        f"The API key {key_id} lacks the scope {scope}",
        {"path": key_id, "expected": f"a key with the scope {scope}", "fix": "use a key that has it"},
    )


def identify(client: Redis, keys: Keys, config: Settings, about: JobOptions) -> tuple[JobOptions, str]:
    """Return (the options with the agent of the submitter's key, the key's id), or (the options, '') without
    a key.

    Raises KeyInvalid, KeyRevoked and KeyScopeMissing.
    """
    given = about.key or config.key
    if given is None:
        return about, ""
    key = verify(client, keys, given)
    return about.model_copy(update={"agent": key.agent, "key": None}), key.id


def build_key_error(word: str, key_id: str = "") -> AuthError:
    """Return the error for a script's word about a key: missing, unknown or revoked."""
    if word == "missing":
        return KeyMissing(
            "This grid requires an API key",
            {
                "path": "GRIDQ_KEY",
                "expected": "a key that the operator created with `gridq keys create`",
                "fix": "set GRIDQ_KEY or GRIDQ_KEY_FILE, or submit with key=…",
            },
        )
    if word == "revoked":
        return _build_revoked_error(key_id)
    return KeyInvalid(
        "Unknown API key",
        {
            "path": "GRIDQ_KEY",
            "expected": "gq_<id>_<secret>, as `gridq keys create` printed it",
            "fix": "check that it is complete, or ask the operator for a new one",
        },
    )


def hash_secret(secret: str) -> str:
    """Return the hash of a secret, as it is stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _format_key(key: Key, secret: str) -> str:
    return f"gq_{key.id}_{secret}"


def _expire(
    client: Redis, keys: Keys, key_id: str, at: int, build_successor: Callable[[Key], Key] | None = None
) -> tuple[Key, Key | None]:
    """Let a key expire at `at` or earlier, and store its successor, in one transaction."""
    written: list[Key] = []

    def write_keys(pipe: Pipeline) -> None:
        old = _find(pipe, keys, key_id)
        written[:] = [replace(old, expires_at=at if old.expires_at is None else min(at, old.expires_at))]
        if build_successor is not None:
            written.append(build_successor(old))
        pipe.multi()
        pipe.hset(keys("api_keys"), mapping={key.id: key.dump() for key in written})

    # It is repeated if the keys changed in between: a key that was revoked meanwhile must stay revoked.
    client.transaction(write_keys, keys("api_keys"))
    return written[0], written[1] if build_successor is not None else None


def _find(client: Redis, keys: Keys, key_id: str) -> Key:
    data: Any = client.hget(keys("api_keys"), key_id)
    if data is None:
        raise _build_not_found_error(key_id)
    return _read(key_id, data)


def _read(key_id: str, data: bytes) -> Key:
    record: dict[str, Any] = json.loads(data)
    stored = record.get("limits")
    limits = UNLIMITED
    if stored:
        origins = tuple(stored.get("origins", ()))
        limits = KeyLimits(stored.get("rpm"), stored.get("parallel"), stored.get("max_body"), origins)
    return Key(
        key_id,
        record["agent"],
        record.get("team"),
        tuple(record["scopes"]),
        record["hash"],
        record["created"],
        record.get("ends"),
        limits,
    )


def _build_not_found_error(key_id: str) -> KeyNotFound:
    shown = "gq_…" if key_id.startswith("gq_") else key_id[:64]  # never repeat a whole key
    return KeyNotFound(
        f"No key has the id {shown!r}", {"path": "KEY_ID", "expected": "an id from `gridq keys list`"}
    )


def _build_revoked_error(key_id: str) -> KeyRevoked:
    return KeyRevoked(
        f"The API key {key_id} has been revoked" if key_id else "The API key has been revoked",
        {"path": "GRIDQ_KEY", "fix": "ask the operator for a new key"},
    )
