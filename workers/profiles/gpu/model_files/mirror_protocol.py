"""What mirrors, machines that share their models with the grid, and those who ask them agree on.

A mirror advertises its address, its models with the digests of their files, and a secret of its own, which
only readers of the grid's Redis know. A request for a file states its digest and is signed with the secret,
for two minutes. It never states a path.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gridq.errors import ModelReferenceInvalid
from workers.profiles.gpu.model_files.quantizations import DEFAULT
from workers.profiles.gpu.model_files.references import HubReference, parse_reference

log = logging.getLogger(__name__)

PATH = "/models/"
"""The path of every request; the digest of the file follows."""

SIGNED_SECONDS = 120
MAX_SKEW_SECONDS = 60
"""How far the clocks of two machines may be apart: `gridq join` refuses more."""

MAIN = "main"
"""The branch of a reference without a revision."""

MAX_FILE_BYTES = 10**15
MAX_TIME = 32_503_680_000.0
"""The year 3000, in seconds since 1970: a time beyond cannot be shown everywhere."""

_URL = re.compile(r"http://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})/?", re.ASCII)

Access = Literal["", "open", "gated", "private"]
"""Who may read a repository, as the hub said when it was pulled; "" if it did not say."""


class SharedFile(BaseModel):
    """A file of a shared model: its path in the repository, its size in bytes, its digest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str = Field(pattern=r"^[^\x00-\x1f\\]+$", max_length=1024)
    size: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        if any(part in ("", ".", "..") for part in path.split("/")):  # it becomes a path in the cache
            raise ValueError("not a path in a repository")
        return path


class SharedModel(BaseModel):
    """A model that a mirror has. `reference`, `commit` and `quantization` are "" unless it is of the hub."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    reference: str = ""
    commit: str = Field(default="", pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?$")
    quantization: str = Field(default="", pattern=r"^[^\x00-\x1f\x7f]*$", max_length=1024)
    access: Access = ""
    pulled_at: float = Field(default=0.0, ge=0, le=MAX_TIME, allow_inf_nan=False)
    files: tuple[SharedFile, ...] = Field(min_length=1)

    def answers(self, wanted: HubReference) -> bool:
        """Return whether the hub would give this model for the reference `wanted`, as far as is known."""
        try:
            known = parse_reference(self.reference)
        except ModelReferenceInvalid:
            return False
        if not isinstance(known, HubReference) or known.repo != wanted.repo or not self.commit:
            return False
        if (wanted.revision or MAIN) not in (known.revision or MAIN, self.commit):
            return False
        if wanted.choice == known.choice:
            return True
        names = {self.quantization.lower(), *(file.path.lower() for file in self.files[:1])}
        return (wanted.choice or DEFAULT).lower() in names


class Mirror(BaseModel):
    """A machine that shares its models, as it advertises itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    machine: str
    url: str
    secret: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    models: tuple[SharedModel, ...] = ()

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        match = _URL.fullmatch(url)  # no login, no query: the path of a request follows
        labels = match[1].split(".") if match and not match[1].startswith("[") else ["name"]
        if match is None or not 0 < int(match[2]) < 65536 or not all(0 < len(each) < 64 for each in labels):
            raise ValueError("http://host:port is expected")
        return url.rstrip("/")

    def find_file(self, sha256: str) -> SharedFile | None:
        return next((file for model in self.models for file in model.files if file.sha256 == sha256), None)


FindMirrors = Callable[[], Iterable[Mirror]]
"""Looks up the mirrors of the grid. It never raises: a grid that cannot be reached has none."""


def parse_mirrors(texts: Mapping[str, str | bytes]) -> list[Mirror]:
    """Return the mirrors of the advertisements by machine. One that is not valid is left out."""
    found = []
    for machine, text in texts.items():
        try:
            mirror = Mirror.model_validate_json(text)
        except ValidationError as exc:
            reason = exc.errors(include_input=False, include_url=False)[0]["msg"]
            log.warning("ignoring what %s advertises of its models: %s", machine, reason)
            continue
        found.append(mirror.model_copy(update={"machine": machine}))
    return found


def make_secret() -> str:
    return secrets.token_hex(32)


def sign(secret: str, sha256: str, now: float | None = None) -> str:
    """Return the Authorization header of a request for the file with this digest."""
    expires = int((time.time() if now is None else now) + SIGNED_SECONDS)
    return f"gridq {expires}.{_compute_signature(secret, sha256, expires)}"


def is_signed(secret: str, sha256: str, header: str, now: float | None = None) -> bool:
    """Return whether an Authorization header is one that `sign` made lately. Takes the same time for every
    wrong signature.
    """
    match = re.fullmatch(r"gridq (\d{1,12})\.([0-9a-f]{64})", header, re.ASCII)
    if match is None:
        return False
    expires, seconds = int(match[1]), time.time() if now is None else now
    is_right = hmac.compare_digest(match[2], _compute_signature(secret, sha256, expires))
    return is_right and -MAX_SKEW_SECONDS <= expires - seconds <= SIGNED_SECONDS + MAX_SKEW_SECONDS


def _compute_signature(secret: str, sha256: str, expires: int) -> str:
    return hmac.new(secret.encode(), f"GET {PATH}{sha256} {expires}".encode(), hashlib.sha256).hexdigest()
