"""The folders that models' files may be in, if the owner names them: `model_folders` of the `[gpu]` table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gridq.errors import ModelOutsideFolders
from workers.profiles.gpu.model_files import hub
from workers.profiles.gpu.model_files.local_models import DOWNLOADS


def check_folders(name: str, paths: Iterable[Path], folders: Sequence[str], home: Path) -> None:
    """Raise ModelOutsideFolders unless each file is in one of `folders`, or gridq or the hub's tools
    downloaded it. Without `folders` every file may be used. Links are followed first.
    """
    if not folders:
        return
    allowed = [Path(folder).expanduser() for folder in folders]
    allowed += [hub.locate_cache(), home / DOWNLOADS]
    resolved = [folder.resolve() for folder in allowed]
    for path in paths:
        if not any(path.resolve().is_relative_to(folder) for folder in resolved):
            raise ModelOutsideFolders(
                f"The file of the model {name!r} is in no folder that the owner allows",
                {
                    "model": name,
                    "path": str(path),
                    "reason": f"it is in {path.resolve().parent}",
                    "expected": "a file in " + ", ".join(folders),
                    "fix": "move the file there, or add its folder to model_folders of [gpu]",
                },
            )
