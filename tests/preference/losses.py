"""A loss and its gradient."""

from typing import Any

import torch
from torch import Tensor

from tests.support.batches import gradient
from tests.support.rankings import Rankings

KL = torch.tensor(0.3, dtype=torch.float64)


def call(part: Any, r: Rankings, logprobs: Tensor | None = None) -> Tensor:
    """Loss of each prompt; KTO gets a KL of 0.3."""
    more = {"kl": KL} if getattr(part, "needs_kl", False) else {}
    given = r.logprobs if logprobs is None else logprobs
    return part(given, r.ref_logprobs if part.needs_reference else None, r.num_tokens, r.rank, **more)


def both(part: Any, r: Rankings) -> tuple[Tensor, Tensor]:
    """Loss of each prompt, and the gradient of a weighted sum of them: other weights for other prompts."""
    logprobs = r.logprobs.clone().requires_grad_()
    loss = call(part, r, logprobs)
    return loss.detach(), gradient((loss * torch.linspace(1, 2, len(loss), dtype=torch.float64)).sum(), logprobs)
