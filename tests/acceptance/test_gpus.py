"""Cards of a machine, from `gridq probe` to `gridq gpus`: whole programs on a stand-in for NVIDIA's library.

What the library does is real (pynvml loads it by its name, and calls it); there is no card, so no model runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.seats.registry import TTL_HEARTBEATS
from gridq.store.connection import connect
from tests.acceptance.homes import HomeFolder
from tests.fakes.nvml import GB, Driver
from tests.waiting import wait_for
from workers.profiles.gpu.devices.processes import make_owner_mark

pytestmark = pytest.mark.slow

HEARTBEAT = 1.0


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "nvml")


@pytest.fixture
def home(tmp_path: Path, driver: Driver) -> Iterator[HomeFolder]:
    made = HomeFolder(tmp_path, "[gpu]\ncpu = false\n")
    made.configure(f'profiles = ["gpu"]\ndrain = 1\nheartbeat = {HEARTBEAT}\n')
    made.env |= {name: driver.environment()[name] for name in ("LD_LIBRARY_PATH", "GRIDQ_STUB_NVML")}
    made.env["GRIDQ_ENGINE"] = "xllamacpp"
    yield made
    driver.end_hangs()
    made.end()


def start(home: HomeFolder) -> str:
    """Start the grid; return the name of its machine."""
    home.start("up", "--no-flower", "--no-gateway")
    return str(home.ready()["machine"])


def read_gpus(home: HomeFolder) -> dict[str, Any]:
    """Return what `gridq gpus` says of each seat, by its name on the machine."""
    return {row["seat"].partition(".")[2]: row for row in home.json("gpus")}


def read_url(home: HomeFolder) -> str:
    """Return the URL of the grid's server, with its password."""
    code = "from gridq.config.settings import settings; print(settings().get_broker_url())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=home.env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_probe_names_each_card_and_what_keeps_models_from_it(home: HomeFolder, driver: Driver) -> None:
    driver.add_card()
    driver.add_card(name="NVIDIA A100", compute="8 0", mig=2)
    driver.set(**{"1/1.uuid": "MIG-1", "1/1.name": "NVIDIA A100 MIG 1g.5gb"})
    driver.set(**{"1/1.total": 5 * GB, "1/1.free": 5 * GB})
    driver.add_card(lost=1)
    probed = home("probe")
    assert probed.returncode == 0, probed.stderr
    for part in ("gpu0", "gpu1-mig1", "NVIDIA A100 MIG 1g.5gb", "GPU is lost"):
        assert part in probed.stdout
    driver.fail("nvmlInitWithFlags", 9)
    assert "Driver Not Loaded" in home("probe").stdout


def test_cards_are_shown_with_whose_memory_it_is(home: HomeFolder, driver: Driver) -> None:
    driver.add_card(reserved=GB // 2, utilisation=42, temperature=66, power=201_000, energy=1000, free=GB)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    ours = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"], env={**os.environ, **make_owner_mark()}
    )
    try:
        driver.add_process("0", other.pid, 10 * GB)
        driver.add_process("0", ours.pid, 6 * GB)
        machine = start(home)
        device = wait_for(lambda: read_gpus(home)["gpu0"].get("device"))
        assert (device["memory_mb"], device["free_mb"], device["reserved_mb"]) == (24 * 1024, 1024, 512)
        assert device["used_mb"] == 6 * 1024
        assert device["foreign_mb"] == 24 * 1024 - 1024 - 512 - 6 * 1024, "a process, and what is of none"
        assert (device["orphan_mb"], device["allocated_mb"]) == (0, 0)
        assert device["usable_mb"] == 24 * 1024 - 512
        assert (device["utilisation"], device["temperature"], device["power_watts"]) == (0.42, 66.0, 201.0)
        shown = home("gpus").stdout
        flat = "".join(shown.split())
        for part in (f"{machine}.gpu0", "42%", "foreign:", "24.0", str(other.pid)):
            assert part in flat, shown
        [row] = [seat for seat in home.json("seats") if seat["seat"] == f"{machine}.gpu0"]
        assert row["metrics"]['gpu_memory_bytes{use="free"}'] == GB
        assert row["metrics"]["gpu_energy_joules_total"] == 1.0
    finally:
        for child in (other, ours):
            child.kill()
            child.wait()


def test_a_card_that_is_pulled_out_takes_its_seat_out_of_work_until_it_is_back(
    home: HomeFolder, driver: Driver
) -> None:
    driver.add_card()
    driver.add_card()
    start(home)
    assert {name: row["state"] for name, row in read_gpus(home).items()} == {"gpu0": "ready", "gpu1": "ready"}
    pid = home.part("gpu1")["pid"]
    driver.set(**{"1.lost": 1})
    row = wait_for(lambda: read_gpus(home)["gpu1"], true=lambda row: row["state"] != "ready")
    assert "GPU is lost" in row["reason"]
    assert read_gpus(home)["gpu0"]["state"] == "ready"
    assert "GPUislost" in "".join(home("gpus").stdout.split())
    driver.set(**{"1.lost": None})
    wait_for(lambda: read_gpus(home)["gpu1"]["state"] == "ready")
    assert home.part("gpu1")["pid"] == pid, "its worker went on all along"


def test_a_driver_that_hangs_for_half_a_minute_delays_no_heartbeat(home: HomeFolder, driver: Driver) -> None:
    """The advertisement is valid for three heartbeats, from which its age follows."""
    driver.add_card()
    machine = start(home)
    wait_for(lambda: read_gpus(home)["gpu0"].get("device"))
    with connect(read_url(home), name="test") as client:
        [key] = [key for key in client.keys("*advertisement*") if f"{machine}.gpu0" in str(key)]
        whole_ms = TTL_HEARTBEATS * HEARTBEAT * 1000
        oldest = 0.0
        driver.hang("nvmlDeviceGetMemoryInfo_v2", 30)
        until = time.monotonic() + 22
        while time.monotonic() < until:
            oldest = max(oldest, whole_ms - int(client.pttl(key)))
            time.sleep(0.05)
    assert oldest / 1000 < HEARTBEAT * 1.1 + 1, "a heartbeat is never late by more than a second"
    row = read_gpus(home)["gpu0"]
    assert row["state"] != "ready"
    assert "has not answered" in row["reason"]
    driver.end_hangs()
    wait_for(lambda: read_gpus(home)["gpu0"]["state"] == "ready")
