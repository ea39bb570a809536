"""Download one file: resume what an earlier try left, look at the disk first, and check the digest before the
file gets its name.

`huggingface_hub` downloads each file under a random name and deletes it when the download fails, so a second
call begins anew. Here the partial file has a fixed name next to the target. Any source can continue it: the
hub by its own `http_get`, and other machines of the grid (`mirror_client`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from gridq.errors import (
    DigestMismatch,
    DiskFull,
    GridError,
    HubUnreachable,
    ModelPullError,
    ModelTooLarge,
)

log = logging.getLogger(__name__)

Report = Callable[[int, int, str], None]
"""Gets the bytes done, the bytes in all, and the state: `downloading`, `verifying`, or `waiting` for a
source. It may raise.
"""

OnSource = Callable[[str], None]
"""Gets the name of a source when a download begins to use it; ANOTHER_PROCESS if that downloaded the file."""

ANOTHER_PROCESS = "another download on this machine"

BUSY_SECONDS = 2.0
"""How long to wait before a source is asked again that had no room, if there is no other."""

HEADROOM_BYTES = 1024**3
HEADROOM_SHARE = 0.05
"""What must stay free: the larger of a GiB and this share of the download."""

AGAIN = "pull it again: it goes on where it stopped"
CHUNK_BYTES = 4 * 1024 * 1024
MAX_HTTP_BYTES = 50_000_000_000
"""The hub serves larger files only by its own protocol, Xet."""


def ignore_source(name: str) -> None:
    """Do nothing when a download begins to use a source."""


@dataclass(frozen=True)
class Digest:
    """The digest that a file must have: `sha256`, or `git` (SHA-1 of a git blob) for small files."""

    kind: str
    value: str


def find_partial(target: Path) -> Path:
    """Return the partial file of a target. The hub's tools know the ending, and remove such files."""
    return target.with_name(f"{target.name}.gridq.incomplete")


def check_disk(folder: Path, needed: int, partial: Path | None = None) -> None:
    """Raise DiskFull if the disk of `folder` has no room for `needed` bytes and the headroom.

    What a partial file already takes counts as there.
    """
    here = partial.stat().st_size if partial is not None and partial.exists() else 0
    headroom = max(HEADROOM_BYTES, int(needed * HEADROOM_SHARE))
    parent = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(parent).free
    missing = max(0, needed - here) + headroom - free
    if missing > 0:
        raise DiskFull(
            "The disk has no room for the model",
            {
                "path": str(folder),
                "reason": f"it needs {format_bytes(needed - here)}, {format_bytes(headroom)} must stay free, "
                f"{format_bytes(free)} are free",
                "fix": f"free {format_bytes(missing)}: gridq models list shows what can go",
            },
        )


