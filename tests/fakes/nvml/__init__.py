"""A stand-in for NVIDIA's driver library, compiled from `stub.c`, for pynvml's real code.

`Driver` writes the file that says which cards there are and what fails. A process uses the library if its
folder stands in LD_LIBRARY_PATH (`Driver.environment`), or if the library was loaded before pynvml looks for
it by its name (`load`): the system's loader then takes the one that is there.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from tests.fakes.compiled import compile_library

SOURCE = Path(__file__).with_name("stub.c")
LIBRARY = "libnvidia-ml.so.1"
GB = 1024**3


def build(*flags: str) -> Path:
    """Return the folder with the compiled library. Skips the test where there is no C compiler."""
    return compile_library(SOURCE.read_text(), SOURCE, LIBRARY, flags)


@cache
def load() -> None:
    """Load the library into this process, so that pynvml finds it by its name from now on."""
    ctypes.CDLL(str(build() / LIBRARY))


class Driver:
    """The cards of a machine and what their driver answers, changed at any time by assigning lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self._cards = 0

    def add_card(self, index: int | None = None, **fields: object) -> None:
        """Add a card, of 24 GB of which 20 are free unless `fields` say so."""
        at = self._cards if index is None else index
        self._cards = max(self._cards, at + 1)
        defaults: dict[str, object] = {
            "uuid": f"GPU-{at}",
            "name": "NVIDIA RTX 4090",
            "total": 24 * GB,
            "free": 20 * GB,
            "reserved": 0,
            "compute": "8 9",
        }
        self.set(**{f"{at}.{name}": value for name, value in (defaults | fields).items()})

    def set(self, **lines: object) -> None:
        """Add lines `key value`, each instead of an earlier one with its key. None takes a line away."""
        for key, value in lines.items():
            self.lines = [line for line in self.lines if not line.startswith(f"{key} ")]
            if value is not None:
                self.lines.append(f"{key} {value}")
        self.write()

    def add_process(self, of: str, pid: int, used: int | None) -> None:
        self.lines.append(f"{of}.process {pid} {-1 if used is None else used}")
        self.write()

    def remove_processes(self, of: str) -> None:
        self.lines = [line for line in self.lines if not line.startswith(f"{of}.process ")]
        self.write()

    def fail(self, function: str, code: int, card: int | None = None) -> None:
        where = "error" if card is None else f"error.{card}"
        self.set(**{f"{where} {function}": code})

    def hang(self, function: str, seconds: int = 30) -> None:
        self.set(**{f"hang {function}": seconds})

    def write(self) -> None:
        """Write the file, whole at any time."""
        made = self.path.with_suffix(".new")
        made.write_text("\n".join([f"count {self._cards}", *self.lines]) + "\n")
        os.replace(made, self.path)

    def end_hangs(self) -> None:
        self.lines = [line for line in self.lines if not line.startswith("hang ")]
        self.write()

    def environment(self, *flags: str) -> dict[str, str]:
        """Return the environment of a process that uses this driver; `flags` are those of `build`."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(build(*flags)),
            "GRIDQ_STUB_NVML": str(self.path),
        }
