"""Send a graph to the grid and wait for its answer.

    python examples/agent.py                  # a graph that needs no model
    python examples/agent.py examples/briefing.json examples/briefing-input.json

An agent only needs the grid's address in GRIDQ_BROKER_URL. On a machine that runs `gridq up` or has joined a
grid, it does not even need that.
"""

import json
import sys
from pathlib import Path

from gridq import GridError, run_graph

# A graph is JSON: a tree of operators and stages. Two stages run concurrently; a third joins their outputs.
graph = {
    "root": {
        "op": "Sequential",
        "stages": [
            {
                "op": "Parallel",
                "branches": {
                    "hello": {"op": "Stage", "id": "text_template", "config": {"template": "Hello {{name}}"}},
                    "bye": {"op": "Stage", "id": "text_template", "config": {"template": "so long {{name}}"}},
                },
            },
            {"op": "Stage", "id": "text_template", "config": {"template": "{{hello}}, and {{bye}}!"}},
        ],
    }
}
value = {"name": "Ada"}

if len(sys.argv) == 3:
    graph, value = (json.loads(Path(name).read_text()) for name in sys.argv[1:])

# `delay` submits the graph and returns a Celery AsyncResult; `get` waits for the answer.
sent = run_graph.delay(graph, value)
try:
    print(sent.get(timeout=120))
except GridError as error:  # says which stage failed, why, and what you can do
    sys.exit(str(error))
