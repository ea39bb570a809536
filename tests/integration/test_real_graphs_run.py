"""Graphs made for another runtime of the format run here unchanged, with the operator's own catalogue.

The stage files state the ids that the graphs use; each runs a Python stage of a module on the machine.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import Settings, settings
from gridq.graph.catalogue import Catalogue, StageSpec
from gridq.graph.interpreter import Interpreter
from gridq.graph.nodes import Stage, parse
from gridq.protocol import queue_names
from gridq.store.connection import connect
from tests.builders import walk_nodes
from tests.local_grid import LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer

TOP = Path(__file__).parents[2]
SHARED = Path(os.environ.get("GRIDQ_TEST_GRAPHS", TOP.parent / "shared" / "graphs"))
GRAPHS = (
    "caloron-kickoff",
    "caloron-sprint_tick_core",
    "noether-travel-intelligence",
    "noether-weather-report",
)
MODULE = "real_graph_stages"

SOURCE = '''
from gridq import stage

@stage(effects=["Network"])
def digest(value):
    """A record that tells what it was given, so that the answer tells every stage's input."""
    text = repr(sorted(value)) if isinstance(value, dict) else repr(value)
    return {"seen": len(text), "of": value if len(text) < 200 else text[:50]}
'''


@pytest.fixture(scope="module")
def real_grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGrid]:
    """A grid whose catalogue holds a stage for every id that the real graphs use."""
    if not SHARED.exists():
        pytest.skip(f"the real graphs are not here: {SHARED} (GRIDQ_TEST_GRAPHS names their folder)")
    folder = tmp_path_factory.mktemp("real")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    stages = folder / "stages"
    stages.mkdir()
    for ref in sorted({ref for name in GRAPHS for ref in _refs(name)}):
        spec = {
            "id": ref.ljust(64, "0"),
            "name": f"stage-{ref[:8]}",
            "input": {"kind": "Any"},
            "output": {"kind": "Any"},
            "effects": ["Network"],
            "implementation": f"python:{MODULE}:digest",
        }
        (stages / f"{ref[:8]}.json").write_text(json.dumps(spec))
    config = Settings(broker_url=server.url, prefix="trg:", profiles=(), stages=(MODULE,), stages_dir=stages)
    client = connect(server.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("GRIDQ_STAGES", MODULE)
        settings.cache_clear()
        seats = {
            "m.router": [queue_names.PURE],
            "m.local": [queue_names.LOCAL, queue_names.make_module_queue(MODULE)],
        }
        with LocalGrid(client, config, seats) as grid:
            yield grid
    settings.cache_clear()
    sys.modules.pop(MODULE, None)
    for key in client.scan_iter("trg:*", count=1000):
        client.unlink(key)
    client.close()


def _refs(name: str) -> set[str]:
    graph = parse((SHARED / f"{name}.json").read_bytes())
    return {node.id for _, node in walk_nodes(graph.root) if isinstance(node, Stage)}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_real_graph_answers_as_the_reference(real_grid: LocalGrid, name: str) -> None:
    text = (SHARED / f"{name}.json").read_bytes()
    value = {"city": "São Paulo", "weather": {"url": "a"}, "charging": [1, 2], "temp_c": "7", "n": 2**70}
    assert real_grid.config.stages_dir is not None
    files = [json.loads(path.read_text()) for path in real_grid.config.stages_dir.glob("*.json")]
    digest: Any = importlib.import_module(MODULE).digest

    def call(spec: StageSpec, given: Any, path: str) -> Any:
        return digest(given)

    expected = Interpreter(Catalogue(map(StageSpec.from_json, files)), call).run(parse(text).root, value)
    job = real_grid.client.submit(text, value)
    assert real_grid.client.result(job, timeout=30) == expected.value
    stages = [node for _, node in walk_nodes(parse(text).root) if isinstance(node, Stage)]
    assert len(real_grid.client.rows(job)) == len(stages)