class SourceFailed(Exception):
    """A source did not give the file; another may. `is_temporary`: the same may give it later."""

    def __init__(self, reason: str, *, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.is_temporary = is_temporary


class Source(Protocol):
    """A place that has the file. `name` is told in the progress. `is_origin`: the hub, or the web server."""

    @property
    def name(self) -> str: ...

    @property
    def is_origin(self) -> bool: ...

    def fetch(self, file: BinaryIO, size: int | None, report: Report, *, is_last: bool) -> None:
        """Append what is missing to `file`, which may already have a part. `is_last`: no other source is
        left, so a slow one is better than none.

        Raises SourceFailed if another source may have it, and any other exception if the download must end.
        """


@dataclass(frozen=True)
class Origin:
    """The server that the reference names. `fetch` raises the errors of the hub's client."""

    url: str
    headers: Mapping[str, str]
    name: str = ""
    is_origin: bool = True

    def fetch(self, file: BinaryIO, size: int | None, report: Report, *, is_last: bool) -> None:
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.file_download import http_get

        while True:
            start = file.seek(0, os.SEEK_END)
            try:
                http_get(
                    self.url,
                    file,
                    resume_size=start,
                    headers=dict(self.headers),
                    expected_size=size,
                    tqdm_class=make_bar(start, size or 0, report),
                )
            except HfHubHTTPError as exc:
                if not start or exc.response.status_code != 416:
                    raise
                file.truncate(0)  # the server's file is no longer than the part that was here
            else:
                return


def make_origin(url: str, headers: Mapping[str, str], page: str = "") -> Origin:
    """Return the source at `url`, named after the host of `page`, which redirected to it."""
    return Origin(url, headers, urlsplit(page or url).hostname or "")


def download(
    sources: Sequence[Source],
    target: Path,
    *,
    size: int | None,
    digest: Digest | None,
    report: Report,
    name: str,
    on_source: OnSource = ignore_source,
) -> str:
    """Download a file to `target`, which appears only once it is complete and verified. Return its SHA-256.

    The sources are tried in their order, and each continues what the one before has left. `on_source` gets
    the name of each when it begins. If the whole has another digest, it is fetched again from those that did
    not take part in it, and then from each of the others alone. If another process is downloading it, that
    one goes first, and its file is taken.

    Raises DigestMismatch (nothing is left), DiskFull (nothing is left), ModelPullError for a file of another
    size, HubUnreachable if no machine of the grid gave it and there is no origin, and errors of the hub's
    client. After the last three, and when `report` raises, the partial file stays for the next try, unless
    `report` raises ModelTooLarge.
    """
    partial = find_partial(target)
    check_disk(target.parent, size or 0, partial)
    report = _limit_size(report, size, name)
    left, doubtful = list(sources), list[Source]()
    with _open_partial(partial, size, report) as file:
        found = _find_complete(target, size, digest, report)  # from another process, while this one waited
        if found is not None:
            partial.unlink()
            on_source(ANOTHER_PROCESS)
            return found
        while True:
            is_resumed = file.seek(0, os.SEEK_END) > 0
            try:
                used = _fetch(left, file, size, report, on_source=on_source, name=name)
                file.flush()
            except BaseException as exc:
                if isinstance(exc, HubUnreachable) and doubtful:
                    left = [doubtful.pop(0)]
                    file.truncate(0)
                    continue
                is_full = isinstance(exc, OSError) and is_disk_full(exc)
                is_useless = is_full or isinstance(exc, ModelTooLarge)
                if is_useless or not os.fstat(file.fileno()).st_size:  # there is nothing to continue
                    partial.unlink(missing_ok=True)
                if is_full:
                    raise make_full_error(target.parent) from None
                raise
            total = os.fstat(file.fileno()).st_size
            if size is not None and total != size:
                if total > size:
                    partial.unlink(missing_ok=True)
                raise ModelPullError(
                    f"{name} was not downloaded completely",
                    {"reason": f"{total} of {size} bytes came", "fix": AGAIN},
                )
            file.seek(0)
            sha256, git = compute_digests(file, total, report)
            actual = git if digest is not None and digest.kind == "git" else sha256
            if digest is None or actual == digest.value:
                os.replace(partial, target)
                return sha256
            left, again = _drop_doubtful(left, used, is_resumed=is_resumed)
            doubtful += again
            if not left and doubtful:
                left = [doubtful.pop(0)]
            if not left:
                partial.unlink(missing_ok=True)
                raise make_digest_error(name, digest, actual)
            log.warning("%s: what %s gave has another digest", name, _join_names(used))
            file.truncate(0)


def _fetch(
    sources: Sequence[Source],
    file: BinaryIO,
    size: int | None,
    report: Report,
    *,
    on_source: OnSource,
    name: str,
) -> list[Source]:
    """Complete `file` from the sources. Return those that wrote to it."""
    used: list[Source] = []
    reasons: list[str] = []
    waiting: list[Source] = []
    failure: Exception | None = None
    start = file.seek(0, os.SEEK_END)
    if size is not None and start > size:
        file.truncate(0)
    elif size is not None and start == size:
        return used

    def fetch_from(source: Source, *, is_last: bool) -> None:
        before = file.seek(0, os.SEEK_END)
        on_source(source.name)
        try:
            source.fetch(file, size, report, is_last=is_last)
        finally:
            if file.seek(0, os.SEEK_END) > before and source not in used:
                used.append(source)

    for source in sources:
        try:
            fetch_from(source, is_last=False)
        except SourceFailed as exc:
            log.warning("%s: %s did not give it: %s", name, source.name, exc)
            reasons.append(f"{source.name}: {exc}")
            if exc.is_temporary:
                waiting.append(source)
        except Exception as exc:
            if not waiting or isinstance(exc, GridError) or (isinstance(exc, OSError) and is_disk_full(exc)):
                raise
            failure = exc
        else:
            return used
    while waiting:
        for source in list(waiting):
            try:
                fetch_from(source, is_last=True)
            except SourceFailed as exc:
                if not exc.is_temporary:
                    waiting.remove(source)
                    reasons.append(f"{source.name}: {exc}")
            else:
                return used
        if waiting:
            report(file.seek(0, os.SEEK_END), size or 0, "waiting")
            time.sleep(BUSY_SECONDS)
    if failure is not None:
        raise failure
    raise HubUnreachable(
        f"No machine of the grid gave {name}", {"reason": "; ".join(reasons) or "none has it", "fix": AGAIN}
    )


def _drop_doubtful(
    left: Sequence[Source], used: Sequence[Source], *, is_resumed: bool
) -> tuple[list[Source], list[Source]]:
    """Return the sources that may still give the right file, after a wrong one came from those `used`; and
    those that may do so if nobody else takes part.

    Of a file from several, or one that was continued, nobody knows who gave the wrong part. The origin may
    try again then; after a wrong file that it gave alone it may not.
    """
    if is_resumed and len(used) <= 1:
        return list(left), []  # the part that was there may have been wrong
    if len(used) > 1:
        kept = [source for source in left if source.is_origin or source not in used]
        return kept, [source for source in left if source not in kept]
    return [source for source in left if source not in used], []


def _join_names(sources: Sequence[Source]) -> str:
    return ", ".join(source.name for source in sources) or "an earlier try"


def compute_digests(file: BinaryIO, total: int, report: Report) -> tuple[str, str]:
    """Return the SHA-256 of the rest of `file`, and its SHA-1 as a git blob of `total` bytes."""
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % total, usedforsecurity=False)
    done = 0
    while chunk := file.read(CHUNK_BYTES):
        sha256.update(chunk)
        if total < 100 * CHUNK_BYTES:  # larger files are stored by their SHA-256
            git.update(chunk)
        done += len(chunk)
        report(done, total, "verifying")
    return sha256.hexdigest(), git.hexdigest()


