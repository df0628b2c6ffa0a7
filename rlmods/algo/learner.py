"""Base class of all algorithms: iterations, their events, and Lightning's hooks."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import lightning as L
import torch
from torch import Tensor, nn

from rlmods.critic.networks import ValueNetwork
from rlmods.data import Splits
from rlmods.distributed.collectives import Ranks
from rlmods.distributed.deferred import read
from rlmods.needs import OptimizerNeeds, needs_of
from rlmods.policy.base import Policy
from rlmods.policy.modes import uncompiled
from rlmods.policy.scalar import ScalarModel
from rlmods.protocols import ChecksPolicy, Controller, FitsRun, RunSize
from rlmods.rollout.turns import engine_of
from rlmods.schedule import Schedule
from rlmods.training.checkpoint import LearnerCheckpoint
from rlmods.training.evaluation import Validation
from rlmods.training.extensions.base import Extension, LoopView
from rlmods.training.frozen import FrozenPolicy
from rlmods.training.lengths import longest_row
from rlmods.training.meter import Meter, PhaseTimer, peak_memory_mb
from rlmods.training.networks import check_deferred, compile_networks, parameter_groups, shard
from rlmods.training.out_of_memory import explain
from rlmods.training.parts import controllers_in
from rlmods.training.preflight import Preflight
from rlmods.training.sample_log import SampleLog
from rlmods.training.settings import Batch
from rlmods.training.train_step import Loss, Microbatches, TrainStep
from rlmods.types import Prompt, Response, Totals

Trunk = Policy | ScalarModel | ValueNetwork
"""Networks that have layers of a model, and not only a head on another network."""
DROPOUT = 1_000_002
"""Purpose of the random numbers of dropout, for `generator`. Epochs are smaller numbers."""


@dataclass(frozen=True)
class NoSettings:
    """Settings of an algorithm that has none."""


class Learner(L.LightningModule):
    """Base class of all algorithms. Each `training_step` consumes one batch of prompts; an
    iteration consists of one or more training steps. Schedules, seeds, checkpoints and the log are
    keyed by `iteration`, the number of completed ones.

    The default iteration trains on rows of data (SFT, reward models, DPO): a subclass defines
    `rows` and `loss`."""

    config_groups: ClassVar[tuple[str, ...]] = ("data", "policy", "adapter")
    """Configuration groups that the algorithm uses. Overriding any other group is an error."""
    settings_type: ClassVar[type[Any]] = NoSettings
    """Dataclass of the algorithm's own settings, `algo.*` in the configuration."""
    samples_responses: ClassVar[bool] = False
    """True if an iteration trains on sampled responses, False if on rows of data. A subclass that
    samples defines `example_rows`."""
    needs_columns: ClassVar[tuple[str, ...]] = ()
    """Keys of `prompt.meta` that every training row must have."""
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
        self.policy = policy
        self.compiles = policy.compiles
        self.rollout = rollout
        self.reward = reward
        if isinstance(rollout, ChecksPolicy):
            rollout.check_policy(policy)
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.batch = batch
        self.validation = validation or Validation()
        self.splits = splits
        self.settings = self.settings_type() if settings is None else settings
        self.seed = seed
        self.networks: dict[str, nn.Module] = {"policy": policy}
        """Trained networks by name, the main one first."""
        self.optimizer_settings: dict[str, dict[str, Any]] = {}
        """Settings of a network's optimizer that differ from the common ones, by network."""
        self.schedule_starts: dict[str, int] = {}
        """Number of iterations before the learning rate schedule of a network begins, by
        network."""
        self.reference: FrozenPolicy | None = None
        self.extensions: list[Extension] = []
        self.ranks = Ranks(self)
        self.meter = Meter()
        self.sample_log = SampleLog()
        self.preflight = Preflight(self)
        self.checkpoint = LearnerCheckpoint(self)
        self.timer = PhaseTimer(self.notify, partial(explain, self))
        self.microbatches = Microbatches(self.ranks, self.timer, batch.token_budget, self.packs)
        self.step = TrainStep(self, self.ranks, self.microbatches, self.meter, self.timer, batch)
        self.iteration = 0
        """Completed iterations."""
        self.response_tokens = 0
        """Response tokens since the run began, over all ranks."""
        self.ended: dict[str, float] | None = None
        """Metrics of an iteration that has ended and is not announced yet."""
        self.stopped_by: str | None = None
        """Callback that ended the run before its last iteration, with its reason."""

    # Defined by a subclass

    def rows(self, prompts: Sequence[Prompt]) -> Any:
        """Return the rows of these prompts as tensors, on the device."""
        raise NotImplementedError(f"{type(self).__name__} does not define rows")

    def loss(self, micro: Any, totals: Totals) -> Tensor:
        """Return the summand of a microbatch in the loss of the optimizer step: divide by `totals`,
        never by the microbatch's own counts."""
        raise NotImplementedError(f"{type(self).__name__} does not define loss")

    def measure(self, rows: Any) -> dict[str, float]:
        """Return metrics of held-out rows of this rank, over all ranks."""
        return {}

    def packs(self) -> bool:
        """Return True if forwards compute equal prefixes of rows once, and no padding."""
        policy = self.networks.get("policy")
        return isinstance(policy, Policy) and policy.packs and not policy.training_dropout

    @property
    def frozen(self) -> dict[str, FrozenPolicy]:
        """Models that are not trained, by name: the reference, if there is one."""
        return {} if self.reference is None else {"reference": self.reference}

    @classmethod
    def columns(cls, settings: Any) -> tuple[str, ...]:
        """Return `needs_columns` with these settings."""
        return cls.needs_columns

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """Return the number of rows per prompt that an iteration splits into minibatches."""
        return batch.samples if cls.samples_responses else 1

    def example_rows(self, responses: Sequence[Response], group: Tensor) -> Any:
        """Return rows of these responses on the device, for `Preflight` of an algorithm that
        samples. `group` [N]: group of each response."""
        raise NotImplementedError(f"{type(self).__name__} does not define example_rows")

    def export(self, folder: Path) -> None:
        """Write the trained model as a Hugging Face directory; a collective."""
        self.policy.export(folder)

    def add_extension(self, extension: Extension) -> None:
        """Add an extension of the loop. Hooks run in the order in which extensions are added."""
        self.extensions.append(extension)
        extension.attach(cast(LoopView, self))

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
        minibatches: list[Tensor] = []
        for epoch in range(self.batch.epochs):
            order = torch.randperm(num_rows, generator=self.generator(epoch))
            minibatches += order.tensor_split(self.batch.minibatches)
        return minibatches

    @contextmanager
    def update_mode(self) -> Iterator[None]:
        """Put the networks that need it in train mode inside the block, with a generator that
        depends on (seed, iteration, rank)."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(hash((self.seed, self.iteration, DROPOUT, self.ranks.rank)))
            for network in self.networks.values():
                network.train(isinstance(network, Trunk) and network.needs_train_mode)
            yield
            for network in self.networks.values():
                network.eval()

    def generator(self, purpose: int) -> torch.Generator:
        """Return a random generator that depends on seed, iteration and `purpose` alone."""
        return torch.Generator().manual_seed(hash((self.seed, self.iteration, purpose)))

    # The end of an iteration

    def end_iteration(self) -> None:
        """Pass the weights to the rollout, log the iteration, and validate if due."""
        for extension in self.extensions:
            extension.before_iteration_end()
        self.sync_rollout()
        self.iteration += 1
        self.ended = self.iteration_metrics()
        self.log_row(self.ended)
        self.meter.reset()
        self.timer.reset()
        self.notify("on_iteration_metrics", self.ended)
        is_last = self.trainer.should_stop or self.iteration >= self.max_iterations
        if is_last or self.validation.due(self.iteration):
            self.validate()
        self.trainer.should_stop = self.trainer.should_stop or is_last
        self.iteration_start = time.perf_counter()

    def on_train_batch_end(self, *args: Any) -> None:
        """Announce the end of an iteration, after its validation: to parts and extensions, to the
        schedule, and to callbacks in the order of the Trainer, where checkpoints come last."""
        if self.ended is None:
            return
        metrics = self.ended
        self.ended = None
        # an adaptive coefficient would stay NaN
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.adapt(finite)
        for extension in self.extensions:
            extension.on_iteration_end(finite)
        with warnings.catch_warnings():
            # an iteration may have no optimizer step
            warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)`")
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.notify("on_iteration_end", metrics)
        self.sample_log.clear()

    def adapt(self, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of an iteration to the parts that change while training."""
        for part in self.controllers.values():
            part.on_iteration_end(metrics)

    def sync_rollout(self) -> None:
        """Pass the weights of the next iteration to the rollout."""
        if self.rollout is not None:
            with self.timer("rollout"), self.timer.within("sync"):
                self.rollout.sync(self.policy, iteration=self.iteration + 1)

    def iteration_metrics(self) -> dict[str, float]:
        """Return the metrics, times and memory of the iteration, over all ranks."""
        optimizer: Any = self.optimizers()
        metrics = self.meter.compute()
        metrics["train/lr"] = optimizer.param_groups[0]["lr"]
        metrics |= {f"time/{phase}_s": seconds for phase, seconds in self.timer.seconds.items()}
        metrics["perf/peak_memory_mb"] = peak_memory_mb(self.device)
        seconds = time.perf_counter() - self.iteration_start
        metrics["time/iteration_s"] = seconds
        metrics["time/other_s"] = seconds - self.timer.claimed_s
        return metrics

    def validate(self) -> None:
        """Evaluate the held-out prompts, without an effect on training."""
        metrics: dict[str, float] = {}
        rows: list[dict[str, Any]] = []
        # Before the first training step Lightning has not entered the precision context.
        with self.timer.within("validation"), self.trainer.precision_plugin.forward_context():
            if self.rollout is not None:
                parts = (self.policy, self.rollout, self.reward)
                metrics, rows = self.validation(*parts, self.splits.val, self.ranks, self.iteration)
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
        """Return `measure` of the held-out prompts that have the `validation_column`."""
        column = self.validation_column
        if column is None:
            return {}
        prompts = self.splits.val[: self.validation.max_prompts]
        prompts = [prompt for prompt in prompts if column in prompt.meta]
        if not prompts:
            return {}
        own = prompts[self.ranks.rank :: self.ranks.world_size]
        return self.measure(self.rows(own) if own else self.rows(prompts[:1]).without_loss())

    # Log

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Rows of the sample log of this iteration on this rank."""
        return self.sample_log.rows

    def log_row(self, metrics: Mapping[str, float]) -> None:
        """Log metrics of the iteration, also for Lightning's callbacks that monitor one."""
        tensors = {name: torch.tensor(x) for name, x in metrics.items()}
        self.trainer.callback_metrics.update(tensors)
        row = {"optimizer_step": self.optimizer_steps, **metrics}
        for logger in self.loggers:
            logger.log_metrics(row, step=self.iteration)

    def notify(self, hook: str, *args: Any) -> None:
        """Call a hook on every callback that has it, and record which of them ends the run."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            method = getattr(callback, hook, None)
            if method is None:
                continue
            stopped_before = self.trainer.should_stop
            method(self.trainer, self, *args)
            if self.trainer.should_stop and not stopped_before:
                self.stopped_by = type(callback).__name__
                reason = getattr(callback, "stopping_reason_message", None)
                if reason:
                    self.stopped_by += f": {' '.join(reason.split())}"

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps since the run began; Lightning's `global_step` overshoots."""
        return self.step.num_steps

    @property
    def max_iterations(self) -> int:
        """Length of the run."""
        return int(self.trainer.max_iterations)  # type: ignore[attr-defined]

    # Lightning's hooks

    @property
    def all_networks(self) -> list[nn.Module]:
        """The trained networks and the frozen models."""
        networks = list(self.networks.values())
        for model in self.frozen.values():
            networks += model.networks
        return networks

    def configure_model(self) -> None:
        """Compile and shard the networks, before Lightning creates the optimizer, and read weights
        that were not loaded."""
        strategy = self.trainer.strategy
        if self.compiles:
            compile_networks(self.all_networks)
        shard(self.all_networks, strategy)
        # also a network that is not listed: Lightning would draw random weights for those on the
        # meta device
        for network in (*self.all_networks, self):
            read(network, strategy.root_device)

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = []
        factors: list[Callable[[int], float]] = []
        kind = getattr(self.optimizer, "func", self.optimizer)
        hidden = needs_of(kind, OptimizerNeeds).hidden
        for name, network in self.networks.items():
            settings = self.optimizer_settings.get(name, {})
            own = parameter_groups(name, network, hidden=hidden, **settings)
            groups += own
            factors += [self.lr_factor(self.schedule_starts.get(name, 0))] * len(own)
        optimizer = self.optimizer(groups)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, factors)]

    def lr_factor(self, start: int) -> Callable[[int], float]:
        """Return the learning rate factor by iteration of a schedule that begins at `start`."""
        return lambda i: self.schedule(max(0, i - start), self.max_iterations - start)

    def _check_networks(self) -> None:
        """Check the networks that were not checked when they were built. By now they are on their
        device, in the data type of the run."""
        checked = check_deferred(self.all_networks)
        if self.networks.get("policy") in checked and isinstance(self.rollout, ChecksPolicy):
            self.rollout.check_policy(self.policy)

    def on_fit_start(self) -> None:
        self.batch.check_ranks(self.trainer.world_size, self.rows_per_prompt(self.batch))
        for model in self.frozen.values():
            model.to(self.device)
        # Lightning enters the precision context before each training step
        with self.trainer.precision_plugin.forward_context(), uncompiled(self.compiles):
            self._check_networks()
        self.meter.reset(self.device)
        self.timer.device = self.device
        for extension in self.extensions:
            extension.on_fit_start()

    def on_train_start(self) -> None:
        # before an engine takes the memory that is left
        if self.batch.runs_preflight(self.device.type):
            self.notify("on_preflight", self.preflight())
        # not in on_fit_start, after which Lightning loads the checkpoint of sharded networks
        if self.rollout is not None:
            engine = engine_of(self.rollout)
            if isinstance(engine, FitsRun):
                engine.fit_run(self.policy, self._run_size())
            with self.timer.within("sync"):
                self.rollout.sync(self.policy, iteration=self.iteration)
        if self.iteration == 0:
            self.validate()
        self.iteration_start = time.perf_counter()
        # a callback may have set it before
        is_over = self.iteration >= self.max_iterations
        self.trainer.should_stop = self.trainer.should_stop or is_over

    def _run_size(self) -> RunSize:
        named = (self.validation.data or {}).values()
        sources = (self.splits.train, self.splits.val, *named)
        response = self.validation.max_tokens or 0
        rows = self.batch.prompts * self.batch.samples // self.ranks.world_size
        return RunSize(
            precision=str(self.trainer.precision),
            num_rows=rows,
            longest_row=longest_row(self.policy, sources, self.rollout, response),
            reserved_bytes=self.preflight.reserved_bytes,
        )

    def on_after_backward(self) -> None:
        for extension in self.extensions:
            extension.on_after_backward()

    # Checkpoint

    @property
    def controllers(self) -> dict[str, Controller]:
        """Parts that change while training, also parts of parts, by key."""
        found: dict[str, Controller] = {}
        for group in (*self.config_groups, "schedule"):
            found |= controllers_in(getattr(self, group, None), group)
        return found

    @property
    def stateful(self) -> dict[str, Any]:
        """Parts and all extensions by name. `LearnerCheckpoint` saves those with a state."""
        extensions = {type(extension).__name__: extension for extension in self.extensions}
        return self.controllers | extensions

    def counters(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint holds."""
        return {
            "iteration": self.iteration,
            "optimizer_steps": self.step.num_steps,
            "response_tokens": self.response_tokens,
        }

    def load_counters(self, state: Mapping[str, Any]) -> None:
        """Load what `counters` returned."""
        self.iteration = state["iteration"]
        self.step.num_steps = state["optimizer_steps"]
        self.response_tokens = state["response_tokens"]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.checkpoint.save(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.checkpoint.load(checkpoint)
