"""Adapted policies for tests."""

from typing import Any

import torch

from rlmods.adapter import LoRA
from rlmods.policy import Policy
from tests.support.models import MODELS, PDROP, policy


def base(kind: str = "llama", **options: Any) -> Policy:
    change = PDROP if kind == "gpt2" else {"attention_dropout": 0.5}
    return policy(MODELS[kind](**change), **options)


def lora(kind: str = "llama", *, on: Policy | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    return LoRA(**{"rank": 4} | settings)(base(kind) if on is None else on)


def perturbed(policy: Any, std: float = 0.1, seed: int = 0) -> Any:
    """Add noise to every tensor of the adapter, in place, as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in policy.trainable_tensors().values():
            x += std * torch.randn(x.shape, generator=generator)
    return policy


def frozen_tensors(policy: Any) -> dict[str, torch.Tensor]:
    """Return copies of the tensors that are not trained."""
    return {name: x.clone() for name, x in policy.named_parameters() if not x.requires_grad}
