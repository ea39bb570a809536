"""Fake Claude Code and Codex with costs: each call gets its answer from `vendors`, like the real program from
its API.
"""

from __future__ import annotations

import sys
from pathlib import Path

TEXT = """\
import http.client, json, os, signal, sys

NAME, HOST, PORT, SEAT = {name!r}, {host!r}, {port!r}, {seat!r}
argv = sys.argv[1:]

if argv == ["--version"]:
    print("2.1.400 (Fake)")
    sys.exit()
if argv in (["auth", "status"], ["login", "status"]):
    print('{{"loggedIn": true}}' if NAME == "claude" else "Logged in")
    sys.exit()

prompt = sys.stdin.read()
with open("../input/system.md", encoding="utf-8") as file:
    system = file.read()
body = json.dumps({{"system": system, "prompt": prompt}}).encode()
asking = http.client.HTTPConnection(HOST, PORT)
asking.request("POST", "/" + SEAT, body, {{"Content-Type": "application/json"}})
answer = asking.getresponse()
try:
    said = answer.read()
except http.client.IncompleteRead:
    print("Segmentation fault", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
if answer.status == 200:
    lines = json.loads(said)["lines"]
    if "--include-partial-messages" in argv:
        text = lines[-1]["result"]
        deltas = [dict(type="text_delta", text=piece) for piece in (text[:5], text[5:])]
        events = [dict(type="content_block_delta", index=0, delta=delta) for delta in deltas]
        lines[:0] = [dict(type="stream_event", event=event, session_id="s-1") for event in events]
elif NAME == "claude":
    words = "Prompt is too long" if answer.status == 400 else "API Error: Repeated 529 Overloaded errors"
    lines = [dict(type="result", subtype="success", is_error=True, result=words, usage={{}})]
else:
    words = (
        "Codex ran out of room in the model's context window. Start a new thread."
        if answer.status == 400
        else "Selected model is at capacity. Please try a different model."
    )
    lines = [dict(type="error", message=words), dict(type="turn.failed", error=dict(message=words))]
print("\\n".join(map(json.dumps, lines)), flush=True)
sys.exit(answer.status != 200)
"""


def install(folder: Path, name: str, seat: str, url: str) -> Path:
    """Install a fake `claude` or `codex` in `folder`, whose calls the vendors at `url` bill to `seat`."""
    host, _, port = url.removeprefix("http://").partition(":")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    body = TEXT.format(name=name, host=host, port=int(port), seat=seat)
    path.write_text(f"#!{sys.executable} -SE\n{body}", "utf-8")
    path.chmod(0o700)
    return path
