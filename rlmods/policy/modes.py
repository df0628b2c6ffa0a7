"""Modes of a network: kernels, gradient checkpointing, evaluation."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn
from transformers import PreTrainedConfig, PreTrainedModel

from rlmods.errors import UserError
from rlmods.policy.routers import ContextFn


def context_length(model: PreTrainedModel) -> int:
    """Return the maximum number of tokens of a row; a large number for a model without a limit.

    Of position scalings that depend on the longest row of a forward (longrope, dynamic) it is the
    length up to which they do not: the log-probabilities of a row would depend on its
    microbatch."""
    config = model.config.get_text_config()
    limit: int = getattr(config, "max_position_embeddings", None) or 1 << 20
    scaling = getattr(config, "rope_parameters", None) or {}
    for parameters in (scaling, *scaling.values()):
        is_scaling = isinstance(parameters, dict)
        if is_scaling and parameters.get("rope_type") in ("longrope", "dynamic"):
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limit = min(limit, original or limit)
    return limit


def disable_cudnn_attention() -> None:
    """Switch cuDNN's attention off in this process, which has no effect without a GPU. It builds a
    plan for each new shape, 0.1 to 0.4 s, and sampling has a new shape with every token. PyTorch's
    own kernels build none."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def checkpoint_activations(model: PreTrainedModel, context_fn: ContextFn = noop_context_fn) -> None:
    """Enable gradient checkpointing, which is active in train mode; `context_fn` as in
    `torch.utils.checkpoint`."""
    options = {"use_reentrant": False, "context_fn": context_fn}
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


JITTER = ("jitter_noise", "input_jitter_noise")
"""Attributes of mixture-of-experts blocks that add noise to the router's input in train mode, which
disturbs log-probabilities as dropout does."""


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """Return the different configurations of the model and its parts."""
    found = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            found[id(config)] = config
    return list(found.values())


def _settings(module: nn.Module) -> list[str]:
    """Return the names of a module's attributes that are probabilities of dropout."""
    names = [k for k, v in vars(module).items() if isinstance(v, float) and "dropout" in k]
    return [*names, "p"] if isinstance(module, nn.modules.dropout._DropoutNd) else names


def _is_dropout(name: str, value: object) -> bool:
    """Return True for a probability of dropout in a configuration."""
    return isinstance(value, float) and (name.endswith(("dropout", "_pdrop")) or "dropout_" in name)


def disable_dropout(model: nn.Module) -> list[dict[str, float]]:
    """Set dropout in modules, functional attributes and configurations, and router jitter, to 0;
    return the configurations' old values."""
    original = []
    for config in _configs(model):
        values = {name: x for name, x in vars(config).items() if _is_dropout(name, x)}
        original.append(values)
        for name in values:
            setattr(config, name, 0.0)
    for module in model.modules():
        jitter = [name for name in JITTER if isinstance(vars(module).get(name), float)]
        for name in (*_settings(module), *jitter):
            setattr(module, name, 0.0)
    return original


def set_dropout(network: Any, probability: float) -> None:
    """Set dropout in modules and functional attributes of `network.model`. It acts in train mode
    only, which training then uses.

    Raises:
        UserError: the model has no dropout.
    """
    places = [(x, name) for x in network.model.modules() for name in _settings(x)]
    if not places:
        raise UserError(
            f"algo.dropout={probability}: {type(network.model).__name__} has no dropout: type "
            "algo.dropout=0"
        )
    for module, name in places:
        setattr(module, name, probability)
    network.training_dropout = probability


@contextmanager
def original_dropout(model: nn.Module, original: list[dict[str, float]]) -> Iterator[None]:
    """Restore the configurations' dropout values, as returned by `disable_dropout`, inside the
    block."""
    pairs = list(zip(_configs(model), original, strict=True))
    for config, values in pairs:
        for name, value in values.items():
            setattr(config, name, value)
    try:
        yield
    finally:
        for config, values in pairs:
            for name in values:
                setattr(config, name, 0.0)


def uncompiled(compiles: bool) -> AbstractContextManager[object]:
    """Run compiled blocks as they are inside the block, if there are any."""
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()
