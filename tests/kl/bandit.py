"""Bandit of five arms with known rewards and a reference policy, small enough for exact
expectations."""

import torch
from torch import Tensor

from rlmods.protocols import KL

ARMS = torch.tensor([1.0, 0.0, -1.0, 0.5, 0.2], dtype=torch.float64)
"""Reward of each arm."""
REF = torch.tensor([0.9, 0.2, -0.5, 0.0, 0.4], dtype=torch.float64).log_softmax(0)


def start() -> Tensor:
    """Return the logits of the reference policy."""
    return REF.clone()


def distance(logits: Tensor) -> float:
    """Return KL(pi || ref), by enumeration."""
    logprobs = logits.log_softmax(0)
    return (logprobs.exp() * (logprobs - REF)).sum().item()


def improve(logits: Tensor, kl: KL, steps: int) -> Tensor:
    """Take steps along the expected policy gradient, with the penalty in the reward or in the loss
    according to `kl.where`."""
    for _ in range(steps):
        logits = logits.detach().requires_grad_()
        logprobs = logits.log_softmax(0)
        penalty = kl.coefficient * kl(logprobs[None], REF[None])[0]
        in_reward = kl.where == "reward"
        reward = ARMS - penalty.detach() if in_reward else ARMS
        objective = (
            logprobs.exp().detach() * (reward * logprobs - (0 if in_reward else penalty))
        ).sum()
        logits = logits + torch.autograd.grad(objective, logits)[0]
    return logits.detach()
