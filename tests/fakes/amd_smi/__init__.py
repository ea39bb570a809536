"""A stand-in for ROCm's library, compiled from `stub.c`, for the real package `amdsmi`."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes.compiled import compile_library

SOURCE = Path(__file__).with_name("stub.c")
LIBRARY = "libamd_smi.so"


def build(without: str = "") -> Path:
    """Return the folder with the library. `without`: a function that it lacks, as an older one does.

    The package looks up every function of its version when it is imported, so the stand-in has them all.
    """
    spec = find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("the package amdsmi is not installed")
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper)) - {without}
    code = SOURCE.read_text()
    others = sorted(name for name in names if not re.search(rf"\b{name}\(", code))
    code += "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in others)
    return compile_library(code, SOURCE, LIBRARY)
