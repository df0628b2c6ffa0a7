"""A run with all files that a run writes, on as many ranks as there are: `python -m
tests.support.rank_files FOLDER STRATEGY`."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EarlyStopping

from rlmods.algo import Batch
from rlmods.callbacks import GracefulStop, IterationCheckpoint, Samples, Summary
from rlmods.cli.console import silence_libraries
from rlmods.data import Mixture, PromptModule
from rlmods.data.arithmetic import Arithmetic
from rlmods.distributed import trainer as trainers
from rlmods.distributed.strategy import DDP, FSDP2
from rlmods.logger import JsonlLogger
from rlmods.run.directory import RunDir
from rlmods.training.evaluation import Validation
from rlmods.types import Response, Scores
from tests.support.tiny_setup import learner

STRATEGIES = {"ddp": DDP, "fsdp": FSDP2}
SPLITS = Mixture(
    {name: Arithmetic(level=1, operations=name, num_train=6, num_val=3) for name in "+-"},
    {"+": 2.0},
)()


def by_prompt(responses: Sequence[Response]) -> Scores:
    """A third of the prompts is always solved, a third never, a third by responses that begin with
    an even token. Each fourth response to those is not graded."""
    numbers = {prompt.id: number for number, prompt in enumerate((*SPLITS.train, *SPLITS.val))}
    correct = [(True, False, r.tokens[0] % 2 == 0)[numbers[r.prompt.id] % 3] for r in responses]
    graded = [numbers[r.prompt.id] % 3 < 2 or r.meta["sample"] < 3 for r in responses]
    values = [float(x) if known else None for x, known in zip(correct, graded, strict=True)]
    return Scores(
        values, correct=[x if known else None for x, known in zip(correct, graded, strict=True)]
    )


def train(folder: Path, **options: Any) -> None:
    """Train until early stopping after the fourth iteration, as the monitored number does not grow
    by 100."""
    silence_libraries()
    run = RunDir(folder)
    trained = learner(
        reward=by_prompt,
        batch=Batch(prompts=6, samples=4),
        optimizer=partial(torch.optim.SGD, lr=0.02),
        validation=Validation(every=1),
        validation_prompts=list(SPLITS.val),
        retire_solved=1,
        retire_unsolved=1,
        bring_back=0.3,
    )
    callbacks = [
        Samples(run.path / "samples", print_every=0),
        IterationCheckpoint(run.checkpoints, every=2, keep=1, best="val/accuracy", export="all"),
        EarlyStopping(
            "train/num_retired", min_delta=100.0, patience=3, mode="max", check_finite=False
        ),
        GracefulStop(),
        Summary(run, "test", {}),
    ]
    options = {"accelerator": "cpu", "devices": 1, **options}
    trainer = trainers.build(
        max_iterations=9, callbacks=callbacks, loggers=[JsonlLogger(run.metrics)], **options
    )
    trainer.fit(trained, datamodule=PromptModule(SPLITS, trained.batch.prompts), weights_only=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), devices=2, strategy=STRATEGIES[sys.argv[2]]())
