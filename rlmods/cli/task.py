"""Hydra's task function. This module imports neither torch nor Lightning."""

import os
import sys

from omegaconf import DictConfig

from rlmods.config import schema as schema  # registers settings with Hydra
from rlmods.run import name

# on import, because the worker processes of a launcher compose a member, and resolve its directory,
# before they call anything
name.register()

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Variables that launchers set to the number of a process."""


def run_task(config: DictConfig) -> float | None:
    """Train the job that Hydra has composed (`rlmods.cli.job.run_job`)."""
    announce_imports()
    from rlmods.cli.job import run_job

    return run_job(config)


def announce_imports() -> None:
    """Print, on the first rank, that the next seconds go to imports, if they do."""
    is_first = all((os.environ.get(rank) or "0") == "0" for rank in RANKS)
    if is_first and "torch" not in sys.modules:
        print("loading libraries", flush=True)
