"""API keys: which agent submits.

A key reads `gq_<id>_<secret>`. The id is public: it finds the record, and it is what lists and logs show. Of
the secret only its SHA-256 is stored. A slow password hash would add nothing: the secret is 256 random bits,
so nobody guesses it, however fast each guess is. It is compared in constant time. Who has no key at hand can
neither read one back from the grid nor from a job, a message or a log.

The grid asks for keys as soon as it has one, and then goes on asking: revoking the last one does not open it.
Scripts check with each admission that the key still stands, so a revoked key ends at once everywhere.
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
"""What a key may be for: `submit` jobs, `read` its own jobs, `read-all` jobs, `operate`: drain seats, cancel
others' jobs, act on quarantined stages, and read it all.
"""

USUAL = ("submit", "read")
"""The scopes of a key that is made without any being named."""

ALL = frozenset(SCOPES)

GRANTS = {"read": {"read", "read-all", "operate"}, "read-all": {"read-all", "operate"}}
"""By which scopes one is granted, where others than itself grant it too."""

_KEY = re.compile(r"gq_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"").hexdigest()


MOST_RPM = 60_000
MOST_PARALLEL = 10_000
LEAST_BODY = 1024

_ORIGIN = re.compile(
    r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-fA-F:.]{2,45}\](:[0-9]{1,5})?"
)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may ask of all gateways together: requests a minute, and open at once; bytes of a body.
    With `origins` no page of another origin may use it. None, and no origins: as the gateway has it.
    """

    rpm: int | None = None
    parallel: int | None = None
    max_body: int | None = None
    origins: tuple[str, ...] = ()

    def check(self) -> None:
        """ConfigError: one of them is none."""
        bounds = (
            ("rpm", self.rpm, 1, MOST_RPM),
            ("parallel", self.parallel, 1, MOST_PARALLEL),
            ("max-body", self.max_body, LEAST_BODY, 2**40),
        )
        for name, value, least, most in bounds:
            if value is not None and not least <= value <= most:
                raise ConfigError(
                    f"{value} is no limit", {"path": f"--{name}", "expected": f"{least} to {most}"}
                )
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"{origin[:100]!r} is no origin",
                    {"path": "--origin", "expected": "scheme, host and port alone: https://app.example.com"},
                )

    def dump(self) -> dict[str, Any]:
        """Those that are set, as JSON."""
        found = {"rpm": self.rpm, "parallel": self.parallel, "max_body": self.max_body}
        more = {"origins": list(self.origins)} if self.origins else {}
        return {name: value for name, value in found.items() if value is not None} | more


UNLIMITED = KeyLimits()


@dataclass(frozen=True, slots=True)
class Key:
    """The record of one key. Times in ms on the server's clock."""

    id: str
    agent: str
    team: str | None
    scopes: tuple[str, ...]
    hash: str
    created: int
    ends: int | None = None
    limits: KeyLimits = UNLIMITED

    def stands(self, now_ms: int) -> bool:
        """Whether it is good at `now_ms`."""
        return self.ends is None or now_ms < self.ends

    def may(self, scope: str) -> bool:
        """Whether the key is for `scope`."""
        return not GRANTS.get(scope, {scope}).isdisjoint(self.scopes)

    def dump(self) -> str:
        """As the server keeps it."""
        record = {"agent": self.agent, "scopes": self.scopes, "hash": self.hash, "created": self.created}
        more = {"team": self.team, "ends": self.ends, "limits": self.limits.dump() or None}
        return json.dumps(record | {name: value for name, value in more.items() if value is not None})


