"""Dropout: disabled in the live model unless a setting asks for it in training, kept as configured
in the exported model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from rlmods.errors import UserError

JITTER = ("jitter_noise", "input_jitter_noise")
"""Attributes of mixture-of-experts blocks that add noise to the router's input in train mode, which
disturbs log-probabilities as dropout does."""


def _configs(model: Any) -> list[Any]:
    return list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())


def disable_dropout(model: Any) -> list[dict[str, float]]:
    """Set dropout in modules, functional attributes and configurations, and router jitter, to 0;
    return the configurations' old values."""
    original: list[dict[str, float]] = []
    for config in _configs(model):
        names = [
            n
            for n, v in vars(config).items()
            if isinstance(v, float) and (n.endswith(("dropout", "_pdrop")) or "dropout_" in n)
        ]
        original.append({n: getattr(config, n) for n in names})
        for name in names:
            setattr(config, name, 0.0)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name in JITTER):
                setattr(module, name, 0.0)
    return original


def set_dropout(network: Any, probability: float) -> None:
    """Set dropout in modules and functional attributes of `network.model`. It acts in train mode
    only, which training then uses.

    Raises:
        UserError: the model has no dropout.
    """
    places = 0
    for module in network.model.modules():
        names = [
            name
            for name, value in vars(module).items()
            if isinstance(value, float) and "dropout" in name
        ]
        names += ["p"] * isinstance(module, nn.modules.dropout._DropoutNd)
        places += len(names)
        for name in names:
            setattr(module, name, probability)
    if not places:
        raise UserError(
            f"algo.dropout={probability}: {type(network.model).__name__} has no dropout: type "
            "algo.dropout=0"
        )
    network.training_dropout = probability


@contextmanager
def original_dropout(model: Any, original: list[dict[str, float]]) -> Iterator[None]:
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
