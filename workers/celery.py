"""The Celery app of `celery -A workers worker --seat NAME`, which serves one seat of this machine."""

from click import Option

from gridq.app import app
from workers.process.worker import WorkerProcess

app.user_options["worker"].add(
    Option(
        ("--seat",),
        default=None,
        help="Seat of this machine to serve. `gridq probe` lists them.",
    )
)
WorkerProcess().connect_signals()

__all__ = ["app"]
