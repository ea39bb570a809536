"""NVIDIA's cards: pynvml's real code on a library that plays the driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.fakes.nvml import GB, Driver
from workers.profiles.gpu.devices import cpu, discovery, nvidia
from workers.profiles.gpu.devices.device import DeviceError, DeviceLost, DriverTimeout

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, IS_LOST, RESET_REQUIRED, MISMATCH = 3, 4, 9, 15, 16, 18


def test_cards_are_described_with_numbers(driver: Driver) -> None:
    driver.add_card()
    driver.add_card(name="NVIDIA B200", total=180 * GB, free=GB, compute="12 0")
    found, missing = nvidia.find_devices()
    assert missing == []
    assert [(card.device, card.name, card.memory_mb, card.free_mb) for card in found] == [
        ("gpu0", "NVIDIA RTX 4090", 24 * 1024, 20 * 1024),
        ("gpu1", "NVIDIA B200", 180 * 1024, 1024),
    ]
    assert [card.uuid for card in found] == ["GPU-0", "GPU-1"]
    assert found[0].compute_cap is not None
    assert found[1].compute_cap is not None
    assert (found[0].compute_cap, found[1].compute_cap) == ((8, 9), (12, 0))
    assert found[0].compute_cap < found[1].compute_cap


def test_a_reading_has_every_field_in_base_units(driver: Driver) -> None:
    driver.add_card(
        reserved=GB, utilisation=37, temperature=61, power=120_500, energy=5_250_000,
        ecc=0, pending=0, remapped="0 0 0 0",
    )  # fmt: skip
    driver.add_process("0", 4321, 2 * GB)
    driver.add_process("0", 4322, None)
    reading = nvidia.read("GPU-0")
    assert (reading.memory_mb, reading.free_mb, reading.reserved_mb) == (24 * 1024, 20 * 1024, 1024)
    assert (reading.utilisation, reading.temperature) == (0.37, 61.0)
    assert (reading.power_watts, reading.energy_joules) == (120.5, 5250.0)
    assert reading.processes is not None
    assert [(each.pid, each.memory_mb) for each in reading.processes] == [(4321, 2048), (4322, None)]
    assert (reading.faults, dict(reading.unknown)) == ((), {})


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetPowerUsage", "power"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "processes"),
        ("nvmlDeviceGetTotalEccErrors", "ecc"),
        ("nvmlEventSetCreate", "xid"),
    ],
)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 999])
def test_what_a_driver_does_not_tell_costs_that_field_alone(
    driver: Driver, function: str, field: str, code: int
) -> None:
    driver.add_card(utilisation=1, temperature=1, power=1, energy=1, ecc=0, pending=0, remapped="0 0 0 0")
    driver.set(**{"0.uuid": f"GPU-{function}-{code}"})
    driver.fail(function, code)
    for _ in range(2):
        reading = nvidia.read(f"GPU-{function}-{code}")
        assert list(reading.unknown) == [field]
    assert reading.unknown[field]
    assert reading.free_mb == 20 * 1024


def test_an_old_driver_lacks_functions_and_tells_the_rest(driver: Driver) -> None:
    """The library has none of the newer functions, as pynvml finds out: in a process of its own."""
    driver.add_card(reserved=GB, utilisation=5, temperature=40, power=1000)
    driver.add_process("0", 77, GB)
    code = (
        "from workers.profiles.gpu.devices import nvidia\n"
        "found, missing = nvidia.find_devices()\n"
        "reading = nvidia.read(found[0].uuid)\n"
        "print(len(found), missing, found[0].compute_cap, reading.temperature, reading.reserved_mb,"
        " [(p.pid, p.memory_mb) for p in reading.processes], sorted(reading.unknown))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=driver.environment("-DOLD_DRIVER"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    unknown = ["ecc", "energy", "remapped_rows", "retired_pages"]
    assert done.stdout.strip() == f"1 [] (8, 9) 40.0 0 [(77, 1024)] {unknown}"


def test_an_integrated_gpu_counts_the_machines_memory(driver: Driver) -> None:
    driver.add_card(name="GB10", compute="12 1")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        driver.fail(function, NOT_SUPPORTED)
    (card,), _ = nvidia.find_devices()
    assert card.memory_mb == cpu.measure_total_mb() > 0
    assert nvidia.read(card.uuid).free_mb > 0


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, MISMATCH, NO_PERMISSION])
def test_a_driver_that_does_not_start_is_reported_with_its_reason(driver: Driver, code: int) -> None:
    driver.add_card()
    driver.fail("nvmlInitWithFlags", code)
    found, (reason,) = nvidia.find_devices()
    assert found == []
    assert reason.startswith("No NVIDIA GPU: ")
    with pytest.raises(DeviceError):
        nvidia.read("GPU-0")
    driver.fail("nvmlInitWithFlags", 0)
    assert nvidia.read("GPU-0").memory_mb == 24 * 1024


def test_no_card_and_no_driver_are_two_reasons(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvidia.find_devices() == ([], ["No NVIDIA GPU: the driver reports none"])
    monkeypatch.delenv("GRIDQ_STUB_NVML")
    assert nvidia.find_devices() == ([], ["No NVIDIA GPU: NVML Shared Library Not Found"])


def test_a_lost_card_does_not_hide_others(driver: Driver) -> None:
    driver.add_card(lost=1)
    driver.add_card()
    found, (reason,) = nvidia.find_devices()
    assert [each.device for each in found] == ["gpu1"]
    assert "GPU is lost" in reason


def test_a_card_that_is_pulled_out_is_lost_and_may_come_back(driver: Driver) -> None:
    driver.add_card()
    driver.add_card()
    assert nvidia.read("GPU-1").memory_mb == 24 * 1024
    driver.set(**{"1.lost": 1})
    with pytest.raises(DeviceLost, match="GPU is lost"):
        nvidia.read("GPU-1")
    assert nvidia.read("GPU-0").memory_mb == 24 * 1024
    driver.set(**{"1.uuid": None})  # after a restart of the driver it is not even listed
    with pytest.raises(DeviceLost):
        nvidia.read("GPU-1")
    driver.set(**{"1.lost": None, "1.uuid": "GPU-1"})
    assert nvidia.read("GPU-1").memory_mb == 24 * 1024


def test_a_card_that_is_lost_between_two_fields_is_lost(driver: Driver) -> None:
    driver.add_card(utilisation=1)
    driver.fail("nvmlDeviceGetUtilizationRates", RESET_REQUIRED, card=0)
    with pytest.raises(DeviceLost, match="nvidia-smi --gpu-reset"):
        nvidia.read("GPU-0")


def test_mig_instances_are_devices_and_their_card_is_none(driver: Driver) -> None:
    driver.add_card(mig=4, name="NVIDIA A100-SXM4-40GB", compute="8 0", temperature=50, energy=1, power=1)
    for index in (0, 2):  # the slots between them have no instance
        fields = {"uuid": f"MIG-{index}", "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}
        sizes = {"total": 5 * GB, "free": 4 * GB, "reserved": 0}
        driver.set(**{f"0/{index}.{name}": value for name, value in {**fields, **sizes}.items()})
    driver.add_process("0/2", 99, GB)
    driver.add_card()
    found, missing = nvidia.find_devices()
    assert missing == []
    assert [(each.device, each.uuid, each.memory_mb, each.compute_cap) for each in found] == [
        ("gpu0-mig0", "MIG-0", 5 * 1024, (8, 0)),
        ("gpu0-mig2", "MIG-2", 5 * 1024, (8, 0)),
        ("gpu1", "GPU-1", 24 * 1024, (8, 9)),
    ]
    reading = nvidia.read("MIG-2")
    assert reading.processes is not None
    assert [(each.pid, each.memory_mb) for each in reading.processes] == [(99, 1024)]
    assert reading.energy_joules is None, "the instances of a card would count its energy several times"
    assert {"power", "energy"} <= set(reading.unknown)


def test_a_card_in_mig_mode_without_instances_says_so(driver: Driver) -> None:
    driver.add_card(mig=7)
    found, (reason,) = nvidia.find_devices()
    assert found == []
    assert "nvidia-smi mig" in reason


def test_faults_of_the_hardware_are_told(driver: Driver) -> None:
    driver.add_card(uuid="GPU-faulty", ecc=2, pending=1, remapped="0 1 1 1")
    assert len(nvidia.read("GPU-faulty").faults) == 3
    driver.set(**{"0.xid": 79})
    faults = nvidia.read("GPU-faulty").faults
    assert any("Xid 79" in fault for fault in faults)
    assert nvidia.read("GPU-faulty").faults == faults, "an Xid is told once by the driver, and kept"


def test_a_hanging_driver_is_given_up_at_once_from_then_on(driver: Driver) -> None:
    driver.add_card()
    nvidia.find_devices()
    driver.hang("nvmlDeviceGetMemoryInfo_v2")
    with pytest.raises(DriverTimeout):
        nvidia.read("GPU-0", seconds=0.1)
    began = time.monotonic()
    found, (reason,) = nvidia.find_devices(seconds=0.05)
    assert found == []
    assert "has not answered" in reason
    assert "restart the machine" in reason
    assert time.monotonic() - began < 1


def test_the_free_memory_is_that_of_the_device_or_of_the_machine(driver: Driver) -> None:
    driver.add_card()
    assert discovery.read_device("cuda", "GPU-0").free_mb == 20 * 1024
    with pytest.raises(DeviceLost):
        discovery.read_device("cuda", "GPU-9")
    assert discovery.read_device("cpu", None).free_mb == pytest.approx(cpu.measure_available_mb(), abs=2048)


def test_pynvml_finds_the_library_by_the_systems_own_path(driver: Driver) -> None:
    driver.add_card(name="NVIDIA H200")
    code = "from workers.profiles.gpu.devices import discovery; print(discovery.find_devices()[0][0].name)"
    environment = driver.environment()
    assert environment["PATH"] == os.environ["PATH"]
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "NVIDIA H200"
