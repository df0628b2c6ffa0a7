"""What every algorithm shares: the optimizer step, the iteration count, logging and the checkpoint."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rlmods.evaluation import Validation
from rlmods.metrics import Meter
from rlmods.ops import pack
from rlmods.policy.base import Policy
from rlmods.schedule import Schedule
from rlmods.types import Experience, Prompt, Totals, UserError


@dataclass(frozen=True)
class Batch:
    """The size of one iteration; everything else follows from it."""

    prompts: int = 32
    """Prompts of one iteration, over all ranks. Offline algorithms: rows."""
    samples: int = 8
    """Responses to each prompt (G). Offline algorithms do not sample."""
    epochs: int = 1
    """Passes over the responses of one iteration."""
    minibatches: int = 1
    """Optimizer steps in one pass."""
    token_budget: int = 8192
    """Tokens of one forward and backward, padding included. Memory grows with it; results do not change."""
    max_norm: float = 1.0
    """Gradients are scaled down to this global norm."""

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "epochs", "minibatches", "token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"batch.{name}={getattr(self, name)}: must be at least 1")
        if self.max_norm <= 0:
            raise ValueError(f"batch.max_norm={self.max_norm}: must be positive; batch.max_norm=inf switches clipping off")


class Learner(L.LightningModule):
    """One `training_step` is one iteration; a subclass says how it gets its rows and what their loss is.

    `iteration` counts completed iterations and is what schedules, seeds, checkpoints and the log go by. `optimizer_steps` counts
    optimizer steps (Lightning's `global_step` does too, but overshoots inside a training step).
    """

    groups: ClassVar[tuple[str, ...]] = ("data", "policy", "rollout", "reward")
    """Configuration groups this algorithm uses; overriding any other one is refused."""
    recipe: ClassVar[dict[str, str]] = {}
    """The paper's choice in each group; a run that differs is labelled so."""

    def __init__(
        self,
        *,
        name: str,
        policy: Policy,
        rollout: Any,
        reward: Any,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        schedule: Schedule,
        batch: Batch,
        validation: Validation,
        validation_prompts: list[Prompt],
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.name, self.policy, self.rollout, self.reward = name, policy, rollout, reward
        self.optimizer, self.schedule, self.batch, self.seed = optimizer, schedule, batch, seed
        self.validation, self.validation_prompts = validation, validation_prompts
        self.iteration = 0
        self.optimizer_steps = 0
        self.response_tokens = 0
        self.meter = Meter()
        self.seconds: Counter[str] = Counter()
        self.samples: list[dict[str, Any]] = []

    # What a subclass says

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        """Share of these rows in the loss of the optimizer step: summed over microbatches and ranks it is the loss."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is")

    # The optimizer step

    def update(self, batch: Experience) -> None:
        """One optimizer step on these rows (of this rank), in microbatches of `token_budget` tokens."""
        tokens, sequences = self.across_ranks(torch.stack([batch.mask.sum(), batch.mask.any(1).sum()]))
        totals = Totals(tokens.clamp(min=1), sequences.clamp(min=1))
        self.meter.mean("train/skipped_steps", float(tokens == 0))
        if tokens == 0:
            return
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        for micro, _ in self.microbatches(batch):
            # DDP and FSDP average gradients over ranks; the totals are global already.
            self.manual_backward(self.loss(micro, totals) * self.trainer.world_size)
        norm = clip_grad_norm_(self.policy.parameters(), self.batch.max_norm)
        if not torch.isfinite(norm):
            raise UserError(f"the gradient norm is {float(norm)} in iteration {self.iteration + 1}: try a smaller optimizer.lr=...")
        optimizer.step()
        self.optimizer_steps += 1
        self.meter.mean("train/grad_norm", norm)

    def minibatches(self, num_rows: int) -> list[Tensor]:
        """Row indices of every optimizer step, shuffled by (seed, iteration, epoch)."""
        plan: list[Tensor] = []
        for epoch in range(self.batch.epochs):
            generator = torch.Generator().manual_seed(hash((self.seed, self.iteration, epoch)))
            plan += torch.randperm(num_rows, generator=generator).tensor_split(self.batch.minibatches)
        return plan

    def microbatches(self, batch: Experience) -> Iterator[tuple[Experience, Tensor]]:
        """Rows cut by token budget, longest first, and their indices in the batch.

        Every rank yields equally many, as sharded forwards wait for each other; those that fill up have no loss and no indices.
        """
        chunks = pack(batch.lengths, self.batch.token_budget)
        for i in range(int(self.across_ranks(torch.tensor(len(chunks)), "max"))):
            if i < len(chunks):
                yield batch.select(chunks[i]).trim(), chunks[i]
            else:
                yield batch.select(chunks[-1]).trim().silent(), chunks[-1][:0]

    def across_ranks(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduced over ranks, in float64 so that counts stay exact."""
        x = x.to(self.device, torch.float64)
        if self.trainer.world_size == 1:
            return x
        return self.trainer.strategy.reduce(x, reduce_op=op)

    # The iteration

    def on_fit_start(self) -> None:
        self.meter = Meter(self.device)
        self.rollout.sync(self.policy, iteration=self.iteration)

    def on_train_start(self) -> None:
        self.started = time.perf_counter()
        if self.iteration == 0:
            self.validate()
        self.trainer.should_stop = self.iteration >= self.max_iterations

    def finish_iteration(self) -> None:
        """Count the iteration, step the schedule, log, validate when due, stop when done."""
        with self.timed("rollout"):
            self.rollout.sync(self.policy, iteration=self.iteration + 1)
        lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)`")  # an iteration may have made no step
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.iteration += 1
        metrics = self.meter.compute() | {"train/lr": lr} | {f"time/{k}_s": v for k, v in self.seconds.items()} | self.performance()
        self.log_row(metrics)
        self.notify("on_iteration_end", metrics)
        self.meter, self.samples = Meter(self.device), []
        self.seconds.clear()
        done = self.iteration >= self.max_iterations
        if done or self.validation.due(self.iteration):
            self.validate()
        self.trainer.should_stop = self.trainer.should_stop or done
        self.started = time.perf_counter()

    def validate(self) -> None:
        """Grade the held-out prompts; nothing it draws touches training."""
        with self.trainer.precision_plugin.forward_context():  # the first one too, where no training step has opened it
            metrics, rows = self.validation(self.policy, self.rollout, self.reward, self.validation_prompts, self)
        if metrics:
            self.log_row(metrics)
            self.notify("on_validation_metrics", metrics, rows)

    def performance(self) -> dict[str, float]:
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        return {"perf/peak_memory_mb": peak, "time/iteration_s": time.perf_counter() - self.started}

    def log_row(self, metrics: dict[str, float]) -> None:
        row = {"optimizer_step": self.optimizer_steps, **metrics}
        for logger in self.loggers:
            logger.log_metrics(row, step=self.iteration)

    def notify(self, hook: str, *args: Any) -> None:
        """Call a hook of ours on every callback that has it."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if method := getattr(callback, hook, None):
                method(self.trainer, self, *args)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to `time/<stage>_s`."""
        start = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - start  # type: ignore[assignment]

    @property
    def max_iterations(self) -> int:
        return int(self.trainer.max_iterations)  # type: ignore[attr-defined]

    # Lightning

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(p for p in self.policy.parameters() if p.requires_grad)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: self.schedule(i, self.max_iterations))
        return [optimizer], [schedule]

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beyond what Lightning saves: plain values and tensors only."""
        return {"iteration": self.iteration, "optimizer_steps": self.optimizer_steps, "response_tokens": self.response_tokens}

    def load_state(self, state: dict[str, Any]) -> None:
        self.iteration, self.optimizer_steps = state["iteration"], state["optimizer_steps"]
        self.response_tokens = state["response_tokens"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rlmods"] = self.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.load_state(checkpoint["rlmods"])
