"""Unit tests of graphs and of a stage: no server, no worker, no model.

PYTHONPATH=examples pytest examples/test_own_stage.py
"""

import json
from pathlib import Path

import own_stage
import pytest

from gridq import GridError
from gridq.testing import run

HERE = Path(__file__).parent
BRIEFING = json.loads((HERE / "briefing.json").read_text())
NOTES = json.loads((HERE / "briefing-input.json").read_text())


def test_the_graph_lists_the_words():
    assert run(own_stage.graph, "to be or not to be", stages=own_stage) == "to, be, or, not"


def test_the_stage_takes_text_only():
    with pytest.raises(GridError) as caught:
        run(own_stage.graph, 7, stages=own_stage)
    assert (caught.value.code, caught.value.path) == ("stage.wrong_type", "root.stages[0]")


def test_the_graph_with_another_stage_in_place_of_its_own():
    assert run(own_stage.graph, "any", stages={"frequent_words": lambda text: [text, "b"]}) == "any, b"


def test_the_briefing_with_a_function_in_place_of_the_model():
    prompts = []

    def model(value):
        prompts.append(value["items"])
        return "Your day begins at 7:00 with a walk. Good luck."

    def chat(value):
        return {"role": "assistant", "content": "Take a coat.", "finish_reason": "stop"}

    answer = run(BRIEFING, NOTES, stages={"llm_complete": model, "llm_chat": chat})
    assert "Your day begins at 7:00 with a walk." in json.dumps(answer)
    assert NOTES["notes"][0] in prompts[0]
