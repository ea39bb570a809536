"""What a program can read of the grid's own files, with each means of hiding them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.fakes.programs import FakePrograms
from tests.program_seats import ask, seat
from workers.profiles.llm.probe import probe
from workers.profiles.llm.programs import confinement

READER = """
import json

def read(path):
    try:
        return open(path).read()
    except OSError as exc:
        return type(exc).__name__

found = {path: read(path) for path in json.load(open(PATHS))}
open("own", "w").write("own")
found["own"] = read("own")
print(json.dumps({"type": "result", "subtype": "success", "result": json.dumps(found)}))
"""


def use(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide folders with `method`, "" not at all."""
    if method and not confinement._works(method):
        pytest.skip(f"this system does not allow {method}")
    monkeypatch.setattr(confinement, "find_method", lambda: method)


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("method", ["namespace", "landlock", ""])
@pytest.mark.parametrize("tools", [False, True])
def test_a_program_reads_its_login_and_nothing_else_of_the_home_folder(
    method: str, tools: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(method, monkeypatch)
    home, outside = tmp_path / "home", tmp_path / "file"
    login = home / "logins" / "claude"
    login.mkdir(parents=True)
    other_call = tmp_path / "cache" / "gridq" / "logins" / "other"
    other_call.mkdir(parents=True)
    files = {home / "seats.toml": "canary", home / "server" / "access.json": "canary", login / "key": "login"}
    files |= {outside: "outside", other_call / "system.md": "canary", tmp_path / "password.json": "canary"}
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "link").symlink_to(home / "seats.toml")
    (tmp_path / "paths").write_text(json.dumps([*map(str, files), str(tmp_path / "link")]))
    monkeypatch.setenv("GRIDQ_HOME", str(home))
    monkeypatch.setenv("GRIDQ_BROKER_PASSWORD_FILE", str(tmp_path / "password.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = FakePrograms(tmp_path / "bin")
    program = own.install("claude", READER.replace("PATHS", repr(str(tmp_path / "paths"))))
    answer = ask(seat("claude", program=str(program), home=str(login), tools=tools), "claude", "echo")
    found = json.loads(answer["choices"][0]["message"]["content"])
    assert (found[str(login / "key")], found[str(outside)], found["own"]) == ("login", "outside", "own")
    hidden = {path: text for path, text in found.items() if path.endswith((".toml", ".json", ".md", "link"))}
    assert len(hidden) == 5
    assert set(map("canary".__eq__, hidden.values())) == {method == ""}
    assert (home / "seats.toml").read_text() == "canary"


@pytest.mark.parametrize("method", ["namespace", "landlock"])
def test_a_program_cannot_undo_it(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(method, monkeypatch)
    (tmp_path / "file").write_text("canary")
    prefix = confinement.make_prefix([tmp_path], [])
    attempts = (
        f"umount {tmp_path}; umount -l {tmp_path}; cat {tmp_path}/file; cat /proc/$PPID/root{tmp_path}/file"
    )
    script = f"{attempts}; unshare -rm sh -c '{attempts}'; nsenter -t $PPID -m cat {tmp_path}/file"
    run = subprocess.run([*prefix, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert "canary" not in run.stdout
    assert "ermission denied" in run.stderr


def test_a_program_that_cannot_be_confined_does_not_start(tmp_path: Path) -> None:
    prefix = confinement._make_prefix("namespace", [tmp_path], [])
    argv = [word if word != str(tmp_path) else str(tmp_path / "missing") for word in prefix]
    run = subprocess.run([*argv, "echo", "started"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (125, "")
    assert "Cannot hide the grid's files" in run.stderr


@pytest.mark.skipif(not confinement.find_method(), reason="this machine cannot hide folders")
def test_a_hidden_path_may_lie_in_another(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("canary")
    for hidden in ([tmp_path, tmp_path / "inner"], [tmp_path / "inner", tmp_path]):
        prefix = confinement.make_prefix(hidden, [])
        argv = [*prefix, "sh", "-c", f"echo started; cat {tmp_path}/inner/file"]
        run = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert run.stdout == "started\n"


def test_macos_denies_the_hidden_folders_and_allows_the_shown_ones(tmp_path: Path) -> None:
    (tmp_path / "hidden" / "shown").mkdir(parents=True)
    prefix = confinement._make_prefix("sandbox-exec", [tmp_path / "hidden"], [tmp_path / "hidden" / "shown"])
    hidden = (tmp_path / "hidden").resolve()
    assert prefix[:5] == ("/usr/bin/sandbox-exec", "-D", f"HIDDEN0={hidden}", "-D", f"SHOWN0={hidden}/shown")
    assert prefix[5:] == (
        "-p",
        '(version 1)(allow default)(deny file-read* file-write* (subpath (param "HIDDEN0")))'
        '(allow file-read* file-write* (subpath (param "SHOWN0")))',
    )


@pytest.mark.parametrize(("works", "warned"), [("namespace", False), ("", True)])
def test_a_probe_warns_of_tools_that_can_read_the_grids_files(
    works: str, warned: bool, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.profiles.llm.programs.program_seats.find_method", lambda: works)
    tables = [
        {"name": "mine", "cli": "claude", "models": [{"name": "m"}], "tools": tools}
        for tools in (True, False)
    ]
    with_tools, without = (probe([each], fakes.environ).found[0].note for each in tables)
    assert ("can read the grid's own files" in with_tools) is warned
    assert "own files" not in without
