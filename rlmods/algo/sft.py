"""Supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.policy.base import Policy
from rlmods.training.metrics import Meter
from rlmods.training.packing import check_packing, packed
from rlmods.training.sft_batch import sft_batch
from rlmods.types import Experience, Prompt, Totals, check_bounds


@dataclass(frozen=True)
class SFTSettings:
    """Settings of supervised fine-tuning, `algo.*` in the configuration."""

    packing: bool = False
    """Forward several rows as one if that takes fewer tokens. They do not attend to each other, and the loss is the same."""
    pack_length: int = 1024
    """Maximum number of tokens of a packed row; a longer example has a row of its own."""

    def __post_init__(self) -> None:
        check_bounds(self, "algo", {"pack_length": (self.pack_length >= 1, "at least 1")})


class SFT(Learner):
    """Supervised fine-tuning (InstructGPT, arXiv:2203.02155, section 3.5): `-mean over response tokens of log pi(token | prompt, earlier
    tokens)`, EOS included. Reads `prompt.meta["response"]`."""

    groups: ClassVar[tuple[str, ...]] = (*Learner.groups, "rollout", "environment", "reward")
    settings_type: ClassVar[type[Any]] = SFTSettings
    needs_columns: ClassVar[tuple[str, ...]] = ("response",)
    validation_column: ClassVar[str] = "response"

    @property
    def pack_length(self) -> int | None:
        """Tokens of a packed row; None without packing."""
        return self.settings.pack_length if self.settings.packing else None

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.pack_length is not None:
            check_packing(self.policy)

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        return sft_batch(prompts, self.policy, self.iteration).to(self.device)

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        return sft_loss(self.policy, self.meter, "train", self.pack_length)(micro, totals)

    def measure(self, rows: Experience) -> dict[str, float]:
        meter = Meter(self.device)
        loss = sft_loss(self.policy, meter, "val", self.pack_length)
        for micro, _ in self.microbatches(rows):
            loss(micro, Totals(1, 1))
        return meter.compute()


def sft_loss(policy: Policy, meter: Meter, name: str, pack_length: int | None = None) -> Callable[[Experience, Totals], Tensor]:
    """Return the loss `-sum over masked tokens of log pi / totals.tokens`.

    Args:
        name: the loss (nats per token) is logged as `<name>/loss`, the entropy as `<name>/entropy`.
        pack_length: tokens of a packed row; None: no packing.
    """

    def loss(micro: Experience, totals: Totals) -> Tensor:
        forward = policy if pack_length is None else packed(policy, micro.lengths, pack_length)
        logprobs, entropy = forward(micro.tokens, micro.mask)[:2]
        meter.mean(f"{name}/loss", -logprobs, micro.mask)
        meter.mean(f"{name}/entropy", entropy, micro.mask)
        return -TokenMean()(logprobs, micro.mask, totals)

    return loss
