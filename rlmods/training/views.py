"""The learner as the objects that it owns see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from rlmods.data import Splits
from rlmods.distributed.collectives import Ranks
from rlmods.policy.base import Policy
from rlmods.protocols import Ratio, Rollout
from rlmods.router import Routing
from rlmods.training.credit import CreditAssignment
from rlmods.training.frozen import FrozenPolicy, Teacher
from rlmods.training.meter import Meter, PhaseTimer
from rlmods.training.scorer import LogprobScorer
from rlmods.training.settings import Batch
from rlmods.training.train_step import Microbatches, TrainStep
from rlmods.types import Prompt, Response, Scores, Totals


class LearnerView(Protocol):
    """Members of every algorithm (`rlmods.algo.Learner`)."""

    config_groups: ClassVar[tuple[str, ...]]
    samples_responses: ClassVar[bool]
    policy: Policy
    rollout: Any
    batch: Batch
    splits: Splits
    settings: Any
    iteration: int
    ranks: Ranks
    meter: Meter
    timer: PhaseTimer
    step: TrainStep
    microbatches: Microbatches
    preflight: Any
    extensions: list[Any]

    @property
    def device(self) -> torch.device: ...
    @property
    def trainer(self) -> Any: ...
    @property
    def networks(self) -> dict[str, nn.Module]: ...
    @property
    def frozen(self) -> dict[str, FrozenPolicy]: ...
    @property
    def stateful(self) -> dict[str, Any]: ...
    def columns(self, settings: Any) -> tuple[str, ...]: ...
    def rows_per_prompt(self, batch: Batch) -> int: ...
    def rows(self, prompts: Sequence[Prompt]) -> Any: ...
    def example_rows(self, responses: Sequence[Response], group: Tensor) -> Any: ...
    def loss(self, micro: Any, totals: Totals) -> Tensor: ...
    def optimizers(self) -> Any: ...
    def update_mode(self) -> AbstractContextManager[None]: ...
    def counters(self) -> dict[str, Any]: ...
    def load_counters(self, state: Mapping[str, Any]) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def named_parameters(
        self, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...


class LoopView(LearnerView, Protocol):
    """Members of the RL loop (`rlmods.algo.PolicyGradient`) that extensions use."""

    seed: int
    reference: FrozenPolicy | None
    teacher: Teacher | None
    ratio: Ratio
    credit: CreditAssignment
    router: Routing
    critic: nn.Module | None
    scorer: LogprobScorer
    full_kl: bool
    kl_stats: Tensor

    @property
    def optimizer_steps(self) -> int: ...
    @property
    def max_iterations(self) -> int: ...
    def generator(self, purpose: int) -> torch.Generator: ...
    def grade(self, responses: Sequence[Response]) -> Scores: ...
    def scale(self, values: Sequence[float | None]) -> Sequence[float | None]: ...
    def sample_responses(self, rollout: Rollout, prompts: Sequence[Prompt]) -> list[Response]: ...
