"""What a model's process finds out about the model's chat template."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from gridq.errors import StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.profiles.gpu import model_process
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess

ORDER = LoadOrder("tiny", "xllamacpp", Path("tiny.gguf"), 512, 1, 1, 0, False, {})


class Scripted(ModelProcess):
    """A process whose requests fail one after another with `errors`, None for an answer."""

    def __init__(self, *errors: StageError | None) -> None:
        super().__init__(ORDER)
        self.errors = list(errors)

    def request(
        self, endpoint: str, body: dict[str, Json], context: StageContext
    ) -> Generator[dict[str, Json]]:
        error = self.errors.pop(0)
        if error is not None:
            raise error
        yield {"usage": {"prompt_tokens": 9 if body["tools"] else 3}}


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process.tempfile, "tempdir", str(tmp_path))


def test_what_a_template_reads_is_asked_once() -> None:
    process = Scripted(None, None)
    assert process.reads_field("tools", StageContext())
    assert process.reads_field("tools", StageContext())


def test_a_field_that_the_engine_refuses_is_not_read() -> None:
    process = Scripted(None, StageError("no tools here"))
    assert not process.reads_field("tools", StageContext())
    assert not process.reads_field("tools", StageContext())


def test_a_stage_without_time_left_says_nothing_about_the_template() -> None:
    process = Scripted(None, StageTimeout("too late"), None, None)
    with pytest.raises(StageTimeout):
        process.reads_field("tools", StageContext())
    assert process.reads_field("tools", StageContext())
