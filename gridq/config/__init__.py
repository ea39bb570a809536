"""Read what the operator configures: environment variables, files and the home folder.

In: GRIDQ_* variables, the files they name, `config.toml` and records in the home folder.
Out: one frozen Settings, parsed URLs and ids, or ConfigError with the variable or the file's line.
Imported by: protocol, telemetry, store, jobs, stages, limits, submission, app, messaging, execution,
router, client, gateway, cli, testing, workers.model_apis, workers.profiles, workers.owner,
workers.machine, workers.process, workers.supervisor, workers.demo, workers.cli.
"""

__all__ = [
    "flower_login",
    "home",
    "locked_json",
    "machine_id",
    "settings",
    "source_positions",
    "time_zones",
    "urls",
]
