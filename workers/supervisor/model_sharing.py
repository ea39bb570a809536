"""The part of `gridq up` and `gridq worker` that shares this machine's models, if its owner wants that."""

from __future__ import annotations

import sys

from workers.machine.seats import read_gpu_table
from workers.supervisor import programs
from workers.supervisor.deployment import Deployment
from workers.supervisor.programs import Program

DETAIL = "shares_models"
OPTIONS = ("share_models", "share_gated", "share_mb_per_second")


def update_mirror(deployment: Deployment, *, restart: bool = False) -> None:
    """Start, restart or stop the mirror as the seats file says now. Call it once the file was checked.

    `restart`: the settings have changed, so one that runs is restarted.
    """
    table = read_gpu_table(deployment.config)
    wanted = {name: table[name] for name in OPTIONS if name in table} if table.get("share_models") else {}
    child = deployment.supervisor.children.get(programs.MIRROR)
    is_as_wanted = child is None if not wanted else child is not None and not child.gave_up_reason
    if is_as_wanted and wanted == deployment.details.get(DETAIL, {}) and not (wanted and restart):
        return
    deployment.details[DETAIL] = wanted
    if not wanted:
        if child is not None:
            deployment.supervisor.remove(programs.MIRROR)
        return
    command = (sys.executable, "-m", "workers.process.model_mirror")
    log = deployment.logs / f"{programs.MIRROR}.log"
    part = Program(programs.MIRROR, command, deployment.make_environment(), log)
    deployment.descriptions[part.name] = f"shares this machine's models at {wanted['share_models']}"
    deployment.supervisor.replace(part)
    deployment.write_record()
