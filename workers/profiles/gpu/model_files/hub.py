"""The Hugging Face hub: find repositories, resolve a reference to files of one commit, and download them into
the hub's own cache.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_HUB_OFFLINE mean what they mean to `huggingface_hub`. The
token is the user's own; it is sent to the endpoint alone, and never logged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gridq.errors import DigestMismatch, GridError, HubUnreachable, ModelGated, ModelNotFound, ModelPullError
from workers.profiles.gpu.model_files.downloads import (
    MAX_HTTP_BYTES,
    Digest,
    OnSource,
    Origin,
    Report,
    Source,
    compute_digests,
    download,
    ignore_source,
    is_disk_full,
    make_bar,
    make_digest_error,
    make_full_error,
    make_origin,
)
from workers.profiles.gpu.model_files.mirror_protocol import MAIN, Access, SharedModel
from workers.profiles.gpu.model_files.quantizations import choose_variant
from workers.profiles.gpu.model_files.references import HubReference

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_SECONDS = 20.0
BLOB_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{7,127}")
HUB = "https://huggingface.co"
LOCK_SECONDS = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. `sha256` is None for small files, which have only a git digest."""

    path: str
    size: int
    sha256: str | None
    git: str | None = None

    @property
    def digest(self) -> Digest | None:
        if self.sha256:
            return Digest("sha256", self.sha256)
        return Digest("git", self.git) if self.git else None


@dataclass(frozen=True)
class HubModel:
    """A model of the hub at one commit, which `revision` names. `note` says which quantization was chosen
    instead of the default. `hub_answers`: the hub said so, and can be asked for the files; else a mirror did.
    """

    repo: str
    commit: str
    quantization: str
    files: tuple[HubFile, ...]
    note: str = ""
    revision: str = MAIN
    access: Access = ""
    hub_answers: bool = True

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Found:
    """A repository that a search found."""

    repo: str
    downloads: int
    gated: bool
    updated: str


