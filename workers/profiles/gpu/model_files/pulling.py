"""Pull a model: resolve its reference, make room, download and verify its files, add it to the list.

One process pulls a model at a time. It writes its progress to `<home>/pulls/<name>.json`, under a lock, and
others follow that: a second `pull` of the same model waits for the first and returns its model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gridq.config.home import is_locked, make_folder_error, write_private
from gridq.config.locked_json import update_json
from gridq.config.machine_id import get_machine_id
from gridq.errors import (
    ConfigError,
    GridError,
    HubUnreachable,
    ModelGated,
    ModelInUse,
    ModelNotFound,
    ModelPullError,
    ModelTooLarge,
    error_from_record,
)
from gridq.protocol import queue_names
from workers.model_apis.model_catalogue import CHECKSUM_CACHE, remember_checksum
from workers.profiles.gpu.memory.gguf_file import read_gguf
from workers.profiles.gpu.model_files import hub
from workers.profiles.gpu.model_files.downloads import (
    AGAIN,
    ANOTHER_PROCESS,
    Digest,
    Report,
    Source,
    check_disk,
    compute_digests,
    download,
    format_bytes,
    make_origin,
)
from workers.profiles.gpu.model_files.file_use import is_in_use
from workers.profiles.gpu.model_files.local_models import (
    DEFAULT_CONTEXT,
    DOWNLOADS,
    LocalFile,
    LocalModel,
    LocalModels,
    make_name,
    remove_empty_folders,
)
from workers.profiles.gpu.model_files.mirror_client import Mirrors
from workers.profiles.gpu.model_files.mirror_protocol import FindMirrors
from workers.profiles.gpu.model_files.model_folders import check_folders
from workers.profiles.gpu.model_files.references import (
    CatalogueReference,
    FileReference,
    HubReference,
    Reference,
    UrlReference,
    parse_reference,
)

FOLDER = "pulls"
ROOM = "room"
"""The file in FOLDER with the bytes that each pull which runs was promised."""

WRITE_SECONDS = 0.3
"""How often the progress is written."""

FOLLOW_SECONDS = 0.2
LOCK_SECONDS = 0.5
ETA_AFTER_SECONDS = 5.0
ETA_AFTER_SHARE = 0.01
"""An estimate of the remaining time is made after both: before, it means nothing."""

DEADLINE_SECONDS = 600.0
DEADLINE_SECONDS_PER_GB = 300.0
STALL_SECONDS = 300.0
"""A pull ends if it takes longer than the first two allow, or makes no progress for the third."""


@dataclass(frozen=True)
class PullProgress:
    """How far a pull is. `state`: resolving, downloading, waiting (for a machine that gives files to others
    now), verifying, done or failed. Sizes in bytes. `source`: the host or the machine that gives the file.
    """

    name: str
    reference: str
    state: str = "resolving"
    done: int = 0
    total: int = 0
    eta: float | None = None
    note: str = ""
    source: str = ""
    error: dict[str, Any] | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")

    @property
    def share(self) -> float:
        """The part that is done, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


@dataclass(frozen=True)
class PullOptions:
    """What to register a model as, and limits. `name`: None for one made from the reference.

    `max_bytes` limits this model, `cache_bytes` all that gridq has downloaded. `folders`: those in which a
    file of this machine may be; empty: any.
    """

    name: str | None = None
    context: int | None = None
    families: tuple[str, ...] = ()
    any: bool | None = None
    embeddings: bool | None = None
    max_bytes: int | None = None
    cache_bytes: int | None = None
    folders: tuple[str, ...] = ()


Watch = Callable[[PullProgress], None]


def choose_name(reference: Reference, options: PullOptions) -> str:
    """Return the name under which a pull registers its model."""
    if options.name:
        return options.name
    if isinstance(reference, HubReference):
        return make_name(reference)
    if isinstance(reference, UrlReference):
        return make_name(urlsplit(reference.url).path)
    return make_name(reference.path.name if isinstance(reference, FileReference) else reference.name)


