"""The connection settings of the Celery app."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
from celery import Celery

from gridq.app import OVERRIDES, Messaging, app, configure, server_options
from gridq.config.settings import Settings
from tests.conftest import GridEnv


def _app(url: str) -> Celery:
    made = Celery("test", amqp=Messaging, set_as_current=False)
    made.conf.update(server_options(Settings(broker_url=url, prefix="p:", result_ttl=60)))
    return made


def _connection(url: str) -> dict[str, object]:
    """Return the parameters that kombu's channel would connect with."""
    connection = _app(url).connection_for_write()
    channel = connection.transport.Channel.__new__(connection.transport.Channel)
    for name, value in connection.transport_options.items():
        setattr(channel, name, value)
    channel.connection = connection.transport
    return dict(channel._connparams())


def test_import_reads_no_setting_and_needs_no_server() -> None:
    code = "import gridq.app, gridq.tasks; print(gridq.app.app.main)"
    env = {"GRIDQ_LEASE_MS": "not a number", "GRIDQ_BROKER_URL": "nonsense"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "gridq")


def test_each_use_of_a_task_without_a_server_says_so() -> None:
    code = (
        "import gridq\n"
        "for call in (gridq.run_graph, gridq.complete, gridq.run_graph, gridq.complete) * 2:\n"
        "    for use in (lambda: call(1), lambda: call.delay(1)):\n"
        "        try: use()\n"
        "        except gridq.GridError as error: print(error.code, error.path)"
    )
    env = {**os.environ, "GRIDQ_URL": "http://127.0.0.1:1"}
    env.pop("GRIDQ_BROKER_URL", None)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["config.invalid GRIDQ_BROKER_URL"] * 16


@pytest.mark.parametrize(
    "what", [("gridq.app", "worker", "-Q", "gridq:router"), ("workers", "worker", "--seat", "local")]
)
def test_a_wrong_setting_is_one_line_of_celerys_command(what: tuple[str, ...]) -> None:
    env = {**os.environ, "GRIDQ_LEASE_MS": "soon"}
    command = [sys.executable, "-m", "celery", "-A", *what]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("config.invalid: GRIDQ_LEASE_MS is invalid")


def test_broker_and_results_share_server_and_prefix() -> None:
    options = server_options(Settings(broker_url="redis://:pw@host:6380/2", prefix="p:", result_ttl=60))
    assert options["broker_url"] == options["result_backend"] == "redis://:pw@host:6380/2"
    assert options["broker_transport_options"]["global_keyprefix"] == "p:"
    assert options["result_backend_transport_options"]["global_keyprefix"] == "p:"
    assert options["result_expires"] == 60
    assert options["broker_transport_options"]["ack_emulation"] is False


def test_the_transport_is_the_guarded_one_whatever_the_url() -> None:
    for url in ("redis://host/0", "rediss://host/0", "unix:///run/s.sock"):
        assert type(_app(url).connection_for_write().transport).__module__ == "gridq.messaging.transport"


@pytest.mark.parametrize(
    ("url", "verify"),
    [
        ("rediss://host/0", 2),
        ("rediss://host/0?ssl_cert_reqs=none", 0),
        ("rediss://host/0?ssl_ca_certs=%2Fca.pem", 2),
    ],
)
def test_rediss_verifies_unless_told_otherwise(url: str, verify: int) -> None:
    params = _connection(url)
    assert params["ssl_cert_reqs"] == verify
    assert "SSLConnection" in str(params["connection_class"])
    assert params.get("ssl_ca_certs") == ("/ca.pem" if "ca_certs" in url else None)
    assert _app(url).backend.connparams["ssl_cert_reqs"] == verify


def test_unix_socket_with_password_and_database() -> None:
    url = "unix://:p%40w@/run/s.sock?db=3"
    params = _connection(url)
    assert (params["path"], params["password"], params["db"]) == ("/run/s.sock", "p@w", 3)
    assert not {"host", "port"} & params.keys()
    backend = _app(url).backend.connparams
    assert (backend["path"], backend["password"], backend["db"]) == ("/run/s.sock", "p@w", 3)


def test_every_queue_is_on_the_default_exchange() -> None:
    queues = _app("redis://host/0").amqp.queues
    assert queues["llm:a"].exchange.name == ""
    assert all(queue.exchange.name == "" for queue in queues.values())


def test_celery_accepts_json_and_acknowledges_late() -> None:
    from gridq.app import app

    assert list(app.conf.accept_content) == ["json"]
    assert app.conf.task_default_queue == "gridq:router"
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.task_acks_late is True


def test_pointing_the_app_elsewhere_leaves_no_connection_open(grid_env: GridEnv) -> None:
    """And a result of before may be dropped after it."""

    def connections() -> int:
        return sum(client["name"] != "tests" for client in grid_env.client.client_list())

    before = connections()
    app.backend.mark_as_done("job-1", 1)
    result = app.AsyncResult("job-1")
    waiting = app.AsyncResult("job-2")
    waiting.then(lambda _: None)  # it subscribes
    assert result.get(timeout=5) == 1
    assert connections() > before
    configure(grid_env.settings)
    until = time.monotonic() + 10
    while connections() > before:  # the server sees them close one by one
        assert time.monotonic() < until, grid_env.client.client_list()
    del result, waiting
    gc.collect()


def test_sentinels_are_options_of_the_transport_and_the_url_stays_one_that_flower_takes() -> None:
    made = _app("sentinels://u:p%40@a,b:2/main/3?sentinel_password=s&ssl_ca_certs=%2Fca.pem")
    assert made.conf.broker_url == "redis://u:p%40@a:26379/3"
    transport = made.connection_for_write().transport
    assert (type(transport).__module__, type(transport).__name__) == (
        "gridq.messaging.transport",
        "SentinelTransport",
    )
    options = made.conf.broker_transport_options
    assert (options["sentinels"], options["master_name"]) == ((("a", 26379), ("b", 2)), "main")
    assert (options["sentinel_kwargs"]["password"], options["sentinel_kwargs"]["ssl"]) == ("s", True)
    assert made.conf.broker_use_ssl == {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "required"}
    backend = made.backend.connparams
    assert [(host["host"], host["port"]) for host in backend["hosts"]] == [("a", 26379), ("b", 2)]
    assert (backend["db"], backend["username"], backend["password"]) == (3, "u", "p@")
    assert "SentinelManagedSSLConnection" in str(backend["connection_class"])


def test_no_variable_of_celerys_names_another_server() -> None:
    code = (
        "from gridq.app import app; conf = app.conf;"
        "print(conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend);"
        "print(app.connection_for_read().port, app.connection_for_write().port, app.backend.as_uri())"
    )
    env = {
        **os.environ,
        **dict.fromkeys(OVERRIDES, "redis://:secret@elsewhere:2/0"),
        "GRIDQ_BROKER_URL": "redis://here:1/0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == [" ".join(["redis://here:1/0"] * 4), "1 1 redis://here:1/0"]
    suffix = "is ignored: the grid's server is that of GRIDQ_BROKER_URL"
    assert done.stderr.splitlines() == [f"{name} {suffix}" for name in OVERRIDES]
