"""Stub of the learner: trains one number and calls the same hooks."""

import warnings
from types import SimpleNamespace
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import Logger

from rlmods.callbacks.hooks import Metrics, Rows
from rlmods.data.loader import PromptLoader
from rlmods.training.meter import PhaseTimer
from rlmods.types import Prompt

LIGHTNING_WARNINGS = (
    ".*LeafSpec",
    ".*does not have many workers",
    ".*smaller than the logging interval",
    ".*checkpoint directory",
)
"""Warnings of Lightning to ignore."""


class Tiny(LightningModule):
    """An iteration takes `batches` batches, as with a sampling filter; each update moves the weight
    by the number in the batch."""

    def __init__(self, batches: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.batches = batches
        self.seen: list[float] = []
        self.iteration = 0
        self.optimizer_steps = 0
        self.ended: dict[str, float] | None = None
        self.samples: list[dict[str, Any]] = []
        self.rollout = SimpleNamespace(on_tokens=None)
        self.timer = PhaseTimer(lambda hook: None, lambda phase, error: None)

    @property
    def max_iterations(self) -> int:
        return int(self.trainer.max_iterations)  # type: ignore[attr-defined]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.5)

    def transfer_batch_to_device(
        self, batch: list[Prompt], device: torch.device, dataloader_idx: int
    ) -> list[Prompt]:
        return batch

    def training_step(self, batch: list[Prompt], batch_idx: int) -> None:
        self.seen += [float(prompt.text or 0) for prompt in batch]
        if len(self.seen) % self.batches:
            return
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(-self.weight * self.seen[-1])
        optimizer.step()
        self.optimizer_steps += 1
        self.iteration += 1
        self.samples = [
            {"prompt": "1+1=", "response": f"[bold]{i}", "answer": "2", "reward": float(i)}
            for i in range(4)
        ]
        metrics = {
            "train/reward": self.weight.item(),
            "train/response_tokens": 2.0,
            "time/iteration_s": 0.5,
        }
        self.log_row(metrics)
        self.ended = metrics
        self.trainer.should_stop = self.iteration >= self.max_iterations

    def on_train_batch_end(self, *args: Any) -> None:
        if self.ended is not None:
            metrics = self.ended
            self.ended = None
            notify(self.trainer, "on_iteration_end", self, metrics)

    def log_row(self, metrics: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(
                {"optimizer_step": self.optimizer_steps, **metrics}, step=self.iteration
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["tiny"] = {"iteration": self.iteration, "seen": self.seen}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.iteration = checkpoint["tiny"]["iteration"]
        self.seen = checkpoint["tiny"]["seen"]


def notify(trainer: Trainer, hook: str, learner: Any, metrics: Metrics, *rows: Rows) -> None:
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, learner, metrics, *rows)


def fit(
    learner: Tiny,
    iterations: int,
    callbacks: list[Callback],
    loggers: list[Logger] | None = None,
    resume: Any = None,
) -> Tiny:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=-1,
        callbacks=callbacks,
        logger=loggers or False,
        enable_progress_bar=False,
        enable_checkpointing=any(isinstance(x, Checkpoint) for x in callbacks),
        enable_model_summary=False,
    )
    trainer.max_iterations = iterations  # type: ignore[attr-defined]
    loader = PromptLoader([Prompt(id=str(i), text=str(i)) for i in range(1, 8)], batch_size=1)
    with warnings.catch_warnings():
        for message in LIGHTNING_WARNINGS:
            warnings.filterwarnings("ignore", message)
        trainer.fit(learner, loader, ckpt_path=resume, weights_only=True)
    return learner


def trainer(iterations: int = 100) -> Any:
    """Stub trainer for hooks that need no training."""
    return SimpleNamespace(max_iterations=iterations, world_size=1, is_global_zero=True, loggers=[])
