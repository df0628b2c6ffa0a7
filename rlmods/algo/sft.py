"""Supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.algo.offline import Offline
from rlmods.policy.base import Policy
from rlmods.training.collate import collate
from rlmods.training.metrics import Meter
from rlmods.training.packing import check_packing, packed
from rlmods.types import Experience, Prompt, Response, Scores, Totals, UserError


class SFT(Offline):
    """Imitate the responses in the data: `-mean over response tokens of log pi(token | prompt, earlier tokens)`, EOS among them.

    Reads `prompt.meta["response"]`. The first stage of the classic road (InstructGPT, arXiv 2203.02155, section 3.5).
    """

    groups: ClassVar[tuple[str, ...]] = (*Offline.groups, "rollout", "reward")
    column: ClassVar[str] = "response"
    needs_columns: ClassVar[tuple[str, ...]] = ("response",)

    def __init__(self, *, packing: bool = False, pack_length: int = 1024, **shared: Any) -> None:
        """
        Args:
            packing: forward several rows as one, where that takes fewer tokens; they do not see each other, and the loss is the same.
            pack_length: tokens of such a row at most; a longer example goes alone.

        Raises:
            UserError: `pack_length` below 1.
        """
        super().__init__(**shared)
        if pack_length < 1:
            raise UserError(f"algo.pack_length={pack_length}: must be at least 1")
        self.pack_length = pack_length if packing else None

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.pack_length is not None:
            check_packing(self.policy)

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        return imitation(prompts, self.policy, self.iteration).to(self.device)

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        return nll(self.policy, self.meter, "train", self.pack_length)(micro, totals)

    def measure(self, rows: Experience) -> dict[str, float]:
        meter = Meter(self.device)
        loss = nll(self.policy, meter, "val", self.pack_length)
        for micro, _ in self.microbatches(rows):
            loss(micro, Totals(1, 1))
        return meter.compute()


def imitation(prompts: Sequence[Prompt], policy: Policy, version: int) -> Experience:
    """Rows to imitate: each prompt and its `meta["response"]`, which ends with the end-of-text token. The mask is True on the response.

    Args:
        version: iteration they are used in.
    """
    responses = [
        Response(
            prompt=prompt,
            prompt_tokens=policy.encode(prompt),
            tokens=(target := policy.encode_response(prompt.meta["response"])),
            behavior_logprobs=[0.0] * len(target),
            text=prompt.meta["response"],
        )
        for prompt in prompts
    ]
    group, scores = torch.arange(len(responses)), Scores([0.0] * len(responses))
    return collate(responses, scores, group, version=version, pad_id=policy.pad_id)


def nll(policy: Policy, meter: Meter, name: str, pack_length: int | None = None) -> Callable[[Experience, Totals], Tensor]:
    """`-sum over masked tokens of log pi / totals.tokens` as a loss for `Learner.update`.

    Args:
        name: the loss (nats per token) is logged as `<name>/loss`, the entropy as `<name>/entropy`.
        pack_length: tokens of a packed row; None: every example has a row of its own.
    """

    def loss(micro: Experience, totals: Totals) -> Tensor:
        forward = policy if pack_length is None else packed(policy, micro.lengths, pack_length)
        logprobs, entropy = forward(micro.tokens, micro.mask)[:2]
        meter.mean(f"{name}/loss", -logprobs, micro.mask)
        meter.mean(f"{name}/entropy", entropy, micro.mask)
        return -TokenMean()(logprobs, micro.mask, totals)

    return loss
