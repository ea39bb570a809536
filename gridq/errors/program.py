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


def first_fault(exc: ValidationError) -> tuple[str, str]:
    """(the field at fault as `a.0.b`, empty for the whole; why) of the first fault that pydantic found."""
    first = exc.errors()[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"]
