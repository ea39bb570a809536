"""References: how people and the seats file name a model.

| reference | model |
|---|---|
| `hf:org/repo` | a repository of the Hugging Face hub, in Q4_K_M or the nearest quantization that it has |
| `hf:org/repo:Q5_K_M`, `hf:org/repo:name.gguf` | the same in that quantization, or that file |
| `hf:org/repo@revision:…` | the same at a branch, a tag or a commit |
| `file:/path/model.gguf`, `/path/model.gguf` | a file of this machine |
| `https://host/model.gguf#sha256=…` | a file of a web server; the digest is optional |
| `qwen3-8b` | a name of this machine's catalogue |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gridq.config.urls import is_loopback
from gridq.errors import ModelReferenceInvalid

EXPECTED = "hf:org/repo, hf:org/repo:quant, file:/path, https://…, or a name in [[gpu.models]]"

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REVISION = re.compile(r"[\w./-]{1,255}")
_CHOICE = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
_NAME = re.compile(r"[A-Za-z0-9][\w.:@/-]{0,127}")
_LOGIN = re.compile(r"(?<=//)[^/?#]*@")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB_PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/?", re.ASCII)


@dataclass(frozen=True)
class HubReference:
    """A model of the hub. `choice` is a quantization or the name of a file, None for the default."""

    repo: str
    choice: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{revision}" + (f":{self.choice}" if self.choice else "")


@dataclass(frozen=True)
class FileReference:
    """A file of this machine."""

    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


@dataclass(frozen=True)
class UrlReference:
    """A file of a web server, and the digest that it must have, if the reference states one."""

    url: str
    sha256: str | None = None

    def __str__(self) -> str:
        return self.url + (f"#sha256={self.sha256}" if self.sha256 else "")


@dataclass(frozen=True)
class CatalogueReference:
    """A model of this machine's catalogue, by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


Reference = HubReference | FileReference | UrlReference | CatalogueReference


def parse_reference(text: str, path: str = "model") -> Reference:
    """Return what `text` refers to. Raises ModelReferenceInvalid at `path`."""
    text = text.strip()
    page = _HUB_PAGE.fullmatch(text)
    if page:
        raise _make_error(text, path, "it is the page of a repository", f"hf:{page[1]}")
    if text.startswith("hf:"):
        return _parse_hub(text, path)
    if text.startswith("file:"):
        return _parse_file(text, path)
    if text.startswith(("/", "~", "./", "../")):
        return FileReference(Path(text).expanduser().absolute())
    if text.startswith(("https:", "http:")):
        return _parse_url(text, path)
    if not _NAME.fullmatch(text):
        raise _make_error(text, path, "it has a character that no name has")
    if _REPO.fullmatch(text.partition(":")[0]):
        raise _make_error(text, path, "a repository of the hub has hf: in front", f"hf:{text}")
    return CatalogueReference(text)


def _parse_hub(text: str, path: str) -> HubReference:
    head, colon, choice = text.removeprefix("hf:").removeprefix("//").partition(":")
    repo, at, revision = head.partition("@")
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise _make_error(text, path, "the repository is not org/repo")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise _make_error(text, path, "the revision after @ is not a branch, a tag or a commit")
    if colon and (not _CHOICE.fullmatch(choice) or ".." in choice):
        raise _make_error(text, path, "what follows the second colon is no quantization and no file")
    return HubReference(repo, choice or None, revision or None)


def _parse_file(text: str, path: str) -> FileReference:
    name = text.removeprefix("file:")
    if name.startswith("//"):
        name = name.removeprefix("//").removeprefix("localhost")
    if not name.startswith(("/", "~")):
        raise _make_error(text, path, "the path is not absolute", f"file:{Path(name or '.').absolute()}")
    return FileReference(Path(name).expanduser())


def _parse_url(text: str, path: str) -> UrlReference:
    url, _, fragment = text.partition("#")
    shown = _LOGIN.sub("", text)  # no error shows the password
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _make_error(shown, path, "the URL has no valid host and port") from None
    if shown != text:
        raise _make_error(shown, path, "the URL holds a login, which would stand in logs")
    if not parts.hostname or parts.path in ("", "/"):
        raise _make_error(text, path, "the URL names no file")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise _make_error(text, path, "only https is allowed", "https" + text.removeprefix("http"))
    digest = fragment.removeprefix("sha256=").lower()
    if fragment and not (fragment.startswith("sha256=") and _SHA256.fullmatch(digest)):
        raise _make_error(text, path, "what follows # is not sha256= and 64 hexadecimal digits")
    return UrlReference(url, digest or None)


def _make_error(text: str, path: str, reason: str, use: str = "") -> ModelReferenceInvalid:
    details = {"path": path, "reason": reason, "expected": EXPECTED}
    if use:
        details["fix"] = f"write {use}"
    return ModelReferenceInvalid(f"{text[:120]!r} is not a reference to a model", details)
