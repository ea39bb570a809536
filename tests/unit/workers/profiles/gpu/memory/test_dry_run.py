"""What a dry run reads of llama.cpp's log. The rows have the form that llama.cpp's issues show."""

from __future__ import annotations

import os
from typing import Any

import pytest

from workers.profiles.gpu.memory.dry_run import DryRun, _read_rows

HEAD = "0.00.451 I common_memory_breakdown_print: "
TABLE = (
    HEAD + "| memory breakdown [MiB] | total    free     self   model   context   compute    unaccounted |"
)
CARD = HEAD + "|   - CUDA0 (RTX 4090)   | 24080 = 9436 + (14193 = 13169 +      38 +     985) +         451 |"
HOST = HEAD + "|   - Host               |                   4465 =   515 +       0 +    3950                |"
REPACK = (
    HEAD + "|   - CPU_REPACK         |                    504 =   504 +       0 +       0                |"
)
END = "0.00.452 I common_params_fit_impl: projected to use 14193 MiB of device memory"
SMALLER = (
    HEAD + "|   - CUDA0 (RTX 4090)   | 24080 = 9436 + ( 7000 =  6000 +     500 +     500) +         451 |"
)


class Log:
    """A process whose stderr has these lines."""

    def __init__(self, *lines: str) -> None:
        self.stderr = [line.encode() + b"\n" for line in lines]
        self.pid = os.getpid()


def read(*lines: str) -> DryRun:
    process: Any = Log(*lines)
    return _read_rows(process)


def test_a_card_and_the_host_are_counted_apart() -> None:
    found = read("noise", TABLE, CARD, HOST, END)
    assert 14193 <= found.device_mb <= 14193 + 3
    assert 4465 <= found.host_mb <= 4465 + 3
    assert found.process_mb > 0
    assert found.reason == ""


def test_buffers_of_the_cpu_are_the_hosts() -> None:
    found = read(TABLE, CARD, REPACK, END)
    assert 504 <= found.host_mb <= 507
    assert found.device_mb < 14200


def test_the_first_table_counts_and_not_that_of_reduced_parameters() -> None:
    assert read(TABLE, CARD, END, TABLE, SMALLER, END).device_mb >= 14193


@pytest.mark.parametrize("lines", [(), ("noise",), (TABLE,), (TABLE, CARD)])
def test_a_log_that_breaks_off_has_a_reason_and_no_numbers(lines: tuple[str, ...]) -> None:
    found = read(*lines)
    assert found.reason
    assert (found.device_mb, found.host_mb) == (0, 0)


def test_an_unknown_architecture_is_the_reason() -> None:
    line = "0.1 E llama_model_load: error loading model: unknown model architecture: 'strange'"
    assert "unknown model architecture: 'strange'" in read(line).reason
