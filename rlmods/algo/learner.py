"""Base class of all algorithms: iterations, logging and checkpoints."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import lightning as L
import torch
from torch import Tensor, nn

from rlmods.data import Splits
from rlmods.distributed.collectives import Ranks, all_gather
from rlmods.distributed.deferred import read
from rlmods.distributed.sharding import is_sharded
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.protocols import ChecksPolicy
from rlmods.rollout.turns import num_added_tokens
from rlmods.schedule import Schedule
from rlmods.training.batch import Batch
from rlmods.training.evaluation import Validation
from rlmods.training.extensions.base import Extension
from rlmods.training.metrics import Meter, PhaseTimer, peak_memory_mb
from rlmods.training.out_of_memory import advise
from rlmods.training.parameter_groups import parameter_groups
from rlmods.training.preflight import largest_microbatches, preflight
from rlmods.training.reference import Reference
from rlmods.training.row_shape import RowShape, row_shape
from rlmods.training.train_step import Loss, Microbatches, TrainStep
from rlmods.types import Prompt, Totals

DROPOUT = 1_000_002
"""Purpose of the random numbers of dropout; epochs are below."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of an algorithm that has none."""


def set_engine_dtype(rollout: Any, precision: str) -> None:
    """Let an engine whose `dtype` is null compute in the trainer's precision. Rounded to bfloat16,
    a weight stays the same in many small updates, so that an engine with float32 weights would
    sample from another policy than the one that is trained."""
    engine = getattr(rollout, "rollout", rollout)  # of an environment
    if precision == "bf16-mixed" and getattr(engine, "dtype", "") is None:
        engine.dtype = "bfloat16"


