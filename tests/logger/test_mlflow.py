"""Runs of MLflow in a local database, read back with its client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.logger import MLflow
from rlmods.logger.mlflow import metric_name
from tests.logger.runs import CELLS, COLUMNS, ROWS, SETTINGS

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A database with a run and what the process that resumes it adds."""
    folder, patch = tmp_path_factory.mktemp("run"), pytest.MonkeyPatch()
    patch.chdir(folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    for step in (1, 2):
        logger = MLflow(folder, tracking_uri=uri)
        logger.log_hyperparams(SETTINGS | {"resume": step})
        logger.log_metrics({"val/pass@8": 0.5}, step=step)
        logger.log_samples("iteration", ROWS, step=step)
        logger.finalize("success")
    patch.undo()
    return mlflow.MlflowClient(uri)


@pytest.fixture(scope="module")
def run(store: Any) -> Any:
    [run] = store.search_runs([store.get_experiment_by_name("rlmods").experiment_id])
    return run


def test_label_and_settings(store: Any, run: Any) -> None:
    assert (run.info.run_name, run.info.status) == (SETTINGS["label"], "FINISHED")
    assert run.data.params == {
        "label": SETTINGS["label"],
        "seed": "1",
        "batch.prompts": "4",
        "fork": "None",
        "resume": "1",
    }
    assert "config.yaml" in [file.path for file in store.list_artifacts(run.info.run_id)]


def test_metrics_of_both_processes(store: Any, run: Any) -> None:
    found = store.get_metric_history(run.info.run_id, "val/pass_at_8")
    assert [(metric.step, metric.value) for metric in found] == [(1, 0.5), (2, 0.5)]


def test_tables(store: Any, run: Any) -> None:
    mlflow.set_tracking_uri(store.tracking_uri)
    table = store.load_table(run.info.experiment_id, "samples/iteration_000002.json")
    assert list(table.columns) == COLUMNS
    assert table.values.tolist() == CELLS


def test_names_of_metrics() -> None:
    assert metric_name("val/pass@8") == "val/pass_at_8"
    assert metric_name("train/reward/a:b é") == "train/reward/a_b _"


def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        UserError,
        match=r"^logger=mlflow: .*: type logger\.mlflow\.tracking_uri=sqlite:///mlflow\.db, or the "
        r"address",
    ):
        MLflow(tmp_path, tracking_uri="http://127.0.0.1:9").log_hyperparams(SETTINGS)
