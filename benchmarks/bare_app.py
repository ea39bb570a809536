"""The bare Celery app that gridq is compared with."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

URL = "BENCH_BARE_URL"

app = Celery("bare")
app.conf.update(
    broker_url=os.environ.get(URL, "redis://127.0.0.1:6379/1"),
    result_backend=os.environ.get(URL, "redis://127.0.0.1:6379/1"),
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    result_expires=600,
)


@app.task(name="bare.echo")  # type: ignore[untyped-decorator]
def echo(value: Any) -> Any:
    return value


@app.task(name="bare.join")  # type: ignore[untyped-decorator]
def join(values: list[Any]) -> list[Any]:
    return values
