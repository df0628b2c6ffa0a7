"""Run with `make test ARGS=plugins/trackio_logger`."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from trackio_logger import Trackio


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of a package that records them."""
    found: list[tuple[Any, ...]] = []

    def record(name: str) -> Callable[..., None]:
        return lambda *args, **options: found.append((name, *args, options))

    def init(**options: Any) -> Any:
        record("init")(**options)
        return SimpleNamespace(log=record("log"), finish=record("finish"))

    fake = SimpleNamespace(init=init, Table=lambda columns, data: ("table", columns, data))
    monkeypatch.setitem(sys.modules, "trackio", fake)
    return found


def test_a_new_run_and_one_that_goes_on(calls: list[tuple[Any, ...]]) -> None:
    first, other = Trackio(name="dapo"), Trackio(name="dapo")
    assert first.version.startswith("dapo-")
    assert first.version != other.version
    first.log_hyperparams({"seed": 1})
    resumed = Trackio(name="dapo", run_id=first.version)
    resumed.log_metrics({"val/accuracy": 0.5}, step=3)
    resumed.log_table("samples/iteration", ["response"], [["2"]], step=3)
    resumed.finalize("success")
    begun, again, metrics, table, finished = calls
    assert (begun[1]["name"], begun[1]["config"], begun[1]["resume"]) == (
        first.version,
        {"seed": 1},
        "never",
    )
    assert (again[1]["name"], again[1]["resume"]) == (first.version, "allow")
    assert metrics == ("log", {"val/accuracy": 0.5}, {"step": 3})
    assert table == ("log", {"samples/iteration": ("table", ["response"], [["2"]])}, {"step": 3})
    assert finished == ("finish", {})