def make_digest_error(name: str, digest: Digest, actual: str) -> DigestMismatch:
    """Return the error of a file with another digest than its source states. The file is removed before."""
    return DigestMismatch(
        f"{name} is not the file that its source describes",
        {"expected": f"{digest.kind} {digest.value}", "reason": f"it is {actual}; it was removed"},
    )


def format_bytes(count: float) -> str:
    """Format a size: `4.7 GB`, `512 MB`, in units of 1,000."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@contextmanager
def _open_partial(partial: Path, size: int | None, report: Report) -> Iterator[BinaryIO]:
    """Open a partial file for this process alone. Another that downloads to it goes first."""
    while True:
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = partial.open("a+b")
        except FileNotFoundError:
            continue  # another pull has just removed the folder, which was empty
        with file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report(os.fstat(file.fileno()).st_size, size or 0, "waiting")
                time.sleep(BUSY_SECONDS)
                continue
            if _is_at(partial, file):  # else it got its name, or was removed, before it was locked
                yield file
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _find_complete(target: Path, size: int | None, digest: Digest | None, report: Report) -> str | None:
    """Return the SHA-256 of the file at `target`, None if it is not there or not the right one."""
    try:
        with target.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            if size not in (None, total):
                return None
            sha256, git = compute_digests(file, total, report)
    except FileNotFoundError:
        return None
    return sha256 if digest is None or digest.value in (sha256, git) else None


def _limit_size(report: Report, size: int | None, name: str) -> Report:
    """Return `report`, with an error once more comes than the file has."""

    def check(done: int, total: int, state: str) -> None:
        if size is not None and done > size and state == "downloading":
            raise ModelPullError(
                f"{name} is not the file that its source describes",
                {"expected": format_bytes(size), "reason": "more than that came"},
            )
        report(done, total, state)

    return check


def make_bar(start: int, total: int, report: Report) -> Any:
    """Return a class that the hub's client takes for a progress bar."""

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.done = options.get("initial", start)  # 0 if the server sends the whole again
            self.total = total or options.get("total") or 0
            report(self.done, self.total, "downloading")

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: float = 1) -> None:
            self.done += int(count)
            report(self.done, self.total, "downloading")

        def close(self) -> None:
            pass

    return Bar


def is_disk_full(exc: OSError) -> bool:
    """Return whether a disk or a quota of it is full."""
    return exc.errno in (errno.ENOSPC, errno.EDQUOT)


def make_full_error(folder: Path) -> DiskFull:
    """Return the error of a disk that became full while a model was downloaded to `folder`."""
    return DiskFull(
        "The disk became full while the model was downloaded",
        {
            "path": str(folder),
            "reason": "what had been downloaded was removed",
            "fix": "free some space: gridq models list shows what can go",
        },
    )
