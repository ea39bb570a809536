"""A script that hides files from a program: `python confined.py HOW HIDDEN… -- SHOWN… -- PROGRAM
ARGUMENT…`.

`confinement` starts it on Linux, without any other module of the project, and it becomes the program. HOW is
`namespace` (folders and files are empty) or `landlock` (they cannot be read). The folders SHOWN are inside
hidden ones and stay visible. The program cannot undo either, and cannot look into processes outside, such as
the worker. A failure ends the script with code 125.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator

FAILED = 125
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH, LANDLOCK_READ_FILE = 1, 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def hide_by_namespace(hidden: list[str], shown: list[str]) -> None:
    """Mount something empty over each hidden file and folder, in a namespace of this process."""
    working_folder = os.getcwd()
    _enter_namespaces()
    files = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in shown}
    folders = [path for path in hidden if os.path.isdir(path)]
    for path in hidden:
        if path in folders:
            _mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=700")
        else:
            _mount("/dev/null", path, "", MS_BIND)
    for path, file in files.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{file}", path, "", MS_BIND | MS_REC)
        os.close(file)
    for path in folders:
        _mount("", path, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(working_folder)
    _enter_namespaces()  # in a further namespace, even a process with all rights there cannot unmount them


def hide_by_landlock(hidden: list[str], shown: list[str]) -> None:
    """Allow this process to read all files but the hidden ones.

    Landlock can only allow. So files that appear later beside a hidden folder, or beside one above it, are
    not readable either. File names are.
    """
    handled = ctypes.c_uint64(LANDLOCK_READ_FILE)
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    rules = _check(_libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(handled), size, 0))
    for path in [*shown, *_list_allowed("/", hidden)]:
        try:
            file = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        except OSError:  # it is gone, or nobody may read it
            continue
        rule = _PathBeneath(LANDLOCK_READ_FILE, file)
        _check(_libc.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0))
        os.close(file)
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _list_allowed(folder: str, hidden: list[str]) -> Iterator[str]:
    """Yield what is in `folder` and not hidden. Of folders with something hidden, yield their content."""
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    except PermissionError:  # such as /home, on some systems
        depth = len(os.path.join(folder, ""))
        paths = list(
            {path[:depth] + path[depth:].partition("/")[0] for path in hidden if path.startswith(folder)}
        )
    for path in paths:
        if any(each.startswith(f"{path}/") for each in hidden):
            yield from _list_allowed(path, hidden)
        elif path not in hidden and not os.path.islink(path):
            yield path


def _enter_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode())
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), options.encode()))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    end = words.index("--")
    return words[:end], words[end + 1 :]


def main(argv: list[str]) -> None:
    how, *rest = argv
    hidden, rest = _split(rest)
    shown, program = _split(rest)
    hide = {"namespace": hide_by_namespace, "landlock": hide_by_landlock}[how]
    try:
        hide(hidden, shown)
    except OSError as exc:
        print(f"Cannot hide the grid's files: {exc}", file=sys.stderr)
        sys.exit(FAILED)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # new namespaces have cleared it
    try:
        os.execvp(program[0], program)  # noqa: S606 without a shell
    except OSError as exc:
        print(f"Cannot start {program[0]}: {exc.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
