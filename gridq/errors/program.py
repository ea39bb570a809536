"""A program cannot start or work as it was told to."""

from __future__ import annotations

from gridq.errors.base import GridError


class ConfigError(GridError):
    """A setting, a configuration file or a command's argument is wrong."""

    code = "config.invalid"
    remedy = "Correct the setting, file or argument that `path` names."


class StartTimeout(GridError):
    """A program that was started did not become ready in time."""

    code = "start.timeout"
    remedy = "Read the logs that `path` names."


class JoinRefused(GridError):
    """This machine cannot join the grid because of its clock, its version of gridq or its machine id."""

    code = "join.refused"
    remedy = "Correct what the message names, then join again."


class JoinTokenInvalid(GridError):
    """The join token is malformed, expired, used up or revoked."""

    code = "join.token"
    remedy = "Create a new token with `gridq token create`."


class AlreadyRunning(GridError):
    """The program already runs in this home folder, where it may run only once."""

    code = "program.running"
    remedy = "Use the running one, or stop it first."


class GridBusy(GridError):
    """The grid holds more than can be inspected in one step."""

    code = "grid.busy"
    remedy = "Try again when fewer jobs run and older results have expired."
