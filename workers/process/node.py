"""`python -m workers.process.node APP OPTIONS`: run `celery --quiet -A APP worker OPTIONS` in less memory.

The `celery` command imports all its subcommands, and for one of them Flower with a web server: 13 MB that
each worker would keep (`python -m benchmarks idle`). This module runs Celery's own `worker` command, with the
same options, defaults and variables (CELERY_WORKER_…).
"""

from __future__ import annotations

import sys

from celery.app.utils import find_app
from celery.bin.base import CLIContext
from celery.bin.worker import worker

MODULE = "workers.process.node"


def main() -> None:
    """Run the worker of the command line. It ends the process with Celery's exit codes."""
    name, *options = sys.argv[1:] or [""]
    if not name or name.startswith("-"):
        print(f"The app must come first: python -m {MODULE} workers --seat NAME", file=sys.stderr)
        sys.exit(2)
    app = find_app(name)
    worker.params.extend(app.user_options["worker"])
    sys.argv[0:1] = ["-m", MODULE]  # Celery restarts itself with these at SIGHUP
    worker.main(
        options,
        prog_name=MODULE,
        # Without the banner: it would be the last log line of a worker that cannot start.
        obj=CLIContext(app=app, no_color=False, workdir=None, quiet=True),
        auto_envvar_prefix="CELERY_WORKER",
    )


if __name__ == "__main__":
    main()
