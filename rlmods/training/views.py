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
from rlmods.protocols import Ratio
from rlmods.router import Routing
from rlmods.training.batch import Batch
from rlmods.training.evaluation import Validation
from rlmods.training.meter import Meter
from rlmods.training.reference import Reference
from rlmods.training.scorer import LogprobScorer
from rlmods.training.timer import PhaseTimer
from rlmods.training.train_step import Microbatches, TrainStep
from rlmods.types import Prompt, Response, Totals


class LearnerView(Protocol):
    """What every algorithm has (`rlmods.algo.Learner`)."""

    groups: ClassVar[tuple[str, ...]]
    samples_responses: ClassVar[bool]
    policy: Policy
    rollout: Any
    batch: Batch
    validation: Validation
    splits: Splits
    settings: Any
    seed: int
    reference: Reference | None
    iteration: int
    ranks: Ranks
    meter: Meter
    timer: PhaseTimer
    microbatches: Microbatches
    step: TrainStep
    extensions: list[Any]

    @property
    def device(self) -> torch.device: ...
    @property
    def trainer(self) -> Any: ...
    @property
    def networks(self) -> dict[str, nn.Module]: ...
    @property
    def frozen(self) -> dict[str, Reference]: ...
    @property
    def stateful(self) -> dict[str, Any]: ...
    @property
    def optimizer_steps(self) -> int: ...
    @property
    def max_iterations(self) -> int: ...
    def columns(self, settings: Any) -> tuple[str, ...]: ...
    def rows_per_prompt(self, batch: Batch) -> int: ...
    def prompt_length(self, prompt: Prompt) -> int: ...
    def rows(self, prompts: Sequence[Prompt]) -> Any: ...
    def example_rows(self, responses: Sequence[Response], group: Tensor) -> Any: ...
    def loss(self, micro: Any, totals: Totals) -> Tensor: ...
    def optimizers(self) -> Any: ...
    def manual_backward(self, loss: Tensor) -> None: ...
    def minibatches(self, num_rows: int) -> list[Tensor]: ...
    def update_mode(self) -> AbstractContextManager[None]: ...
    def generator(self, purpose: int) -> torch.Generator: ...
    def counters(self) -> dict[str, Any]: ...
    def load_counters(self, state: Mapping[str, Any]) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def named_parameters(
        self, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...


class LoopView(LearnerView, Protocol):
    """What extensions may use of the RL loop (`rlmods.algo.PolicyGradient`)."""

    ratio: Ratio
    router: Routing
    critic: nn.Module | None
    scorer: LogprobScorer
    full_kl: bool
    kl_stats: Tensor

    def sample_responses(self, rollout: Any, prompts: Sequence[Prompt]) -> list[Response]: ...
