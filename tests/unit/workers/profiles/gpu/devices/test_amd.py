"""AMD's cards: the real package amdsmi on a library that plays ROCm's, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import amd_smi
from workers.profiles.gpu.devices import amd
from workers.profiles.gpu.devices.device import list_visibility_variables

READ = """
import dataclasses, json
from workers.profiles.gpu.devices import amd
found, missing = amd.find_devices(10)
readings = [dataclasses.asdict(amd.read(each.uuid, 10)) for each in found]
print(json.dumps([[dataclasses.asdict(each) for each in found], missing, readings]))
"""

CARD = """count 2
0.uuid GPU-9a8b
0.name AMD Radeon RX 7900 XTX
0.total 24560
0.used 4560
0.activity 33
0.temperature 71
0.power 250
0.energy 2000000
0.process 4194305 1073741824
1.uuid GPU-77
1.total 16368
1.used 0
"""


def read(tmp_path: Path, lines: str, without: str = "") -> tuple[Any, Any, Any]:
    """Return the devices, the sentences about others and a reading of each."""
    (tmp_path / "lines").write_text(lines)
    folder = amd_smi.build(without)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCM")}
    environment |= {"LD_LIBRARY_PATH": str(folder), "GRIDQ_STUB_AMD_SMI": str(tmp_path / "lines")}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True, check=True
    )
    devices, missing, readings = json.loads(done.stdout)
    return devices, missing, readings


def test_cards_are_described_and_read(tmp_path: Path) -> None:
    devices, missing, readings = read(tmp_path, CARD)
    assert missing == []
    first = devices[0]
    assert (first["device"], first["name"], first["backend"]) == ("amd0", "AMD Radeon RX 7900 XTX", "rocm")
    assert (first["uuid"], first["memory_mb"], first["free_mb"]) == ("GPU-9a8b", 24_560, 20_000)
    reading = readings[0]
    assert (reading["memory_mb"], reading["free_mb"], reading["utilisation"]) == (24_560, 20_000, 0.33)
    assert (reading["temperature"], reading["power_watts"], reading["energy_joules"]) == (71.0, 250.0, 30.5)
    assert [(each["pid"], each["memory_mb"]) for each in reading["processes"]] == [(4_194_305, 1024)]
    assert reading["unknown"] == {}


def test_what_a_driver_does_not_tell_costs_that_field_alone(tmp_path: Path) -> None:
    devices, _, readings = read(tmp_path, CARD)
    assert devices[1]["name"] == "AMD GPU"
    assert set(readings[1]["unknown"]) == {"utilisation", "temperature", "power", "energy"}
    assert readings[1]["free_mb"] == 16_368


def test_no_driver_and_an_older_library_are_reasons(tmp_path: Path) -> None:
    assert "Driver not loaded" in read(tmp_path, "")[1][0]
    assert "does not fit" in read(tmp_path, CARD, without="amdsmi_get_clk_freq")[1][0]


def test_a_machine_without_amd_says_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not amd._has_amd_gpu(tmp_path)
    card = tmp_path / "card0" / "device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    assert amd._has_amd_gpu(tmp_path)


def test_a_child_sees_its_device_alone() -> None:
    assert list_visibility_variables("rocm", "GPU-9a8b") == {"ROCR_VISIBLE_DEVICES": "GPU-9a8b"}
    assert list_visibility_variables("cuda", "MIG-1")["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert set(list_visibility_variables("cpu", None).values()) == {""}