def resolve(reference: HubReference) -> HubModel:
    """Return the files that `reference` names, pinned to a commit.

    Raises ModelNotFound, ModelGated, HubUnreachable or ModelPullError.
    """
    with translate_errors(reference.repo), _expect_answer(reference.repo):
        info = _open_api().model_info(
            reference.repo, revision=reference.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
    files = {each.rfilename: each for each in info.siblings or []}
    variant, note = choose_variant(files, reference.choice, reference.repo)
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise ModelPullError(f"The hub states no commit of {reference.repo}", {"path": str(reference)})
    for path in variant.paths:
        if path.startswith("/") or ".." in path.split("/"):  # it becomes a path in the cache
            raise ModelPullError(f"{reference.repo} has a file with an invalid path", {"path": path})
    chosen = []
    for path in variant.paths:
        file = files[path]
        sha256 = file.lfs.sha256 if file.lfs else None
        size = file.lfs.size if file.lfs else file.size
        chosen.append(HubFile(path, size or 0, sha256, file.blob_id))
    access: Access = "private" if info.private else "gated" if info.gated else "open"
    revision = reference.revision or MAIN
    return HubModel(reference.repo, info.sha, variant.label, tuple(chosen), note, revision, access)


def resolve_from_mirror(reference: HubReference, shared: SharedModel) -> HubModel:
    """Return the files that a mirror pulled by `reference`."""
    files = tuple(HubFile(file.path, file.size, file.sha256) for file in shared.files)
    revision = reference.revision or MAIN
    return HubModel(
        reference.repo,
        shared.commit,
        shared.quantization,
        files,
        revision=revision,
        access=shared.access,
        hub_answers=False,
    )


def search(words: str, limit: int = 20) -> list[Found]:
    """Return repositories with GGUF files that match `words`, those with the most downloads first.

    Raises HubUnreachable or ModelPullError.
    """
    with translate_errors(words), _expect_answer(words):
        found = _open_api().list_models(search=words or None, filter="gguf", sort="downloads", limit=limit)
        return [
            Found(
                each.id,
                each.downloads or 0,
                bool(each.gated),
                each.last_modified.date().isoformat() if each.last_modified else "",
            )
            for each in found
        ]


def locate_cache() -> Path:
    """Return the folder of the hub's cache."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(cache)))


def locate_repository(repo: str) -> Path:
    """Return the folder of a repository in the hub's cache."""
    return locate_cache() / f"models--{repo.replace('/', '--')}"


def find_cached(model: HubModel, file: HubFile) -> Path | None:
    """Return the file in the cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(model.repo, file.path, cache_dir=locate_cache(), revision=model.commit)
    return Path(path) if isinstance(path, str) else None


def fetch_file(
    model: HubModel,
    file: HubFile,
    report: Report,
    find_mirrors: Callable[[], Sequence[Source]] = tuple,
    on_source: OnSource = ignore_source,
) -> tuple[Path, str]:
    """Download a file into the cache, or verify it there. Return its path and its SHA-256.

    The mirrors that `find_mirrors` returns, called if the file must be downloaded, are asked before the hub.
    If the hub cannot be reached or refuses, they are enough. Raises the errors of `resolve` and of
    `downloads.download`.
    """
    cached = find_cached(model, file)
    if cached is not None:
        with cached.open("rb") as opened:
            sha256, git = compute_digests(opened, file.size, report)
        if file.digest is None or file.digest.value in (sha256, git):
            return cached, sha256
        remove_file(cached)  # it was damaged on the disk
    sources = list(find_mirrors())
    blob_name = file.sha256 or ""
    is_only_by_xet = model.hub_answers and file.size > MAX_HTTP_BYTES
    try:
        origin, blob_name = _find_origin(model, file)
    except (HubUnreachable, ModelGated, ModelNotFound):
        if not sources:
            raise
    else:
        sources += [] if is_only_by_xet else [origin]
    with translate_errors(model.repo, file.path):
        if sources:
            blob = locate_repository(model.repo) / "blobs" / blob_name
            try:
                sha256 = download(
                    sources,
                    blob,
                    size=file.size,
                    digest=file.digest,
                    report=report,
                    name=f"{model.repo}/{file.path}",
                    on_source=on_source,
                )
                return _name_blob(model, file, blob), sha256
            except (HubUnreachable, DigestMismatch):
                if not is_only_by_xet:
                    raise
        return _fetch_by_xet(model, file, report, on_source)


def _find_origin(model: HubModel, file: HubFile) -> tuple[Origin, str]:
    """Return where the hub has a file, and its ETag, which becomes the name of its blob in the cache.

    Raises HubUnreachable, at once if the hub did not answer before, and the other errors of `resolve`.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if not model.hub_answers:
        raise HubUnreachable("The hub cannot be reached", {"path": f"hf:{model.repo}:{file.path}"})
    endpoint = _get_endpoint()
    url = hf_hub_url(model.repo, file.path, revision=model.commit, endpoint=endpoint)
    with translate_errors(model.repo, file.path):
        metadata = get_hf_file_metadata(url, timeout=TIMEOUT_SECONDS, endpoint=endpoint)
    headers = build_hf_headers()
    if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the token is for the hub, not for where it stores files
    etag = metadata.etag or file.sha256 or file.git
    if not etag or not BLOB_NAME.fullmatch(etag):  # it becomes the name of a file
        raise ModelPullError(f"The hub states no valid ETag of {file.path}", {"path": f"hf:{model.repo}"})
    return make_origin(metadata.location, headers, endpoint), etag


def _name_blob(model: HubModel, file: HubFile, blob: Path) -> Path:
    """Give a blob its name in the snapshot of its commit, as the hub's client does. Return that path."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    folder = locate_repository(model.repo)
    path = folder / "snapshots" / model.commit / file.path
    locks = locate_cache() / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{blob.name}.lock", timeout=LOCK_SECONDS):
        path.unlink(missing_ok=True)
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:  # a disk without links has the file itself there
            os.replace(blob, path)
    if not _COMMIT.fullmatch(model.revision):
        ref = folder / "refs" / model.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(model.commit)
    return path


def _fetch_by_xet(model: HubModel, file: HubFile, report: Report, on_source: OnSource) -> tuple[Path, str]:
    """Download a file that is too large for HTTP. The hub's client does not continue such a download."""
    from huggingface_hub import hf_hub_download

    on_source(urlsplit(_get_endpoint()).hostname or "")
    path = hf_hub_download(
        model.repo,
        file.path,
        revision=model.commit,
        cache_dir=locate_cache(),
        endpoint=_get_endpoint(),
        tqdm_class=make_bar(0, file.size, report),
    )
    with open(path, "rb") as opened:
        sha256, git = compute_digests(opened, file.size, report)
    if file.digest is not None and file.digest.value not in (sha256, git):
        remove_file(Path(path))
        raise make_digest_error(file.path, file.digest, sha256)
    return Path(path), sha256


def remove_file(path: Path) -> None:
    """Remove a file of the cache: its name, its content unless another name has it, and empty folders with
    the branches that named them.
    """
    blob = path.resolve()
    is_link = path.is_symlink()
    path.unlink(missing_ok=True)
    snapshots = next((each for each in path.parents if each.name == "snapshots"), None)
    if is_link and snapshots is not None:
        others = (each for each in snapshots.rglob("*") if each.is_symlink())
        if not any(each.resolve() == blob for each in others):
            blob.unlink(missing_ok=True)
    folder = path.parent
    while snapshots is not None and folder != snapshots and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
    if snapshots is not None:
        for ref in snapshots.parent.glob("refs/**/*"):
            if ref.is_file() and not (snapshots / ref.read_text().strip()).is_dir():
                ref.unlink()  # the hub's tools take a branch without its commit for damage


def _get_endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def _open_api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=_get_endpoint())


