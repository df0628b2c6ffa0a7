"""The advantage of ReMax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.ops import rewards_to_go
from rlmods.types import Credit


@dataclass(frozen=True)
class Greedy:
    """A_t = G_t - b,  G_t = r_t + r_{t+1} + ...,  b the reward of the greedy answer to the same prompt.

    ReMax, arXiv:2310.10505. b depends on nothing that was sampled, so the gradient stays unbiased with a single response a
    prompt. With an outcome reward alone G_t is R on every token; a KL penalty on the tokens before t cannot be undone by token t."""

    needs_greedy: ClassVar[bool] = True

    def __call__(
        self,
        rewards: Float[Tensor, "N T"],
        mask: Bool[Tensor, "N T"],
        group: Int[Tensor, " N"],
        values: Float[Tensor, "N T"] | None = None,
    ) -> Credit:
        if values is None:
            raise ValueError("Greedy: values are missing; it needs the reward of a greedy answer to each prompt")
        return Credit(rewards_to_go(rewards, mask) - torch.where(mask, values, 0.0))
