"""Logging of the grid's own programs: routers, workers, Flower. An agent's program keeps its own logging.

Each line has its time (UTC), level and event and, if they are known, job, stage, attempt and worker. The
format is text, or JSON with GRIDQ_LOG=json. The level is Celery's `-l`, else GRIDQ_LOG_LEVEL. With
GRIDQ_NARRATE=1 events about jobs and seats are logged as sentences, whatever the level.

No line contains a prompt, an answer, a key or a token: every line passes `gridq.telemetry.redaction` last.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from gridq.config.settings import Settings, settings
from gridq.telemetry import narration, redaction

if TYPE_CHECKING:
    from structlog.typing import Processor

NOISY = {"httpx": logging.WARNING, "httpcore": logging.WARNING, "celery.pool": logging.INFO}
"""Loggers that show URLs, headers or a task's arguments below these levels."""

APP = "gridq"


def setup(
    level: int | str | None = None,
    *,
    file: str | None = None,
    colors: bool | None = None,
    config: Settings | None = None,
) -> None:
    """Make this process's root logger write the grid's lines to stderr, or to `file`.

    `level`: a level's name or number; None: GRIDQ_LOG_LEVEL. `colors`: None: if stderr is a terminal. A
    second call replaces what the first has set up.
    """
    config = config or settings()
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    if colors is None:
        colors = not file and sys.stderr.isatty()
    handler.setFormatter(_formatter(config, colors))
    handler.addFilter(redaction.strip_arguments)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.log_level if level is None else level)
    for name, least in NOISY.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    narration.log.setLevel(min(logging.INFO, root.level) if config.narrate else logging.NOTSET)
    logging.captureWarnings(True)
    # Otherwise a line that cannot be written is shown on stderr with its arguments.
    logging.raiseExceptions = False


def _formatter(config: Settings, colors: bool) -> logging.Formatter:
    from structlog.processors import TimeStamper, add_log_level
    from structlog.stdlib import ProcessorFormatter

    secrets = redaction.Secrets.of(config)
    processors: list[Processor] = [
        _bound,
        add_log_level,
        TimeStamper(fmt="iso", utc=True, key="at"),
        _exception,
        ProcessorFormatter.remove_processors_meta,
        lambda logger, method, line: secrets.hide(line),
        *_renderers(config, colors),
    ]
    return ProcessorFormatter(processors=processors)


def _bound(logger: Any, method: str, line: Any) -> Any:
    """Add the fields that are bound, and the logger."""
    record: logging.LogRecord = line["_record"]
    line.update(narration.bound_fields())
    line.update(getattr(record, "gridq", {}))
    if record.name != narration.log.name:
        line["logger"] = record.name
    return line


def _exception(logger: Any, method: str, line: Any) -> Any:
    fault = line.pop("exc_info", None)
    line.pop("stack_info", None)
    if fault and fault[1] is not None:
        line["exception"] = redaction.format_traceback(fault[1])
    return line


def _renderers(config: Settings, colors: bool) -> list[Processor]:
    from structlog.dev import ConsoleRenderer
    from structlog.processors import JSONRenderer

    if config.log == "json":
        return [_with_sentence, JSONRenderer()] if config.narrate else [JSONRenderer()]
    plain = ConsoleRenderer(
        colors=colors, pad_event_to=0, pad_level=False, timestamp_key="at", sort_keys=False
    )
    return [_Narrator(plain)] if config.narrate else [plain]


def _with_sentence(logger: Any, method: str, line: Any) -> Any:
    sentence = narration.to_sentence(line["event"], line)
    return line if sentence is None else {**line, "sentence": sentence}


class _Narrator:
    """Renders an event as its sentence, and any other line as `plain` does."""

    def __init__(self, plain: Processor) -> None:
        self.plain = plain

    def __call__(self, logger: Any, method: str, line: Any) -> Any:
        sentence = None if "logger" in line else narration.to_sentence(line["event"], line)
        return self.plain(logger, method, line) if sentence is None else f"{line['at']} {sentence}"


def connect() -> None:
    """Make the `celery` command of gridq's app log this way. Other programs keep their own logging."""
    from celery import signals

    signals.celeryd_init.connect(_take_over, weak=False, dispatch_uid="gridq.telemetry.logs")


def _take_over(instance: Any = None, **_: Any) -> None:
    from celery import signals

    if click.get_current_context(silent=True) is not None and instance.app.main == APP:
        signals.setup_logging.connect(_celery, weak=False, dispatch_uid="gridq.telemetry.logs")


def _celery(
    loglevel: int | str | None = None, logfile: str | None = None, colorize: bool | None = None, **_: Any
) -> None:
    """Set up logging by Celery's `-l` and `-f`. Celery's default for `-l` does not count."""
    context = click.get_current_context(silent=True)
    given = context is not None and context.get_parameter_source("loglevel") in (
        click.core.ParameterSource.COMMANDLINE,
        click.core.ParameterSource.ENVIRONMENT,
    )
    setup(loglevel if given else None, file=logfile, colors=False if colorize is False else None)
