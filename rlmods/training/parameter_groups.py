"""Parameter groups of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlmods.errors import UserError


def parameter_groups(name: str, network: nn.Module, **settings: Any) -> list[dict[str, Any]]:
    """Return the trained parameters in two groups: matrices, which have the optimizer's weight
    decay, and one-dimensional parameters (norms and biases), which have none, as in nanoGPT and the
    Trainer of transformers. An empty group is left out.

    Args:
        settings: settings of both groups, such as `lr`.

    Raises:
        UserError: a trained parameter with fewer than 32 bits.
    """
    trained = [x for x in network.parameters() if x.requires_grad]
    for x in trained:
        if torch.finfo(x.dtype).bits < 32:
            dtype = str(x.dtype).removeprefix("torch.")
            raise UserError(
                f"the weights of {name} are {dtype}, and rounding loses most updates at the usual "
                "learning rates: train float32 weights with trainer.precision=bf16-mixed, or type "
                "adapter=lora"
            )
    matrices = [x for x in trained if x.ndim > 1]
    vectors = [x for x in trained if x.ndim <= 1]
    groups = [{"params": matrices, **settings}] if matrices else []
    if vectors:
        groups.append({"params": vectors, "weight_decay": 0.0, **settings})
    return groups
