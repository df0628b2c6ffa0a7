"""Lightning Trainer configured for iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger


def build(
    *,
    max_iterations: int,
    callbacks: Sequence[L.Callback] = (),
    loggers: Sequence[Logger] = (),
    **options: Any,
) -> L.Trainer:
    """Return a Trainer that runs until the learner has completed `max_iterations` iterations.

    Lightning's own progress bar, validation, checkpoints and distributed samplers, which count
    batches and epochs, are disabled: the callbacks of this package count iterations, and the prompt
    loader distributes prompts over ranks.

    Args:
        options: other arguments of `lightning.Trainer`: accelerator, devices, precision, strategy,
        ...
    """
    if options.get("accelerator") == "auto" and torch.backends.mps.is_available():
        options["accelerator"] = "cpu"  # MPS has no float64, in which counts are kept
    trainer = L.Trainer(
        max_epochs=-1,
        max_steps=-1,
        callbacks=list(callbacks),
        logger=list(loggers),
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        # Lightning's callbacks that monitor a metric look at it after our validation, not at the
        # end of a pass over the data.
        val_check_interval=1,
        check_val_every_n_epoch=None,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.max_iterations = max_iterations  # type: ignore[attr-defined]
    return trainer
