"""Runs of Trackio in a local database, read back with its storage."""

from __future__ import annotations

from typing import Any

import pytest

from rlmods.logger import Trackio
from tests.logger.runs import CELLS, COLUMNS, ROWS, SETTINGS

trackio = pytest.importorskip("trackio")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Rows by run: a run that is resumed, and another one of the same label."""
    from trackio import sqlite_storage

    folders = [tmp_path_factory.mktemp("run") for _ in range(2)]
    patch = pytest.MonkeyPatch()
    patch.setattr(sqlite_storage, "TRACKIO_DIR", folders[0] / "trackio")
    for step, folder in ((1, folders[0]), (1, folders[1]), (2, folders[0])):
        logger = Trackio(folder, project="tests")
        logger.log_hyperparams(SETTINGS)
        logger.log_metrics({"val/pass@8": 0.5}, step=step)
        logger.log_samples("iteration", ROWS, step=step)
        logger.finalize("success")
    storage = sqlite_storage.SQLiteStorage
    found = {name: storage.get_logs("tests", name) for name in storage.get_runs("tests")}
    patch.undo()
    return found


def test_a_resumed_run_is_the_same_and_no_other(logs: dict[str, list[dict[str, Any]]]) -> None:
    steps = sorted([row["step"] for row in rows if "val/pass@8" in row] for rows in logs.values())
    assert steps == [[1], [1, 2]]
    assert all(name.startswith("dapo[ratio=symmetric]-") for name in logs)


def test_tables(logs: dict[str, list[dict[str, Any]]]) -> None:
    tables = [
        row["samples/iteration"]
        for rows in logs.values()
        for row in rows
        if "samples/iteration" in row
    ]
    assert len(tables) == 3
    assert [[row[name] for name in COLUMNS] for row in tables[0]["_value"]] == CELLS
