"""Celery's settings for every program of the grid. `gridq.app` loads this module by its name.

The server, the key prefix and the life of results follow from GRIDQ_BROKER_URL, GRIDQ_PREFIX and
GRIDQ_RESULT_TTL.
"""

import logging
import os
from contextlib import nullcontext

import click

from gridq.app import OVERRIDES, server_options
from gridq.config.settings import settings
from gridq.process import startup_errors
from gridq.protocol.queue_names import ROUTER

imports = ("gridq.tasks", "gridq.execution.tasks", "gridq.router.process")

# In Celery's own command an invalid setting is one line and exit code 2; other programs get the ConfigError.
with startup_errors.exit_on_error() if click.get_current_context(silent=True) else nullcontext():
    _server = server_options(settings())

for _name in OVERRIDES:
    if os.environ.get(_name):
        logging.getLogger(__name__).warning(
            "%s is ignored: the grid's server is that of GRIDQ_BROKER_URL", _name
        )

broker_url = _server["broker_url"]
broker_transport = _server["broker_transport"]
broker_transport_options = _server["broker_transport_options"]
broker_connection_timeout = 5
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # a worker waits for its server without a limit
broker_heartbeat = 0  # Redis has none; keepalive and health checks of the sockets find a dead peer

result_backend = _server["result_backend"]
result_backend_transport_options = _server["result_backend_transport_options"]
result_expires = _server["result_expires"]
result_backend_always_retry = True
result_backend_max_retries = 10
result_backend_max_sleep_between_retries_ms = 1000
redis_socket_timeout = 10.0
redis_socket_connect_timeout = 5.0
redis_backend_health_check_interval = 10

# JSON only: no message is ever unpickled.
task_serializer = "json"
result_serializer = "json"
event_serializer = "json"
accept_content = ["json"]
enable_utc = True

# Messages are wake-ups. A slot takes one at a time and acknowledges it after it has looked for stages.
task_default_queue = ROUTER
task_create_missing_queues = True
task_ignore_result = True  # except gridq.run_graph, whose result is that of the job
task_track_started = False
task_acks_late = True
task_publish_retry_policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}
worker_prefetch_multiplier = 1
worker_enable_prefetch_count_reduction = False
worker_detect_quorum_queues = False
worker_cancel_long_running_tasks_on_connection_loss = False
worker_pool = "threads"

# A program that runs a worker keeps its own logging, and the output of stages stays out of the log.
worker_hijack_root_logger = False
worker_redirect_stdouts = False
