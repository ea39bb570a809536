"""Download one file: resume what an earlier try left, look at the disk first, and check the digest before the
file gets its name.

`huggingface_hub` downloads each file under a random name and deletes it when the download fails, so a second
call begins anew. Here the partial file has a fixed name next to the target, and the hub's own `http_get`
continues it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gridq.errors import DigestMismatch, DiskFull, ModelInUse, ModelPullError

Report = Callable[[int, int, str], None]
"""Gets the bytes done, the bytes in all, and the state: `downloading` or `verifying`. It may raise."""

HEADROOM_BYTES = 1024**3
HEADROOM_SHARE = 0.05
"""What must stay free: the larger of a GiB and this share of the download."""

AGAIN = "pull it again: it goes on where it stopped"
CHUNK_BYTES = 4 * 1024 * 1024
MAX_HTTP_BYTES = 50_000_000_000
"""The hub serves larger files only by its own protocol, Xet."""


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


def download(
    url: str,
    target: Path,
    *,
    size: int | None,
    digest: Digest | None,
    headers: Mapping[str, str],
    report: Report,
    name: str,
) -> str:
    """Download `url` to `target`, which appears only once it is complete and verified. Return its SHA-256.

    Raises DigestMismatch (nothing is left), DiskFull (nothing is left), ModelInUse if another process is
    downloading it, ModelPullError for a file of another size, and errors of the hub's client. After the last
    two, and when `report` raises, the partial file stays for the next try.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = find_partial(target)
    check_disk(target.parent, size or 0, partial)
    with partial.open("a+b") as file:
        _lock(file, name)
        try:
            _fetch(url, file, size, headers, report)
        except OSError as exc:
            if is_disk_full(exc):
                partial.unlink(missing_ok=True)
                raise make_full_error(target.parent) from None
            raise
        total = os.fstat(file.fileno()).st_size
        if size is not None and total != size:
            if total > size:
                partial.unlink(missing_ok=True)
            raise ModelPullError(
                f"{name} was not downloaded completely",
                {
                    "reason": f"{total} of {size} bytes came",
                    "fix": AGAIN,
                },
            )
        file.seek(0)
        sha256, git = compute_digests(file, total, report)
        actual = git if digest is not None and digest.kind == "git" else sha256
        if digest is not None and actual != digest.value:
            partial.unlink(missing_ok=True)
            raise make_digest_error(name, digest, actual)
        os.replace(partial, target)
    return sha256


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


def _lock(file: BinaryIO, name: str) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ModelInUse(
            f"Another program is downloading {name}",
            {"fix": "wait for it; the same command then finds the model here"},
        ) from None


def _fetch(url: str, file: BinaryIO, size: int | None, headers: Mapping[str, str], report: Report) -> None:
    from huggingface_hub.file_download import http_get

    file.seek(0, os.SEEK_END)
    start = file.tell()
    if size is not None and start > size:
        file.truncate(0)
        file.seek(0)
        start = 0
    http_get(
        url,
        file,
        resume_size=start,
        headers=dict(headers),
        expected_size=size,
        tqdm_class=make_bar(start, size or 0, report),
    )
    file.flush()


def make_bar(start: int, total: int, report: Report) -> Any:
    """Return a class that the hub's client takes for a progress bar."""

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.done = start
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
