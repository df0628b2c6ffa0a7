"""The learner as the objects that it owns see it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from rlmods.data import Splits
from rlmods.distributed.collectives import Ranks
from rlmods.policy.base import Policy
from rlmods.training.meter import Meter, PhaseTimer
from rlmods.training.settings import Batch
from rlmods.types import Prompt, Response, Totals


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
    step: Any
    microbatches: Any
    preflight: Any
    extensions: list[Any]
    strict_loading: bool

    @property
    def device(self) -> torch.device: ...
    @property
    def trainer(self) -> Any: ...
    @property
    def networks(self) -> dict[str, nn.Module]: ...
    @property
    def frozen(self) -> Mapping[str, Any]: ...
    @property
    def stateful(self) -> dict[str, Any]: ...
    def columns(self, settings: Any) -> tuple[str, ...]: ...
    def rows_per_prompt(self, batch: Batch) -> int: ...
    def rows(self, prompts: Sequence[Prompt]) -> Any: ...
    def example_rows(self, responses: Sequence[Response], group: Tensor) -> Any: ...
    def loss(self, micro: Any, totals: Totals) -> Tensor: ...
    def optimizers(self) -> Any: ...
    def manual_backward(self, loss: Tensor) -> None: ...
    def notify(self, hook: str, *args: Any) -> None: ...
    def update_mode(self) -> AbstractContextManager[None]: ...
    def counters(self) -> dict[str, Any]: ...
    def load_counters(self, state: Mapping[str, Any]) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def named_parameters(
        self, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]: ...
