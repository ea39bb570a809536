"""`python -m workers.process.node APP OPTIONS`: what `celery --quiet -A APP worker OPTIONS` does, and no
more of Celery's command line loaded.

The `celery` command imports all its subcommands, and Flower with a web server for one of them: 13 MB that
each worker would keep (`python -m benchmarks idle`). This is Celery's own `worker` command, with its options,
their defaults and its variables (CELERY_WORKER_…).
"""

from __future__ import annotations

import sys

from celery.app.utils import find_app
from celery.bin.base import CLIContext
from celery.bin.worker import worker

MODULE = "workers.process.node"


def main() -> None:
    """Run the worker that the command line asks for; it ends the process, with Celery's exit codes."""
    name, *options = sys.argv[1:] or [""]
    if not name or name.startswith("-"):
        print(f"The app comes first, such as: python -m {MODULE} workers --seat NAME", file=sys.stderr)
        sys.exit(2)
    app = find_app(name)
    worker.params.extend(app.user_options["worker"])
    sys.argv[0:1] = ["-m", MODULE]  # at SIGHUP Celery starts the same anew by these
    worker.main(
        options,
        prog_name=MODULE,
        # Without the banner: it would be the last words of one that cannot start.
        obj=CLIContext(app=app, no_color=False, workdir=None, quiet=True),
        auto_envvar_prefix="CELERY_WORKER",
    )


if __name__ == "__main__":
    main()
