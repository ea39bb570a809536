"""Send a graph to the grid and wait for its answer.

    python examples/agent.py                  # a graph that needs no model
    python examples/agent.py examples/briefing.json examples/briefing-input.json

All that an agent needs is the grid's address, in GRIDQ_BROKER_URL; where `gridq up` runs or the machine has
joined, not even that.
"""

import json
import sys
from pathlib import Path

from gridq import GridError, run_graph

# A graph is JSON: a tree of operators over stages. These two greetings are made side by side, then joined.
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

# `delay` sends it and returns a Celery AsyncResult; `get` waits for the whole graph's answer.
sent = run_graph.delay(graph, value)
try:
    print(sent.get(timeout=120))
except GridError as error:  # which stage failed, where, why, and what to do about it
    sys.exit(str(error))