@contextmanager
def translate_errors(repo: str, file: str = "") -> Iterator[None]:
    """Raise the errors of the hub's client in the block as those of gridq."""
    try:
        yield
    except GridError:
        raise
    except Exception as exc:
        error = _translate(exc, repo, file)
        if error is None:
            raise
        raise error from None


@contextmanager
def _expect_answer(about: str) -> Iterator[None]:
    """Raise HubUnreachable if the hub's client does not find in an answer what it looks for: a proxy or the
    page of a network's login may have answered.
    """
    try:
        yield
    except (json.JSONDecodeError, LookupError, TypeError, AttributeError) as exc:
        reason = f"{_get_endpoint()} answered something else ({type(exc).__name__}: {exc})"
        details = {"path": f"hf:{about}", "reason": reason, "fix": "check HF_ENDPOINT and the network"}
        raise HubUnreachable("The hub cannot be reached", details) from None


def _translate(exc: BaseException, repo: str, file: str) -> GridError | None:
    import httpx2
    from huggingface_hub import errors

    path = f"hf:{repo}" + (f":{file}" if file else "")
    page = f"{_get_endpoint()}/{repo}"
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, errors.HfHubHTTPError):
        cause = cause.__cause__  # the client wraps what its first request said
    if isinstance(exc, errors.OfflineModeIsEnabled) or isinstance(exc.__cause__, errors.OfflineModeIsEnabled):
        return HubUnreachable(
            "This machine is set to work offline",
            {
                "path": path,
                "reason": "HF_HUB_OFFLINE is set",
                "fix": "unset HF_HUB_OFFLINE, or use file:/path",
            },
        )
    if isinstance(cause, errors.GatedRepoError):
        return ModelGated(f"{repo} is gated", {"path": path, "fix": _explain_access(page)})
    if isinstance(cause, errors.RevisionNotFoundError):
        return ModelNotFound(f"{repo} has no such revision", {"path": path, "fix": f"see {page}/tree/main"})
    if isinstance(cause, errors.EntryNotFoundError):
        return ModelNotFound(f"{repo} has no file {file!r}", {"path": path, "fix": f"see {page}/tree/main"})
    if isinstance(cause, errors.RepositoryNotFoundError):
        fix = f"correct the name; if it is private: {_explain_access(page)}"
        return ModelNotFound(
            f"The hub has no repository {repo!r}, or does not show it to you", {"path": path, "fix": fix}
        )
    if isinstance(cause, errors.HfHubHTTPError):
        return _translate_status(cause.response.status_code, cause.response.headers, path, page)
    if isinstance(exc, errors.HFValidationError):
        return ModelNotFound(f"{repo!r} is not the name of a repository", {"path": path})
    if isinstance(
        exc, httpx2.RequestError | httpx2.InvalidURL | errors.LocalEntryNotFoundError | ConnectionError
    ):
        reason = f"{type(exc).__name__}: {exc}" if not isinstance(exc, errors.LocalEntryNotFoundError) else ""
        return HubUnreachable(
            "The hub cannot be reached",
            {
                "path": path,
                "reason": reason or f"{_get_endpoint()} does not answer",
                "fix": "check the network, HTTPS_PROXY and HF_ENDPOINT; what was downloaded is kept",
            },
        )
    if isinstance(exc, OSError) and is_disk_full(exc):
        return make_full_error(locate_cache())
    if isinstance(exc, OSError | ValueError):
        return ModelPullError(f"{repo} was not downloaded", {"path": path, "reason": str(exc).split("\n")[0]})
    return None


def _translate_status(status: int, headers: Any, path: str, page: str) -> GridError:
    if status in (401, 403):
        return ModelGated(f"The hub refused access ({status})", {"path": path, "fix": _explain_access(page)})
    if status == 404:
        return ModelNotFound("The hub has no such model", {"path": path, "fix": f"see {page}"})
    details: dict[str, Any] = {"path": path, "reason": f"it answered {status}"}
    if status == 429:
        wait = headers.get("retry-after", "")
        if wait.isdigit():
            details["retry_after"] = int(wait)
        details["fix"] = "wait some minutes, or log in: the limit of a token is higher"
    return HubUnreachable("The hub does not serve the request now", details)


def _explain_access(page: str) -> str:
    return f"accept its terms at {page}, then set HF_TOKEN, or run: hf auth login"
