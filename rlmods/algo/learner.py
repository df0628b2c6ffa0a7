"""What every algorithm shares beside the optimizer step: the iteration count, logging and the checkpoint."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.algo.optimizer_steps import OptimizerSteps
from rlmods.distributed.collectives import all_gather
from rlmods.policy.base import Policy
from rlmods.schedule import Schedule
from rlmods.training.batch import Batch
from rlmods.training.evaluation import Validation
from rlmods.training.metrics import Meter, peak_memory_mb
from rlmods.training.nonfinite import Nonfinite
from rlmods.training.reference import Reference
from rlmods.types import Prompt, UserError


class Learner(OptimizerSteps):
    """One `training_step` is one iteration; a subclass says how it gets its rows and what their loss is.

    `iteration` counts completed iterations and is what schedules, seeds, checkpoints and the log go by. `optimizer_steps` counts
    optimizer steps (Lightning's `global_step` does too, but overshoots inside a training step).
    """

    groups: ClassVar[tuple[str, ...]] = ("data", "policy", "adapter")
    """Configuration groups this algorithm uses; overriding any other one is refused."""
    recipe: ClassVar[dict[str, str]] = {}
    """The paper's choice in each group; a run that differs is labelled so."""
    samples_responses: ClassVar[bool] = False
    """Whether an iteration trains on `batch.samples` responses to each prompt; otherwise on rows of data."""
    needs_columns: ClassVar[tuple[str, ...]] = ()
    """What `prompt.meta` must hold in every training row: `response`, `candidates`, `steps`."""

    def __init__(
        self,
        *,
        name: str,
        policy: Policy,
        rollout: Any = None,
        reward: Any = None,
        optimizer: Callable[..., torch.optim.Optimizer],
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
        self.reference = Reference()
        self.iteration, self.optimizer_steps, self.response_tokens = 0, 0, 0
        self.meter = Meter()
        self.nonfinite = Nonfinite(batch.max_nonfinite)
        self.seconds: Counter[str] = Counter()
        self.stage, self.place = "start", 0
        self.samples: list[dict[str, Any]] = []

    # What a subclass says

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Rows that an iteration cuts into minibatches, by its prompts."""
        return batch.samples if cls.samples_responses else 1

    def held_out(self) -> dict[str, float]:
        """Validation that needs no sampling."""
        return {}

    def export(self, folder: Path) -> None:
        """Write what was trained as a plain Hugging Face directory. For every rank; the first one writes."""
        self.policy.export(folder)

    @property
    def controllers(self) -> dict[str, Any]:
        """Parts that change while training, by group."""
        parts = {group: getattr(self, group, None) for group in self.groups}
        return {group: part for group, part in parts.items() if hasattr(part, "on_iteration_end")}

    # The iteration

    def on_fit_start(self) -> None:
        self.batch.check_ranks(self.trainer.world_size, self.rows_per_prompt(self.batch))
        self.meter = Meter(self.device)
        self.reference.to(self.device)
        if self.rollout is not None:
            self.rollout.sync(self.policy, iteration=self.iteration)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.reference.follow(self)

    def on_train_start(self) -> None:
        self.started = time.perf_counter()
        if self.iteration == 0:
            self.validate()
        self.trainer.should_stop = self.iteration >= self.max_iterations

    def finish_iteration(self) -> None:
        """Count the iteration, step the schedule, log, validate when due, stop when done."""
        if self.rollout is not None:
            with self.timed("rollout"):
                self.rollout.sync(self.policy, iteration=self.iteration + 1)
        lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)`")  # an iteration may have made no step
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.iteration += 1
        metrics = self.meter.compute() | {"train/lr": lr} | {f"time/{k}_s": v for k, v in self.seconds.items()} | self.performance()
        steering = {name: value for name, value in metrics.items() if math.isfinite(value)}  # or a coefficient would be NaN for ever
        for controller in self.controllers.values():
            controller.on_iteration_end(steering)
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
        metrics, rows = dict[str, float](), list[dict[str, Any]]()
        # The first one too, where no training step has opened the context.
        with self.at("validation"), self.trainer.precision_plugin.forward_context():
            if self.rollout is not None:
                metrics, rows = self.validation(self.policy, self.rollout, self.reward, self.validation_prompts, self)
            metrics |= self.held_out()
        if metrics:
            self.log_row(metrics)
            self.notify("on_validation_metrics", metrics, rows)

    def performance(self) -> dict[str, float]:
        return {"perf/peak_memory_mb": peak_memory_mb(self.device), "time/iteration_s": time.perf_counter() - self.started}

    def log_row(self, metrics: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics({"optimizer_step": self.optimizer_steps, **metrics}, step=self.iteration)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to `time/<stage>_s`."""
        self.notify("on_safe_point")
        start = time.perf_counter()
        with self.at(stage):
            yield
        self.seconds[stage] += time.perf_counter() - start  # type: ignore[assignment]

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Where this rank is, for those who wait for it."""
        before, self.stage, self.place = self.stage, stage, self.place + 1
        yield
        self.stage, self.place = before, self.place + 1

    # The checkpoint

    def state(self) -> dict[str, Any]:
        """What a resumed run needs beyond what Lightning saves, the same on every rank: plain values and tensors only."""
        counts = {name: getattr(self, name) for name in ("iteration", "optimizer_steps", "response_tokens")}
        counts |= {"bases": self.bases}
        return counts | {"reference": self.reference.state_dict(), "controllers": {n: x.state_dict() for n, x in self.controllers.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.optimizer_steps, self.response_tokens = (state[k] for k in ("iteration", "optimizer_steps", "response_tokens"))
        if state["bases"] != self.bases:
            raise UserError("what lies under the adapter is not what the run began with: give the policy as it was then")
        self.reference.load_state_dict(state.get("reference", {}))
        for name, part in self.controllers.items():
            part.load_state_dict(state["controllers"][name])

    @property
    def bases(self) -> dict[str, str]:
        """Fingerprint of what lies under the adapter, by network."""
        found = {name: getattr(network, "base", None) for name, network in self.networks.items()}
        return {name: base for name, base in found.items() if base is not None}

    def frozen(self) -> dict[str, Tensor]:
        """What a checkpoint leaves out: the weights under an adapter, which loading the policy makes again."""
        below = {id(x) for name in self.bases for x in self.networks[name].parameters() if not x.requires_grad}
        names = tuple(f"{name}." for name, x in self.named_parameters(remove_duplicate=False) if id(x) in below)
        return {name: x for name, x in self.state_dict().items() if f"{name}.".startswith(names)}

    @property
    def shares(self) -> dict[str, Any]:
        """What each rank has of its own: parts with `share()`, plain values, and `load_rank_states(of all ranks, rank, number of ranks)`."""
        return {name: part for name, part in self.controllers.items() if hasattr(part, "share")}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        mine = {name: part.share() for name, part in self.shares.items()}
        checkpoint["rlmods"] = self.state() | {"ranks": all_gather(mine)}
        if not getattr(self.trainer.strategy, "_save_distributed_checkpoint", False):  # a folder of shards holds everything
            frozen = self.frozen()
            checkpoint["state_dict"] = {name: x for name, x in checkpoint["state_dict"].items() if name not in frozen}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.load_state(checkpoint["rlmods"])
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] |= self.frozen()
        ranks = checkpoint["rlmods"]["ranks"]
        for name, part in self.shares.items():
            part.load_rank_states([rank[name] for rank in ranks], self.global_rank, self.trainer.world_size)
