"""Your own stage, and a graph that uses it.

A machine that can import this module offers the stage to the whole grid:

    PYTHONPATH=examples GRIDQ_STAGES=own_stage gridq up      # or: celery -A workers worker --seat local

Then every agent can use it in graphs, such as this file:

    python examples/own_stage.py "to be or not to be"
"""

import sys
from collections import Counter

from gridq import GridError, run_graph, stage


@stage(effects="Process", input="Text", output="Any")
def frequent_words(text):
    """Return the words of a text, the most frequent first."""
    # Plain Python: it takes the stage's input and returns its output, both JSON. The effect `Process` says
    # that it runs code on a machine, and needs neither a model nor the network.
    return [word for word, _ in Counter(text.lower().split()).most_common()]


graph = {
    "root": {
        "op": "Sequential",
        "stages": [
            {"op": "Stage", "id": "frequent_words"},  # runs on a machine that offers it
            {"op": "Stage", "id": "join", "config": {"separator": ", "}},  # built in: runs anywhere
        ],
    }
}

if __name__ == "__main__":
    try:
        print(run_graph.delay(graph, " ".join(sys.argv[1:]) or "to be or not to be").get(timeout=60))
    except GridError as error:
        sys.exit(str(error))
