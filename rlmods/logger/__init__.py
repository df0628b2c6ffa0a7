"""Loggers of Lightning, and one for Trackio, that also log the configuration and label of a run and
tables of its samples.

A logger may have `log_samples(name, rows, step)`, which `callbacks.samples` calls
(`rlmods.logger.samples.SampleLogger`)."""

from rlmods.logger.mlflow import MLflow
from rlmods.logger.tensorboard import TensorBoard
from rlmods.logger.trackio import Trackio
from rlmods.logger.wandb import Wandb

__all__ = ["MLflow", "TensorBoard", "Trackio", "Wandb"]
