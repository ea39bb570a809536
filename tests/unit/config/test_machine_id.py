"""The machine's id in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.config.machine_id import get_machine_id
from gridq.errors import ConfigError


def test_a_machine_id_is_created_once(tmp_path: Path) -> None:
    assert get_machine_id(tmp_path / "new") == get_machine_id(tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"../x", b"two\nlines"])
def test_a_file_without_a_valid_id_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "machine").write_bytes(content)
    with pytest.raises(ConfigError, match="no valid machine id"):
        get_machine_id(tmp_path)
