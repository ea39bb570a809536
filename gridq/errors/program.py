"""A program cannot start as it is told to."""

from __future__ import annotations

from gridq.errors.base import GridError


class ConfigError(GridError):
    """A setting, a configuration file or a command's argument is wrong."""

    code = "config.invalid"


class StartTimeout(GridError):
    """What was started did not become ready in time."""

    code = "start.timeout"