def pull(
    reference: Reference,
    home: Path,
    options: PullOptions = PullOptions(),
    watch: Watch = lambda _: None,
    find_mirrors: FindMirrors = list,
) -> LocalModel:
    """Download what `reference` names, register it in `home`, and return it. `watch` gets the progress, and
    ends the pull if it raises; what was downloaded is used by the next. The mirrors of the grid are asked
    before the hub or the web server.

    Raises ModelPullError and its subclasses; ModelFileError if the file is no GGUF model.
    """
    if isinstance(reference, CatalogueReference):
        raise ModelNotFound(
            f"No model {reference.name!r} is known",
            {
                "path": reference.name,
                "expected": "the name of a model in [[gpu.models]], or a reference",
                "fix": f"gridq models search {reference.name}",
            },
        )
    name = choose_name(reference, options)
    with PullFile(home, name) as record:
        if not record.is_ours:
            return record.follow(str(reference), watch)
        progress = _Progress(PullProgress(name, str(reference)), record, watch)
        try:
            mirrors = Mirrors(find_mirrors, get_machine_id(home))
            model = _pull(reference, home, name, options, progress, mirrors=mirrors)
            LocalModels(home).add(model)
            for file in model.files:
                remember_checksum(Path(file.path), file.sha256, home / CHECKSUM_CACHE)
        except BaseException as exc:
            progress.fail(exc)
            raise
        progress.update(state="done", done=model.size, total=model.size, eta=None)
        return model


def compute_deadline(size: int) -> float:
    """Return the seconds that a pull of `size` bytes may take."""
    return DEADLINE_SECONDS + DEADLINE_SECONDS_PER_GB * size / 1e9


