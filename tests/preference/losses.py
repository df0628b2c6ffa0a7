"""Calls of a preference loss on a batch of rankings."""

from typing import Any

import torch
from torch import Tensor

from rlmods.needs import PreferenceNeeds, needs_of
from tests.support.batches import gradient
from tests.support.rankings import Rankings

KL = torch.tensor(0.3, dtype=torch.float64)


def call(part: Any, r: Rankings, logprobs: Tensor | None = None) -> Tensor:
    """Return the loss of each prompt, with a KL of 0.3 for KTO."""
    needs = needs_of(part, PreferenceNeeds)
    more = {"kl": KL} if needs.kl else {}
    logprobs = r.logprobs if logprobs is None else logprobs
    return part(logprobs, r.ref_logprobs if needs.reference else None, r.num_tokens, r.rank, **more)


def both(part: Any, r: Rankings) -> tuple[Tensor, Tensor]:
    """Return the loss of each prompt, and the gradient of their sum with different weights."""
    logprobs = r.logprobs.clone().requires_grad_()
    loss = call(part, r, logprobs)
    return loss.detach(), gradient(
        (loss * torch.linspace(1, 2, len(loss), dtype=torch.float64)).sum(), logprobs
    )