def create(
    client: Redis,
    keys: Keys,
    agent: str,
    *,
    team: str | None = None,
    scopes: Sequence[str] = USUAL,
    limits: KeyLimits = UNLIMITED,
) -> tuple[Key, str]:
    """Make a key for an agent: its record, and the key itself, which is not kept and cannot be shown again.

    ConfigError: a name, a scope or a limit is none, or the agent's other keys put it into another team.
    """
    limits.check()
    for what, name in (("agent", agent), ("team", team)):
        if name is not None and (not NAME.fullmatch(name) or (what == "team" and name == NO_TEAM)):
            raise ConfigError(
                f"{name!r} is no {what}",
                {"path": f"--{what}", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
            )
    wrong = [scope for scope in scopes if scope not in SCOPES]
    if wrong or not scopes:
        raise ConfigError(
            f"There is no scope {wrong[0]!r}" if wrong else "A key is for something",
            {"path": "--scope", "expected": " or ".join(SCOPES)},
        )
    now = now_ms(client)
    for other in listing(client, keys):
        if other.agent == agent and other.stands(now) and other.team != team:
            where = f"in the team {other.team!r}" if other.team else "in no team"
            raise ConfigError(
                f"The agent {agent!r} has a key {where}",
                {
                    "path": "--team",
                    "expected": "one team for each agent",
                    "fix": f"give the same team, or first `gridq keys revoke {other.id}`",
                },
            )
    secret = secrets.token_urlsafe(32)
    chosen = tuple(dict.fromkeys(scopes))
    key = Key(secrets.token_hex(6), agent, team, chosen, digest(secret), now, limits=limits)
    client.hset(keys("api_keys"), key.id, key.dump())
    return key, _text(key, secret)


def listing(client: Redis, keys: Keys) -> list[Key]:
    """Every key there is or was, the oldest first; no secret is among it."""
    found: Any = client.hgetall(keys("api_keys"))
    records = [_read(key.decode(), data) for key, data in found.items()]
    return sorted(records, key=lambda key: (key.created, key.id))


def revoke(client: Redis, keys: Keys, key_id: str) -> Key:
    """End a key at once; its record stays, so that the grid goes on asking for keys. KeyNotFound."""
    return _end(client, keys, key_id, now_ms(client))[0]


def forget(client: Redis, keys: Keys, key_id: str) -> bool:
    """Delete a key's record; True where none is left: the grid then asks nobody for a key. KeyNotFound."""
    if not client.hdel(keys("api_keys"), key_id):
        raise _not_found(key_id)
    return not client.exists(keys("api_keys"))


def rotate(client: Redis, keys: Keys, key_id: str, overlap: float = 0.0) -> tuple[Key, str]:
    """A new key for the same agent, team, scopes and limits; the old one is good for `overlap` seconds more.

    KeyNotFound; KeyRevoked: it has ended already, or does so meanwhile; there is no new one then.
    """
    secret = secrets.token_urlsafe(32)
    new_id = secrets.token_hex(6)

    def successor(old: Key) -> Key:
        now = now_ms(client)  # asked each time: the old one may have been revoked just now
        if not old.stands(now):
            raise _revoked(key_id)
        return replace(old, id=new_id, hash=digest(secret), created=now, ends=None)

    _, key = _end(client, keys, key_id, now_ms(client) + int(overlap * 1000), successor)
    assert key is not None
    return key, _text(key, secret)


def verify(client: Redis, keys: Keys, given: SecretStr, scope: str | None = "submit") -> Key:
    """The record of a key, whatever it is for where `scope` is None. KeyInvalid, KeyRevoked, KeyScopeMissing;
    no message holds any of the key.
    """
    match = _KEY.fullmatch(given.get_secret_value().strip())
    data: Any = client.hget(keys("api_keys"), match[1]) if match else None
    record = _read(match[1], data) if match and data is not None else None
    known = record.hash if record else _NOBODY
    same = hmac.compare_digest(digest(match[2] if match else ""), known)
    if record is None or not same:
        raise refused("unknown")
    if not record.stands(now_ms(client)):
        raise refused("revoked", record.id)
    if scope is not None and not record.may(scope):
        raise lacks(record.id, scope)
    return record


def lacks(key_id: str, scope: str) -> KeyScopeMissing:
    """The key is good, but not for `scope`."""
    return KeyScopeMissing(
        f"The key {key_id} may not {scope}",
        {"path": key_id, "expected": f"the scope {scope}", "fix": "use a key that has it"},
    )


def identify(client: Redis, keys: Keys, config: Settings, about: JobOptions) -> tuple[JobOptions, str]:
    """(the options with the key's agent in place of what the caller says, the key's id); unchanged and ''
    where no key is given. KeyInvalid, KeyRevoked, KeyScopeMissing.
    """
    given = about.key or config.key
    if given is None:
        return about, ""
    key = verify(client, keys, given)
    return about.model_copy(update={"agent": key.agent, "key": None}), key.id


def refused(word: str, key_id: str = "") -> AuthError:
    """What a script's word about a key means: missing, unknown or revoked."""
    if word == "missing":
        return KeyMissing(
            "This grid asks for an API key",
            {
                "path": "GRIDQ_KEY",
                "expected": "a key that the operator made by `gridq keys create`",
                "fix": "set GRIDQ_KEY or GRIDQ_KEY_FILE, or submit with key=…",
            },
        )
    if word == "revoked":
        return _revoked(key_id)
    return KeyInvalid(
        "The API key is none of this grid's",
        {
            "path": "GRIDQ_KEY",
            "expected": "gq_<id>_<secret> as `gridq keys create` printed it",
            "fix": "check it for a missing end, or ask the operator for a new one",
        },
    )


def digest(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _text(key: Key, secret: str) -> str:
    return f"gq_{key.id}_{secret}"


def _end(
    client: Redis, keys: Keys, key_id: str, at: int, successor: Callable[[Key], Key] | None = None
) -> tuple[Key, Key | None]:
    """End a key at `at`, or before where it ends before, and store its successor, both or neither."""
    written: list[Key] = []

    def once(pipe: Pipeline) -> None:
        old = _find(pipe, keys, key_id)
        written[:] = [replace(old, ends=at if old.ends is None else min(at, old.ends))]
        if successor is not None:
            written.append(successor(old))
        pipe.multi()
        pipe.hset(keys("api_keys"), mapping={key.id: key.dump() for key in written})

    # Again where somebody else wrote in between: what was revoked meanwhile must not come back.
    client.transaction(once, keys("api_keys"))
    return written[0], written[1] if successor is not None else None


def _find(client: Redis, keys: Keys, key_id: str) -> Key:
    data: Any = client.hget(keys("api_keys"), key_id)
    if data is None:
        raise _not_found(key_id)
    return _read(key_id, data)


def _read(key_id: str, data: bytes) -> Key:
    record: dict[str, Any] = json.loads(data)
    told = record.get("limits")
    limits = UNLIMITED
    if told:
        origins = tuple(told.get("origins", ()))
        limits = KeyLimits(told.get("rpm"), told.get("parallel"), told.get("max_body"), origins)
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


def _not_found(key_id: str) -> KeyNotFound:
    shown = "gq_…" if key_id.startswith("gq_") else key_id[:64]  # a whole key is repeated nowhere
    return KeyNotFound(
        f"No key has the id {shown!r}",
        {"path": "KEY_ID", "expected": "an id as `gridq keys list` shows it"},
    )


def _revoked(key_id: str) -> KeyRevoked:
    return KeyRevoked(
        f"The API key {key_id} has been revoked" if key_id else "The API key has been revoked",
        {"path": "GRIDQ_KEY", "fix": "ask the operator for a new key"},
    )