def read_progress(home: Path, name: str) -> PullProgress | None:
    """Return the progress of the latest pull of a model, None if there was none.

    One whose process was killed is `failed`.
    """
    path = _locate(home, name).with_suffix(".json")
    try:
        found = PullProgress(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    if not found.is_over and not is_locked(path.parent, path.stem):
        error = ModelPullError("The pull was interrupted", {"fix": AGAIN})
        return replace(found, state="failed", error=error.to_record())
    return found


def list_progress(home: Path) -> list[PullProgress]:
    """Return the latest pull of every model, by name."""
    names = sorted(path.stem for path in (home / FOLDER).glob("*.json"))
    return [found for found in (read_progress(home, unquote(name)) for name in names) if found is not None]


def forget_pull(home: Path, name: str) -> int:
    """Remove what a pull that broke off has left. Return the bytes that this freed.

    Raises ModelNotFound if there is none, and ModelInUse if it runs.
    """
    progress = read_progress(home, name)
    if progress is None:
        LocalModels(home).get(name)
        return 0
    if not progress.is_over:
        raise ModelInUse(f"The model {name!r} is being pulled", {"path": name, "fix": "wait for it"})
    freed = 0
    reference = parse_reference(progress.reference)
    folders = [home / DOWNLOADS]
    if isinstance(reference, HubReference):
        folders = [hub.locate_repository(reference.repo)]
    for path in [each for folder in folders for each in folder.rglob("*.gridq.incomplete")]:
        if is_in_use(path):
            continue  # a pull under another name, or of another home folder
        freed += path.stat().st_size
        path.unlink(missing_ok=True)
    remove_empty_folders(home / DOWNLOADS)
    _locate(home, name).with_suffix(".json").unlink(missing_ok=True)
    return freed


class PullFile:
    """The lock and the record of one model's pull. `is_ours` is False if another process pulls it."""

    def __init__(self, home: Path, name: str) -> None:
        self._path = _locate(home, name)
        self._home = home
        self._name = name
        self.is_ours = False

    def __enter__(self) -> PullFile:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(
                self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as exc:
            raise make_folder_error(self._path.parent, exc) from None
        until = time.monotonic() + LOCK_SECONDS  # who only reads the progress holds the lock for a moment
        while not self.is_ours and time.monotonic() < until:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.is_ours = True
            except OSError:
                time.sleep(LOCK_SECONDS / 20)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def write(self, progress: PullProgress) -> None:
        try:
            write_private(self._path.with_suffix(".json"), json.dumps(asdict(progress)))
        except OSError:  # a full disk: the download itself reports it
            return

    def follow(self, reference: str, watch: Watch) -> LocalModel:
        """Wait for the process that pulls the model, and return its model. Raises its error."""
        while is_locked(self._path.parent, self._path.stem):
            progress = read_progress(self._home, self._name)
            if progress is not None and not progress.is_over:  # else it is that of an earlier pull
                if progress.reference != reference:
                    raise ConfigError(
                        f"Another model is being pulled as {self._name!r}",
                        {"path": "--name", "reason": progress.reference, "fix": "give this one another name"},
                    )
                watch(progress)
            time.sleep(FOLLOW_SECONDS)
        progress = read_progress(self._home, self._name)
        if progress is not None:
            watch(progress)
        if progress is None or progress.state != "done":
            raise error_from_record((progress.error if progress else None) or {})
        return LocalModels(self._home).get(self._name)


class _Progress:
    """The progress of a pull of this process. Ends it when it is late or stands still."""

    def __init__(self, progress: PullProgress, record: PullFile, watch: Watch) -> None:
        self.current = progress
        self._record = record
        self._watch = watch
        self._began = self._moved = time.monotonic()
        self._written = 0.0
        self._last: tuple[int, str] | None = None  # bytes and state of the last report
        self._start: int | None = None
        record.write(progress)
        watch(progress)

    def update(self, **changes: Any) -> None:
        before = self.current
        self.current = replace(before, **changes)
        now = time.monotonic()
        if before.state != self.current.state or now - self._written >= WRITE_SECONDS:
            self._written = now
            self._record.write(self.current)
            self._watch(self.current)

    def report(self, offset: int) -> Report:
        """Return the function that a download reports to; `offset`: the bytes of the files before."""

        def report(done: int, total: int, state: str) -> None:
            now, before = time.monotonic(), self.current
            position = offset + (0 if state == "verifying" else done)
            if state == "waiting" or (done, state) != self._last:
                self._moved, self._last = now, (done, state)
            if now - self._moved > STALL_SECONDS or now - self._began > compute_deadline(before.total):
                raise HubUnreachable(
                    f"The download of {before.name} is too slow",
                    {
                        "reason": f"{format_bytes(before.done)} of {format_bytes(before.total)} came in "
                        f"{now - self._began:.0f} s",
                        "fix": AGAIN,
                    },
                )
            if state == "verifying":
                self.update(state=state, eta=None)
                return
            if self._start is None:
                self._start = position
            self.update(state=state, done=position, eta=self._estimate(position, now))

        return report

    def tell_source(self, name: str) -> None:
        """Tell where the bytes come from now."""
        self.current = replace(self.current, source=name)

    def _estimate(self, position: int, now: float) -> float | None:
        """Return the seconds that are left, None while there is too little to tell."""
        seconds, fresh = now - self._began, position - (self._start or 0)
        if seconds < ETA_AFTER_SECONDS or fresh < ETA_AFTER_SHARE * self.current.total:
            return None
        return round((self.current.total - position) * seconds / fresh, 1)

    def fail(self, exc: BaseException) -> None:
        if isinstance(exc, GridError):
            error = exc
        else:
            reason = "it was interrupted" if isinstance(exc, KeyboardInterrupt) else type(exc).__name__
            error = ModelPullError(f"The pull of {self.current.name} ended", {"reason": reason})
        self.current = replace(self.current, state="failed", eta=None, error=error.to_record())
        self._record.write(self.current)


def _pull(
    reference: HubReference | FileReference | UrlReference,
    home: Path,
    name: str,
    options: PullOptions,
    progress: _Progress,
    *,
    mirrors: Mirrors,
) -> LocalModel:
    queue_names.make_queue_name(queue_names.LLM, name)
    known = LocalModels(home).find(name)
    if known is not None and known.reference != str(reference) and not options.name:
        raise ConfigError(
            f"This machine has another model {name!r}",
            {"path": "--name", "reason": known.reference, "fix": "give this one another name with --name"},
        )
    of_hub: dict[str, Any] = {}
    is_owned = True
    if isinstance(reference, HubReference):
        resolved = _resolve(reference, progress, mirrors)
        of_hub = {
            "commit": resolved.commit,
            "quantization": resolved.quantization,
            "access": resolved.access,
        }
        missing = [file for file in resolved.files if hub.find_cached(resolved, file) is None]
        sizes = (resolved.size, sum(file.size for file in missing))
        progress.update(total=resolved.size, note=resolved.note or progress.current.note)
        _make_room(home, hub.locate_cache(), name, options, sizes=sizes)
        files, is_by_us = _fetch_hub_files(resolved, progress, mirrors)
        is_new = is_by_us and len(missing) == len(resolved.files)
        is_owned = known.is_owned if known is not None else is_new
    elif isinstance(reference, UrlReference):
        files = [_fetch_url(reference, home, name, options, progress, mirrors=mirrors)]
    else:
        check_folders(name, [reference.path], options.folders, home)
        files, is_owned = [_read_file(reference, progress)], False
    model = _describe(str(reference), name, files, options, is_owned=is_owned)
    return model.model_copy(update=of_hub)


def _resolve(reference: HubReference, progress: _Progress, mirrors: Mirrors) -> hub.HubModel:
    """Return the files of a reference, as the hub says; if it does not, as a mirror pulled them."""
    try:
        return hub.resolve(reference)
    except (HubUnreachable, ModelGated, ModelNotFound) as exc:
        found = mirrors.find_model(reference)
        if found is None:
            raise
        shared, machine = found
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(shared.pulled_at))
        progress.update(note=f"{exc.message}. {machine} has {reference} as it was pulled at {at}")
        return hub.resolve_from_mirror(reference, shared)


def _fetch_hub_files(
    model: hub.HubModel, progress: _Progress, mirrors: Mirrors
) -> tuple[list[LocalFile], bool]:
    """Download the files of a model into the hub's cache, or verify them there. Return them, and whether no
    other process downloaded one of them meanwhile.
    """
    files, offset, sources = [], 0, set[str]()

    def tell_source(name: str) -> None:
        sources.add(name)
        progress.tell_source(name)

    for file in model.files:
        path, sha256 = hub.fetch_file(
            model,
            file,
            progress.report(offset),
            partial(mirrors.list_sources, file.sha256),
            tell_source,
        )
        files.append(LocalFile(path=str(path), size=file.size, sha256=sha256))
        offset += file.size
    return files, ANOTHER_PROCESS not in sources


def _make_room(home: Path, folder: Path, name: str, options: PullOptions, *, sizes: tuple[int, int]) -> None:
    """Remove old models if the limit of the cache asks for it. `sizes`: of the model, and of what is missing
    of it. What the pulls that run now have still to download counts too. Raises ModelTooLarge or DiskFull.
    """
    size, missing = sizes
    _check_limits(name, size, options)
    with _report_folder(home / FOLDER), update_json(home / FOLDER / ROOM) as promised:
        promised.pop(name, None)
        pending = missing + _count_pending(home, promised)
        if missing and options.cache_bytes is not None:
            LocalModels(home).make_room(pending, options.cache_bytes)
        check_disk(folder, pending)
        if missing:
            promised[name] = missing


def _count_pending(home: Path, promised: dict[str, Any]) -> int:
    """Return the bytes that other pulls have still to download. `promised`: what each began with; those that
    are over are removed.
    """
    pending = 0
    for name, missing in list(promised.items()):
        progress = read_progress(home, name)
        if progress is None or progress.is_over or not isinstance(missing, int):
            del promised[name]
        else:
            pending += min(missing, max(0, progress.total - progress.done)) if progress.total else missing
    return pending


@contextmanager
def _report_folder(folder: Path) -> Iterator[None]:
    """Raise ConfigError in place of an OSError of a folder that cannot be written."""
    try:
        yield
    except OSError as exc:
        raise make_folder_error(folder, exc) from None


def _check_limits(name: str, size: int, options: PullOptions) -> None:
    """Raise ModelTooLarge if a model of `size` bytes is larger than the owner allows."""
    for limit, field_name in ((options.max_bytes, "pull_limit_gb"), (options.cache_bytes, "cache_limit_gb")):
        if limit is not None and size > limit:
            raise ModelTooLarge(
                f"{name} has {format_bytes(size)}",
                {
                    "path": f"gpu.{field_name}",
                    "expected": f"at most {format_bytes(limit)}",
                    "fix": f"choose a smaller quantization, or raise {field_name}",
                },
            )


def _fetch_url(
    reference: UrlReference,
    home: Path,
    name: str,
    options: PullOptions,
    progress: _Progress,
    *,
    mirrors: Mirrors,
) -> LocalFile:
    """Download the file of an `https:` reference into the home folder."""
    tell = progress.report(0)

    def report(done: int, total: int, state: str) -> None:
        if size is None:  # so nothing could be compared before
            _check_limits(name, done, options)
        tell(done, total, state)

    sources: list[Source] = mirrors.list_sources(reference.sha256)
    try:
        try:
            url, size, etag = _read_metadata(reference.url)
            sources.append(make_origin(url, {}, reference.url))
        except HubUnreachable:
            if not sources:
                raise
            size, etag = None, ""
        if size is None and reference.sha256:
            size = mirrors.find_size(reference.sha256)
        key = hashlib.sha256((reference.sha256 or f"{reference.url} {etag}").encode()).hexdigest()[:16]
        target = home / DOWNLOADS / key / (Path(urlsplit(reference.url).path).name or "model.gguf")
        progress.update(total=size or 0)
        if target.exists():
            with target.open("rb") as file:
                sha256, _ = compute_digests(file, target.stat().st_size, progress.report(0))
            if reference.sha256 in (None, sha256):
                return LocalFile(path=str(target), size=target.stat().st_size, sha256=sha256)
            target.unlink()
        _make_room(home, target.parent, name, options, sizes=(size or 0, size or 0))
        with hub.translate_errors(reference.url):
            sha256 = download(
                sources,
                target,
                size=size,
                digest=Digest("sha256", reference.sha256) if reference.sha256 else None,
                report=report,
                name=reference.url,
                on_source=progress.tell_source,
            )
    finally:
        remove_empty_folders(home / DOWNLOADS)
    return LocalFile(path=str(target), size=target.stat().st_size, sha256=sha256)


def _read_metadata(url: str) -> tuple[str, int | None, str]:
    """Return where the file at `url` is after redirects, its size and its ETag. Raises ModelPullError."""
    import httpx

    try:
        answer = httpx.head(
            url, follow_redirects=True, timeout=hub.TIMEOUT_SECONDS, headers={"accept-encoding": "identity"}
        )
        answer.raise_for_status()
    except httpx.HTTPStatusError as exc:
        status = exc.response.status_code
        details = {"path": url, "reason": f"the server answered {status}", "fix": "correct the URL"}
        raise (ModelNotFound if status in (404, 410) else ModelPullError)(
            "No file is there", details
        ) from None
    except httpx.HTTPError as exc:
        details = {"path": url, "reason": f"{type(exc).__name__}: {exc}"}
        raise HubUnreachable("The server of the file cannot be reached", details) from None
    if urlsplit(url).scheme == "https" and answer.url.scheme != "https":
        details = {"path": url, "reason": "the server redirects to http", "fix": "use another URL"}
        raise ModelPullError("The file is not served by https", details)
    size = answer.headers.get("content-length", "")
    return str(answer.url), int(size) if size.isdigit() else None, answer.headers.get("etag", "")


def _read_file(reference: FileReference, progress: _Progress) -> LocalFile:
    try:
        size = reference.path.stat().st_size
        progress.update(total=size)
        with reference.path.open("rb") as file:
            sha256, _ = compute_digests(file, size, progress.report(0))
    except OSError as exc:
        raise ModelNotFound(
            "The file cannot be read",
            {"path": str(reference.path), "reason": exc.strerror or "", "fix": "correct the path"},
        ) from None
    return LocalFile(path=str(reference.path), size=size, sha256=sha256)


def _describe(
    reference: str,
    name: str,
    files: list[LocalFile],
    options: PullOptions,
    *,
    is_owned: bool,
) -> LocalModel:
    """Return the model with what the header of its file states. Raises ModelFileError for a bad file, which
    is removed if gridq downloaded it.
    """
    try:
        header = read_gguf(Path(files[0].path), name)
    except GridError:
        if is_owned:
            for file in files:
                hub.remove_file(Path(file.path))
        raise
    trained = header.trained_context
    wanted = options.context or DEFAULT_CONTEXT
    context = wanted if trained is None else min(wanted, trained)
    now = time.time()
    pools = bool(header.get_number("pooling_type")) or header.architecture.endswith("bert")
    is_embedding = True if pools else None
    return LocalModel(
        name=name,
        reference=reference,
        files=tuple(files),
        architecture=header.architecture,
        trained_context=trained,
        context=context,
        families=options.families,
        embeddings=is_embedding if options.embeddings is None else options.embeddings,
        any=(False if is_embedding else None) if options.any is None else options.any,
        is_owned=is_owned,
        pulled_at=now,
        used_at=now,
    )


def _locate(home: Path, name: str) -> Path:
    return home / FOLDER / f"{queue_names.make_slug(name)}.pull"
