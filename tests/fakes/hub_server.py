"""A fake Hugging Face hub, as far as its client uses it.

It answers `/api/models`, `/api/models/<repo>[/revision/<revision>]`, and HEAD and GET of
`/<repo>/resolve/<revision>/<file>`, which redirects to `/cdn/<digest>` as the hub does for large files.
The headers are those that `huggingface_hub` reads: X-Repo-Commit, X-Linked-Etag, X-Linked-Size,
X-Error-Code, X-Error-Message.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.http_server import Handler, LocalServer

COMMIT = "5" * 40
TOKEN = "hf_test_0123456789"


class Repository:
    """A repository: its files by path, each bytes or a file of this machine."""

    def __init__(self, files: dict[str, bytes | Path], *, gated: bool = False, private: bool = False) -> None:
        self.files = files
        self.gated = gated
        self.private = private
        self.etag: str | None = None
        """What every file's ETag is instead of its digest."""
        self.digests = {path: _digest(content) for path, content in files.items()}


def _digest(content: bytes | Path) -> str:
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(content).hexdigest()


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


class HubServer(LocalServer):
    """Use `with HubServer({"org/repo": Repository(…)}) as hub`, and set HF_ENDPOINT to `hub.url`.

    `cut_after`: a download breaks off after so many bytes, `cuts` times. `damaged`: files are served with
    their last byte changed. `status`: every request gets it. `pace`: seconds before each 64 KiB.
    `gate`: downloads wait for it once they have sent `gate_after` bytes. `redirects_files`: downloads are
    redirected to themselves. `states_length`: whether they say how long they are.
    """

    def __init__(self, repositories: dict[str, Repository]) -> None:
        super().__init__(_make_handler(self))
        self.repositories = repositories
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.cut_after: int | None = None
        self.cuts = 0
        self.damaged = False
        self.status: int | None = None
        self.pace = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.gate_after = 0
        self.ignores_ranges = False
        self.redirects_files = False
        self.states_length = True

    def __exit__(self, *exc: object) -> None:
        self.gate.set()
        super().__exit__(*exc)

    def list_downloads(self) -> list[dict[str, str]]:
        """Return the headers of every GET of a file's content."""
        return [headers for method, path, headers in self.requests if method == "GET" and "/cdn/" in path]


def _make_handler(hub: HubServer) -> type[Handler]:
    class HubHandler(Handler):
        def do_HEAD(self) -> None:
            self.respond("HEAD")

        def do_GET(self) -> None:
            self.respond("GET")

        def respond(self, method: str) -> None:
            url = urlsplit(self.path)
            path = unquote(url.path)
            hub.requests.append((method, path, {name.lower(): text for name, text in self.headers.items()}))
            if hub.status is not None:
                extra = {"Retry-After": "7"} if hub.status == 429 else {}
                self.refuse(hub.status, "", "no", extra)
            elif path == "/api/models":
                self.list_models(parse_qs(url.query))
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self.describe(match[1], match[2])
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.redirect(match[1], match[2], match[3])
            elif match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
                self.send_file(match[1], method)
            else:
                self.refuse(404, "", "not found")

        def refuse(self, status: int, code: str, message: str, extra: dict[str, str] | None = None) -> None:
            headers = {
                "X-Error-Message": message,
                **({"X-Error-Code": code} if code else {}),
                **(extra or {}),
            }
            raw = json.dumps({"error": message}).encode()
            self.send_response(status)
            for name, text in headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        def may_see(self, repo: str, *, content: bool) -> Repository | None:
            """Return the repository, or answer why not. A gated one shows its list of files to everybody."""
            found = hub.repositories.get(repo)
            known = self.headers.get("authorization") == f"Bearer {TOKEN}"
            if found is None or (found.private and not known):
                self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
                return None
            if found.gated and content and not known:
                anonymous = self.headers.get("authorization") is None
                self.refuse(401 if anonymous else 403, "GatedRepo", f"Access to model {repo} is restricted")
                return None
            return found

        def list_models(self, query: dict[str, list[str]]) -> None:
            words = query.get("search", [""])[0].lower().split()
            found = [
                {
                    "id": repo,
                    "modelId": repo,
                    "downloads": 1000 - at,
                    "likes": 1,
                    "private": False,
                    "gated": "auto" if entry.gated else False,
                    "tags": ["gguf"],
                    "lastModified": "2026-05-01T00:00:00.000Z",
                    "createdAt": "2026-05-01T00:00:00.000Z",
                }
                for at, (repo, entry) in enumerate(hub.repositories.items())
                if all(word in repo.lower() for word in words)
            ]
            self.answer(200, found[: int(query.get("limit", ["20"])[0])])

        def describe(self, repo: str, revision: str | None) -> None:
            found = self.may_see(repo, content=False)
            if found is None:
                return
            if revision not in (None, "main", COMMIT):
                self.refuse(404, "RevisionNotFound", "Invalid rev id")
                return
            siblings: list[dict[str, Any]] = [
                {
                    "rfilename": path,
                    "size": _size(content),
                    "blobId": hashlib.sha1(path.encode()).hexdigest(),
                    "lfs": {"size": _size(content), "sha256": found.digests[path], "pointerSize": 134},
                }
                for path, content in found.files.items()
            ]
            answer = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}
            access = {"private": found.private, "gated": "auto" if found.gated else False}
            self.answer(200, answer | access)

        def redirect(self, repo: str, revision: str, path: str) -> None:
            found = self.may_see(repo, content=True)
            if found is None:
                return
            if revision not in ("main", COMMIT):
                self.refuse(404, "RevisionNotFound", "Invalid rev id")
            elif path not in found.files:
                self.refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": COMMIT})
            else:
                self.send_response(302)
                self.send_header(
                    "Location", f"{hub.url.replace('127.0.0.1', 'localhost')}/cdn/{found.digests[path]}"
                )
                self.send_header("ETag", f'"{hashlib.sha1(path.encode()).hexdigest()}"')
                self.send_header("X-Linked-Etag", f'"{found.etag or found.digests[path]}"')
                self.send_header("X-Linked-Size", str(_size(found.files[path])))
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def send_file(self, digest: str, method: str) -> None:
            content = next(
                (each.files[path] for each in hub.repositories.values()
                 for path, value in each.digests.items() if value == digest), None
            )  # fmt: skip
            if content is None:
                self.refuse(404, "", "not found")
                return
            data = content.read_bytes() if isinstance(content, Path) else content
            if hub.redirects_files and method == "GET":
                self.send_response(302)
                self.send_header("Location", self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if hub.damaged:
                data = data[:-1] + bytes([data[-1] ^ 1])
            start = 0
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
            if match and not hub.ignores_ranges:
                start = int(match[1])
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(data)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("ETag", f'"{digest}"')
            self.send_header("Accept-Ranges", "bytes")
            if hub.states_length:
                self.send_header("Content-Length", str(len(data) - start))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if method == "GET":
                self.send_pieces(data, start)

        def send_pieces(self, data: bytes, start: int) -> None:
            sent = 0
            for at in range(start, len(data), 65_536):
                if sent >= hub.gate_after:
                    hub.gate.wait(60)
                if hub.cuts and hub.cut_after is not None and sent >= hub.cut_after:
                    hub.cuts -= 1
                    self.close_connection = True
                    self.connection.close()
                    return
                time.sleep(hub.pace)
                piece = data[at : at + 65_536]
                self.wfile.write(piece)
                sent += len(piece)

    return HubHandler