class Learner(L.LightningModule):
    """Base LightningModule, in which one `training_step` takes one batch of prompts, and one or
    more of them are an iteration.

    The default iteration trains on rows of data (SFT, reward models, DPO): a subclass defines
    `rows` and `loss`. `PolicyGradient` samples the responses that it trains on. `iteration` counts
    completed iterations; schedules, seeds, checkpoints and the log are keyed by it."""

    groups: ClassVar[tuple[str, ...]] = ("data", "policy", "adapter")
    """Configuration groups that the algorithm uses. Overriding any other group is an error."""
    settings_type: ClassVar[type[Any]] = NoSettings
    """Dataclass of the algorithm's own settings, `algo.*` in the configuration."""
    common_settings: ClassVar[Mapping[str, type[Any]]] = {"batch": Batch, "validation": Validation}
    """Dataclasses of the settings of every algorithm, by their group in the configuration."""
    samples_responses: ClassVar[bool] = False
    """True if an iteration trains on `batch.samples` sampled responses to each prompt, False if it
    trains on rows of data."""
    samples_ahead: ClassVar[bool] = False
    """True if the responses of the next iteration can be sampled during this one
    (`rollout.ahead`)."""
    trains_on_turns: ClassVar[bool] = False
    """True if the sampled responses may have several turns (`environment`)."""
    needs_columns: ClassVar[tuple[str, ...]] = ()
    """Keys of `prompt.meta` that every training row must have: `response`, `candidates` or
    `steps`."""
    validation_column: ClassVar[str | None] = None
    """Key of `prompt.meta` that a held-out row needs for `measure`."""

    def __init__(
        self,
        *,
        policy: Policy,
        rollout: Any = None,
        reward: Any = None,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Callable[[int, int], float] | None = None,
        batch: Batch,
        validation: Validation | None = None,
        splits: Splits,
        settings: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy, self.rollout, self.reward = policy, rollout, reward
        if isinstance(rollout, ChecksPolicy):
            rollout.check_policy(policy)
        self.optimizer, self.schedule, self.batch, self.seed = (
            optimizer,
            schedule or Schedule(),
            batch,
            seed,
        )
        self.validation, self.splits = validation or Validation(), splits
        self.settings = self.settings_type() if settings is None else settings
        self.reference: Reference | None = None
        self.extensions: list[Extension] = []
        self.ranks, self.meter = Ranks(self), Meter()
        self.timer = PhaseTimer(self.notify, lambda stage: advise(stage, self))
        self.microbatches = Microbatches(
            self.ranks, self.timer, batch.token_budget, by_group=policy.packs
        )
        self.step = TrainStep(self, self.ranks, self.microbatches, self.meter, self.timer, batch)
        self.iteration = 0
        """Completed iterations."""
        self.response_tokens = 0
        """Response tokens since the run began, over all ranks."""
        self.samples: list[dict[str, Any]] = []
        """Rows of the sample log of this iteration on this rank."""
        self.ended: dict[str, float] | None = None
        """Metrics of an iteration that has ended and is not announced yet."""
        self.stopped_by: str | None = None
        """Callback that ended the run before its last iteration, with its reason."""

    # Defined by a subclass

    def rows(self, prompts: Sequence[Prompt]) -> Any:
        """Return the rows of these prompts as tensors, on the device."""
        raise NotImplementedError(f"{type(self).__name__} does not define rows")

    def loss(self, micro: Any, totals: Totals) -> Tensor:
        """Return a microbatch's part of the loss of the optimizer step; the loss is the sum of the
        parts."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss")

    def measure(self, rows: Any) -> dict[str, float]:
        """Return metrics of held-out rows of this rank, over all ranks."""
        return {}

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Trained networks by name, the main one first."""
        return {"policy": self.policy}

    @property
    def frozen(self) -> dict[str, Reference]:
        """Models that are not trained, by name: the reference, if there is one."""
        return {} if self.reference is None else {"reference": self.reference}

    @classmethod
    def columns(cls, settings: Any) -> tuple[str, ...]:
        """Return the keys of `prompt.meta` that every training row must have, with these
        settings."""
        return cls.needs_columns

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Return the number of rows per prompt that an iteration splits into minibatches."""
        return batch.samples if cls.samples_responses else 1

    def row_shapes(self) -> list[RowShape]:
        """Return the shape of each training prompt's row. A sampled response has as many tokens as
        the rollout allows."""
        encoder: Any = next(iter(self.networks.values()))
        shapes = [
            row_shape(prompt, encoder, self.columns(self.settings)) for prompt in self.splits.train
        ]
        if not self.samples_responses:
            return shapes
        limit, candidates = (
            getattr(self.rollout, "max_tokens", 1),
            self.batch.samples // self.rows_per_prompt(self.batch),
        )
        return [
            RowShape(shape.prompt + self.num_added_tokens, max(shape.response, limit), candidates)
            for shape in shapes
        ]

    @cached_property
    def num_added_tokens(self) -> int:
        """Number of tokens that an environment adds to prompts."""
        return num_added_tokens(self.policy, self.rollout, self.splits.train)

    @cached_property
    def shapes(self) -> list[RowShape]:
        """`row_shapes()`, for which all prompts are encoded: computed once."""
        return self.row_shapes()

    def rows_per_step(self) -> int:
        """Return the largest number of rows of an optimizer step on one rank."""
        rows = self.batch.prompts // self.ranks.world_size * self.rows_per_prompt(self.batch)
        return -(-rows // self.batch.minibatches)

    def largest_rows(self) -> Iterator[Any]:
        """Yield rows of the largest microbatches that the settings and the data allow
        (`preflight`), the same on every rank."""
        shapes, prompts = self.shapes, self.splits.train
        order = sorted(range(len(prompts)), key=lambda i: -shapes[i].tokens)
        sizes = [shapes[i].tokens for i in order]
        for rows in largest_microbatches(sizes, self.batch.token_budget, self.rows_per_step()):
            yield self.rows([prompts[i] for i in order[rows]])

    def optimizer_settings(self, network: str) -> dict[str, Any]:
        """Return the settings of a network that differ from those of the optimizer, such as
        `lr`."""
        return {}

    def export(self, folder: Path) -> None:
        """Write the trained model as a plain Hugging Face directory. Every rank calls this; rank 0
        writes."""
        self.policy.export(folder)

    def add_extension(self, extension: Extension) -> None:
        """Add an extension of the loop. Hooks run in the order in which extensions are added."""
        self.extensions.append(extension)
        extension.attach(self)

    # The iteration

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """Train on the rows of one batch of prompts."""
        rows = self.rows(prompts)
        self.response_tokens += int(self.ranks.reduce(rows.loss_counts[0]))
        self.train_on(rows)
        self.end_iteration()

    def train_on(self, rows: Any) -> None:
        """Make epochs x minibatches optimizer steps on these rows."""
        with self.timer("update"), self.update_mode():
            for indices in self.minibatches(len(rows)):
                self.train_step(rows.select(indices))

    def train_step(self, minibatch: Any, *more: tuple[Any, Loss]) -> None:
        """Make one optimizer step on these rows; `more` rows add their own losses to it."""
        self.step(minibatch, self.loss, *more)

    def minibatches(self, num_rows: int) -> list[Tensor]:
        """Return the row indices of each optimizer step, shuffled by (seed, iteration, epoch)."""
        orders = (
            torch.randperm(num_rows, generator=self.generator(epoch))
            for epoch in range(self.batch.epochs)
        )
        return [rows for order in orders for rows in order.tensor_split(self.batch.minibatches)]

    @contextmanager
    def update_mode(self) -> Iterator[None]:
        """Put the networks that need it in train mode inside the block, with `seeded_dropout`."""
        with self.seeded_dropout():
            for network in self.networks.values():
                network.train(getattr(network, "needs_train_mode", False))
            yield
            for network in self.networks.values():
                network.eval()

    @contextmanager
    def seeded_dropout(self) -> Iterator[None]:
        """Draw what is random in the networks from (seed, iteration, rank) inside the block, so
        that resuming needs no generator state."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(hash((self.seed, self.iteration, DROPOUT, self.ranks.rank)))
            yield

    def generator(self, purpose: int) -> torch.Generator:
        """Return a random generator that depends on seed, iteration and `purpose` alone."""
        return torch.Generator().manual_seed(hash((self.seed, self.iteration, purpose)))

    def end_iteration(self) -> None:
        """Pass the weights to the rollout, log the iteration, and validate if due.
        `on_train_batch_end` then announces the end of the iteration."""
        for extension in self.extensions:
            extension.before_iteration_end()
        for extension in self.extensions:
            extension.before_sync()
        if self.rollout is not None:
            with self.timer("rollout"), self.timer.within("sync"):
                self.rollout.sync(self.policy, iteration=self.iteration + 1)
        lr = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self.iteration += 1
        times = {f"time/{phase}_s": seconds for phase, seconds in self.timer.seconds.items()}
        self.ended = self.meter.compute() | {"train/lr": lr} | times | self.performance()
        self.log_row(self.ended)
        self.meter.reset()
        self.timer.seconds.clear()
        is_last = self.iteration >= self.max_iterations
        if is_last or self.validation.due(self.iteration):
            self.validate()
        self.trainer.should_stop = self.trainer.should_stop or is_last
        self.iteration_start = time.perf_counter()

    def on_train_batch_end(self, *args: Any) -> None:
        """Announce the end of an iteration, once, after its validation: to parts and extensions
        that change during training, to the schedule, and to callbacks in the order of the Trainer,
        where checkpoints come last. An iteration may take several batches of prompts."""
        if self.ended is None:
            return
        metrics, self.ended = self.ended, None
        # an adaptive coefficient would stay NaN
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for part in (*self.controllers.values(), *self.extensions):
            part.on_iteration_end(finite)
        with warnings.catch_warnings():
            # an iteration may have no optimizer step
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)`")
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.notify("on_iteration_end", metrics)
        self.samples = []

    def validate(self) -> None:
        """Evaluate the held-out prompts, without an effect on training."""
        metrics, rows = dict[str, float](), list[dict[str, Any]]()
        # Before the first training step Lightning has not entered the precision context.
        with self.timer.within("validation"), self.trainer.precision_plugin.forward_context():
            if self.rollout is not None:
                evaluate = self.validation
                metrics, rows = evaluate(
                    self.policy,
                    self.rollout,
                    self.reward,
                    self.splits.val,
                    self.ranks,
                    self.iteration,
                )
            metrics |= self.held_out_metrics()
        if metrics:
            self.log_row(metrics)
            self.notify("on_validation_metrics", metrics, rows)
            # callbacks of Lightning that monitor a metric do not see the validation before the
            # first iteration
            if self.iteration:
                self.notify("on_validation_end")

    @torch.no_grad()
    def held_out_metrics(self) -> dict[str, float]:
        """Return `measure` of the held-out prompts that have the `validation_column`. A rank
        without any contributes an empty mask."""
        if self.validation_column is None:
            return {}
        prompts = [
            p
            for p in self.splits.val[: self.validation.max_prompts]
            if self.validation_column in p.meta
        ]
        if not prompts:
            return {}
        own = prompts[self.ranks.rank :: self.ranks.world_size]
        return self.measure(self.rows(own) if own else self.rows(prompts[:1]).without_loss())

    def performance(self) -> dict[str, float]:
        """Return memory and time of the iteration."""
        return {
            "perf/peak_memory_mb": peak_memory_mb(self.device),
            "time/iteration_s": time.perf_counter() - self.iteration_start,
        }

    def log_row(self, metrics: dict[str, float]) -> None:
        """Log metrics of the current iteration, also for Lightning's callbacks that monitor one
        (`trainer.callback_metrics`)."""
        self.trainer.callback_metrics.update(
            {name: torch.tensor(value, device=self.device) for name, value in metrics.items()}
        )
        for logger in self.loggers:
            logger.log_metrics(
                {"optimizer_step": self.optimizer_steps, **metrics}, step=self.iteration
            )

    def notify(self, hook: str, *args: Any) -> None:
        """Call a hook on every callback that has it (`rlmods.callbacks.hooks`), and record which of
        them ends the run."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if method := getattr(callback, hook, None):
                stopped_before = self.trainer.should_stop
                method(self.trainer, self, *args)
                if self.trainer.should_stop and not stopped_before:
                    reason = getattr(callback, "stopping_reason_message", None)
                    self.stopped_by = type(callback).__name__ + (
                        f": {' '.join(reason.split())}" if reason else ""
                    )

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps since the run began. Lightning's `global_step` counts them too, but
        overshoots inside a training step."""
        return self.step.num_steps

    @property
    def max_iterations(self) -> int:
        """Length of the run."""
        return int(self.trainer.max_iterations)  # type: ignore[attr-defined]

    # Lightning hooks

    def configure_model(self) -> None:
        """Shard the networks and the frozen models, if the strategy shards. Lightning calls this
        before it creates the optimizer."""
        strategy: Any = self.trainer.strategy
        if hasattr(strategy, "shard"):
            for network in self._shardable_networks():
                if not is_sharded(network):
                    strategy.shard(network)
        # a network that is not listed: Lightning would draw random weights for those on the meta
        # device
        read(self)

    def _shardable_networks(self) -> list[nn.Module]:
        return [
            *self.networks.values(),
            *(network for model in self.frozen.values() for network in model.networks),
        ]

    def _check_networks(self) -> None:
        """Check the networks whose weights were read after they were built (`defer_loading`).
        Lightning has converted them by now."""
        unchecked = [
            network
            for network in self._shardable_networks()
            if not getattr(network, "is_checked", True)
        ]
        for network in unchecked:
            cast(Policy, network).check()
        policy = self.networks.get("policy")
        if policy in unchecked:
            self.microbatches.by_group = self.policy.packs
            if isinstance(self.rollout, ChecksPolicy):
                self.rollout.check_policy(policy)

    def configure_optimizers(self) -> Any:
        networks = self.networks.items()
        groups = [
            group
            for name, network in networks
            for group in parameter_groups(name, network, **self.optimizer_settings(name))
        ]
        optimizer = self.optimizer(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda i: self.schedule(i, self.max_iterations)
        )
        return [optimizer], [schedule]

    def on_fit_start(self) -> None:
        self.batch.check_ranks(self.trainer.world_size, self.rows_per_prompt(self.batch))
        self._check_networks()
        self.meter.reset(self.device)
        for model in self.frozen.values():
            model.to(self.device)
        for extension in self.extensions:
            extension.on_fit_start()
        if self.rollout is not None:
            set_engine_dtype(self.rollout, str(self.trainer.precision))

    def on_train_start(self) -> None:
        # not in on_fit_start, after which Lightning loads the checkpoint of sharded networks
        if self.rollout is not None:
            with self.timer.within("sync"):
                self.rollout.sync(self.policy, iteration=self.iteration)
        if self.batch.runs_preflight(self.device):
            self.notify("on_preflight", preflight(self))
        if self.iteration == 0:
            self.validate()
        self.iteration_start = time.perf_counter()
        self.trainer.should_stop = self.iteration >= self.max_iterations

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for extension in self.extensions:
            extension.on_train_batch_start()

    def on_after_backward(self) -> None:
        for extension in self.extensions:
            extension.on_after_backward()

    # Checkpoint

    @property
    def controllers(self) -> dict[str, Any]:
        """Parts that change while training (`rlmods.protocols.Controller`), by group."""
        parts = {group: getattr(self, group, None) for group in (*self.groups, "schedule")}
        return {group: part for group, part in parts.items() if hasattr(part, "on_iteration_end")}

    @property
    def stateful(self) -> dict[str, Any]:
        """Parts and extensions whose state is saved, by name.

        Raises:
            ValueError: two of them have the same name.
        """
        names = [*self.controllers, *(type(extension).__name__ for extension in self.extensions)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"parts and extensions need different names to be saved: {', '.join(names)}"
            )
        return self.controllers | {
            type(extension).__name__: extension for extension in self.extensions
        }

    def state(self) -> dict[str, Any]:
        """Return the state that Lightning does not save: plain values and tensors that are equal on
        all ranks."""
        return {
            "iteration": self.iteration,
            "optimizer_steps": self.step.num_steps,
            "response_tokens": self.response_tokens,
            "adapter_bases": self.adapter_bases,
            "frozen": {name: model.state_dict() for name, model in self.frozen.items()},
            "parts": {
                name: part.state_dict()
                for name, part in self.stateful.items()
                if hasattr(part, "state_dict")
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned.

        Raises:
            UserError: the run began with other weights under the adapter, with another frozen
            model, or without a part that has state.
        """
        self.iteration, self.step.num_steps, self.response_tokens = (
            state[k] for k in ("iteration", "optimizer_steps", "response_tokens")
        )
        if state["adapter_bases"] != self.adapter_bases:
            raise UserError(
                "the weights under the adapter differ from those that the run began with: "
                "type the original policy="
            )
        for name, model in self.frozen.items():
            model.load_state_dict(state["frozen"].get(name, {}))
        for name, part in self.stateful.items():
            if hasattr(part, "load_state_dict"):
                if name not in state["parts"]:
                    raise UserError(
                        f"the checkpoint holds no state of {name}: a run can only go on from "
                        f"it with the {name} that it began with"
                    )
                part.load_state_dict(state["parts"][name])

    @property
    def rank_stateful(self) -> dict[str, Any]:
        """Objects with state of their own on each rank, by name: `rank_state()` and
        `load_rank_states(states, rank, world_size)`."""
        return {name: part for name, part in self.stateful.items() if hasattr(part, "rank_state")}

    @property
    def adapter_bases(self) -> dict[str, str]:
        """Fingerprints of the frozen weights under adapters, by network."""
        fingerprints = {
            name: getattr(network, "base_fingerprint", None)
            for name, network in self.networks.items()
        }
        return {name: x for name, x in fingerprints.items() if x is not None}

    def frozen_state(self) -> dict[str, Tensor]:
        """Return the frozen weights under adapters, which a checkpoint omits because loading the
        policy restores them."""
        frozen = {
            id(x)
            for name in self.adapter_bases
            for x in self.networks[name].parameters()
            if not x.requires_grad
        }
        prefixes = tuple(
            f"{name}."
            for name, x in self.named_parameters(remove_duplicate=False)
            if id(x) in frozen
        )
        return {name: x for name, x in self.state_dict().items() if f"{name}.".startswith(prefixes)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        rank_states = {name: part.rank_state() for name, part in self.rank_stateful.items()}
        checkpoint["rlmods"] = self.state() | {"ranks": all_gather(rank_states)}
        # a sharded checkpoint holds all weights
        if not getattr(self.trainer.strategy, "_save_distributed_checkpoint", False):
            frozen = self.frozen_state()
            checkpoint["state_dict"] = {
                name: x for name, x in checkpoint["state_dict"].items() if name not in frozen
            }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.load_state(checkpoint["rlmods"])
        if "state_dict" in checkpoint:
            checkpoint["state_dict"] |= self.frozen_state()
        ranks = checkpoint["rlmods"]["ranks"]
        for name, part in self.rank_stateful.items():
            if name in ranks[0] or not getattr(part, "has_optional_state", False):
                part.load_rank_states(
                    [rank[name] for rank in ranks], self.ranks.rank, self.ranks.world_size
                )
