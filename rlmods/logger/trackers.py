"""Runs of experiment trackers: named by the label, and continued when the run is resumed."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig

from rlmods.distributed.collectives import is_first_rank
from rlmods.errors import UserError
from rlmods.run import atomic_write, dumps
from rlmods.run.files import one_line

FILE = "trackers.json"
"""File of the run directory with the identifier of the run in each tracker."""
TRACKERS = {
    "WandbLogger": {"package": "wandb", "name": "name", "identifier": "id"},
    "MLFlowLogger": {"package": "mlflow", "name": "run_name", "identifier": "run_id"},
    "Trackio": {"package": "trackio", "name": "name", "identifier": "run_id"},
}
"""By class of a logger: the package that it needs, whose extra has the same name, and the settings
with the name of a run and with the identifier of a run that goes on."""


def configure(loggers: DictConfig, folder: Path, label: str) -> None:
    """Set in the configuration of the loggers the tracker's run that the run directory names, and
    the label as the name of a run that has none."""
    saved = _read(folder)
    for node in loggers.values():
        kind = node._target_.rpartition(".")[2]
        if kind in saved:
            node[TRACKERS[kind]["identifier"]] = saved[kind]
        elif kind in TRACKERS and node.get(TRACKERS[kind]["name"]) is None:
            node[TRACKERS[kind]["name"]] = label


def start(loggers: Sequence[Logger], folder: Path, settings: Mapping[str, Any]) -> None:
    """Start the runs of the trackers with these settings, and keep their identifiers. The settings
    of a run that goes on are logged already.

    Raises:
        UserError: a tracker does not answer.
    """
    saved = _read(folder)
    for logger in loggers:
        kind = type(logger).__name__
        if kind in saved:
            continue
        try:
            logger.log_hyperparams(dict(settings))
        except Exception as error:  # each tracker has its own
            raise UserError(
                f"{kind} cannot start ({one_line(str(error))}): check its address and your login, "
                "or type logger=none"
            ) from error
        if kind in TRACKERS and is_first_rank():
            saved[kind] = str(logger.version)
            atomic_write(folder / FILE, dumps(saved) + "\n")


def finish(loggers: Sequence[Logger]) -> None:
    """End the run of Weights & Biases, which the next run of this process, as in a sweep, would
    join."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()


def _read(folder: Path) -> dict[str, str]:
    path = folder / FILE
    saved: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    return saved
