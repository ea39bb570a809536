"""A program cannot start as it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridq.errors.base import GridError

if TYPE_CHECKING:
    from pydantic import ValidationError


class ConfigError(GridError):
    """A setting, a configuration file or a command's argument is wrong."""

    code = "config.invalid"


class StartTimeout(GridError):
    """What was started did not become ready in time."""

    code = "start.timeout"


class JoinRefused(GridError):
    """This machine cannot join the grid as it is: its clock, its version or its id is in the way."""

    code = "join.refused"


class JoinTokenInvalid(GridError):
    """The join token is no token, has expired, is used up or was revoked."""

    code = "join.token"


class AlreadyRunning(GridError):
    """The program runs already in this home folder, where it may run once."""

    code = "program.running"


class GridBusy(GridError):
    """There is more in the grid than can be looked at at one instant."""

    code = "grid.busy"


def first_fault(exc: ValidationError) -> tuple[str, str]:
    """(the field at fault as `a.0.b`, empty for the whole; why) of the first fault that pydantic found."""
    first = exc.errors()[0]
    why = first["msg"].removeprefix("Value error, ")  # pydantic's own word before a validator's
    return ".".join(str(part) for part in first["loc"]), why
