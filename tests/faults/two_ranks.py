"""Faults of one of two ranks: `python -m tests.faults.two_ranks FOLDER`. Only rank 1 receives
SIGTERM, only rank 0 has a full disk.

Each rank writes its final state to a file."""

import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy

from rlmods.algo import Batch
from rlmods.callbacks import GracefulStop, IterationCheckpoint
from tests.faults.inject import DiskFull, SendSignals
from tests.support.tiny_setup import fit, learner


class SignalOfSecondRank(SendSignals):
    """The second rank receives SIGTERM within iteration 3."""

    def on_train_batch_start(self, trainer: L.Trainer, learner: Any, *args: Any) -> None:
        if learner.iteration == 2 and trainer.global_rank == 1:
            super().on_train_batch_start(trainer, learner, *args)
            time.sleep(0.5)  # until the first rank is ahead


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    trained = learner(batch=Batch(prompts=4, samples=4))
    stop = GracefulStop()
    checkpoint = IterationCheckpoint(folder / "checkpoints", every=1, keep=0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        faults = (DiskFull([1]), SignalOfSecondRank([signal.SIGTERM], 3))
        rows = fit(
            trained,
            9,
            callbacks=(checkpoint, stop, *faults),
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo"),
        )
    state = {
        "iteration": trained.iteration,
        "status": stop.exit_status,
        "failures": checkpoint.failures,
    }
    messages = [str(w.message) for w in warned if "was not saved" in str(w.message)]
    (folder / f"rank_{trained.global_rank}.json").write_text(
        json.dumps({**state, "warnings": messages})
    )
