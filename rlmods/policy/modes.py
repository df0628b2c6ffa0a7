"""Modes of a network: kernels, gradient checkpointing, evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rlmods.policy.routers import ContextFn


def context_length(model: Any) -> int:
    """Return the maximum number of tokens of a row; a large number for a model without a limit."""
    return getattr(model.config, "max_position_embeddings", None) or 1 << 20


def disable_cudnn_attention() -> None:
    """Switch cuDNN's attention off in this process, which has no effect without a GPU. It builds a
    plan for each new shape, 0.1 to 0.4 s, and sampling has a new shape with every token. PyTorch's
    own kernels build none."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def checkpoint_activations(model: Any, context_fn: ContextFn | None = None) -> None:
    """Enable gradient checkpointing, which is active in train mode; `context_fn` as in
    `torch.utils.checkpoint`."""
    options: dict[str, Any] = {"use_reentrant": False}
    if context_fn is not None:
        options["context_fn"] = context_fn
    # transformers renames the method during 5.x and warns about the old name
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(options)
    else:
        model.gradient_checkpointing_enable(options)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put every submodule in eval mode inside the block, and restore each mode afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training
