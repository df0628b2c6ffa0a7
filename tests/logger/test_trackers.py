"""Runs of trackers are named by the label, and go on when the run is resumed."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf

from rlmods.errors import UserError
from rlmods.logger import trackers
from tests.support.tiny_setup import Log

LABEL = "dapo[ratio=symmetric]"
SETTINGS = {"label": LABEL, "seed": 1}
ROOT = Path(__file__).parents[2]


def node(name: str) -> Any:
    """The configuration of a logger, with its values in place of interpolations."""
    folder = ROOT / ("plugins/trackio_logger/logger" if name == "trackio" else "conf/logger")
    text = (folder / f"{name}.yaml").read_text().replace("${run_dir}", "run")
    return OmegaConf.create(text)


class MLFlowLogger(Log):
    """As the class of that name, which gets its identifier from the server."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.settings: list[Any] = []
        self.fails = fails

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any) -> None:
        if self.fails:
            raise LookupError("no\nserver")
        self.settings.append(params)

    @property
    def version(self) -> str:
        return "run-7"


class TestConfiguration:
    @pytest.mark.parametrize(
        ("name", "setting", "identifier"),
        [("wandb", "name", "id"), ("mlflow", "run_name", "run_id"), ("trackio", "name", "run_id")],
    )
    def test_name_and_identifier(
        self, name: str, setting: str, identifier: str, tmp_path: Path
    ) -> None:
        new = node(name)
        trackers.configure(new, tmp_path, LABEL)
        assert (new[name][setting], new[name][identifier]) == (LABEL, None)
        named = node(name)
        named[name][setting] = "mine"
        trackers.configure(named, tmp_path, LABEL)
        assert named[name][setting] == "mine"
        kind = named[name]._target_.rpartition(".")[2]
        (tmp_path / trackers.FILE).write_text(json.dumps({kind: "abc"}))
        trackers.configure(named, tmp_path, LABEL)
        assert named[name][identifier] == "abc"

    def test_other_loggers_stay(self, tmp_path: Path) -> None:
        for name in ("csv", "tensorboard"):
            configured = node(name)
            trackers.configure(configured, tmp_path, LABEL)
            assert configured == node(name)


class TestStart:
    def test_settings_are_logged_once_a_run(self, tmp_path: Path) -> None:
        tracker, other = MLFlowLogger(), Log()
        loggers: list[Logger] = [tracker, other]
        trackers.start(loggers, tmp_path, SETTINGS)
        trackers.start(loggers, tmp_path, SETTINGS | {"resume": "auto"})
        assert tracker.settings == [SETTINGS]
        saved = json.loads((tmp_path / trackers.FILE).read_text())
        assert saved == {"MLFlowLogger": "run-7"}

    def test_a_tracker_that_does_not_answer(self, tmp_path: Path) -> None:
        with pytest.raises(
            UserError, match=r"^MLFlowLogger cannot start \(no\\nserver\): .*type logger=none$"
        ):
            trackers.start([MLFlowLogger(fails=True)], tmp_path, SETTINGS)
