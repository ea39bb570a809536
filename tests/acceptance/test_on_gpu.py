"""The comparison on a real card runs anywhere, and says what it skips without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml import Driver

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMI = "#!/bin/sh\necho 'NVIDIA RTX 4090, GPU-0, 24576, 20480, 8.9, 50, 100.00, 3'\n"


@pytest.mark.skipif(not (ROOT / ".venv/bin/python").exists(), reason="it would install a .venv of its own")
def test_without_a_card_each_step_says_that_it_is_skipped(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / "benchmarks/on_gpu.sh"],
        cwd=tmp_path, env={**os.environ, "OUT": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "on_gpu.json").read_text())
    if not any(row["step"] == "driver" for row in found["rows"]):
        assert set(found["skipped"]) == {"driver", "memory", "plan", "speed"}
    assert "done" in done.stdout


def test_a_card_is_compared_with_what_nvidia_smi_prints(tmp_path: Path) -> None:
    """The steps that need no CUDA, on stand-ins of the driver's library and of nvidia-smi."""
    driver = Driver(tmp_path / "nvml")
    driver.add_card(temperature=50, power=100_000, utilisation=3)
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = driver.environment()
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    command = [sys.executable, "-m", "benchmarks.on_gpu", "--out", str(tmp_path / "found.json")]
    for free, code in (("20480", 0), ("10", 1)):
        (tmp_path / "nvidia-smi").write_text(SMI.replace("20480", free))
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert rows["compute capability"]["met"]
    assert rows["free, MB"]["met"] is False
