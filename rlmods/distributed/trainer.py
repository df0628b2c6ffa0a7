"""Lightning's Trainer, set up for iterations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger


def build(*, max_iterations: int, callbacks: Sequence[L.Callback] = (), loggers: Sequence[Logger] = (), **options: Any) -> L.Trainer:
    """A Trainer that runs until the learner has completed `max_iterations` iterations.

    What Lightning would do by batches and epochs (progress, validation, checkpoints, sharding of samplers) is switched off: our
    callbacks do it by iterations, and the prompt loader shards by whole prompts.

    Args:
        options: anything else that `lightning.Trainer` takes: accelerator, devices, precision, strategy, ...
    """
    if options.get("accelerator") == "auto" and torch.backends.mps.is_available():
        options["accelerator"] = "cpu"  # MPS has no float64, which counts are kept in
    trainer = L.Trainer(
        max_epochs=-1,
        max_steps=-1,
        callbacks=list(callbacks),
        logger=list(loggers),
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.max_iterations = max_iterations  # type: ignore[attr-defined]
    return trainer
