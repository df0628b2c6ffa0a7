"""Dropout, off while log-probabilities are taken, and as it was in what is exported."""

from __future__ import annotations

from typing import Any

from torch import nn

JITTER = ("jitter_noise", "input_jitter_noise")
"""Attributes of mixture-of-experts blocks that shake what a router reads while training: dropout by another name."""


def _configs(model: Any) -> list[Any]:
    return list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())


def without_dropout(model: Any) -> list[dict[str, float]]:
    """Switch off dropout in modules, functional attributes and configuration, and router jitter; return what the configuration said."""
    said: list[dict[str, float]] = []
    for config in _configs(model):
        names = [n for n, v in vars(config).items() if isinstance(v, float) and (n.endswith(("dropout", "_pdrop")) or "dropout_" in n)]
        said.append({n: getattr(config, n) for n in names})
        for name in names:
            setattr(config, name, 0.0)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or name in JITTER):
                setattr(module, name, 0.0)
    return said


class dropout_restored:  # noqa: N801 - reads as a verb at its call
    def __init__(self, model: Any, said: list[dict[str, float]]) -> None:
        self.pairs = list(zip(_configs(model), said, strict=True))

    def __enter__(self) -> None:
        for config, values in self.pairs:
            for name, value in values.items():
                setattr(config, name, value)

    def __exit__(self, *_: object) -> None:
        for config, values in self.pairs:
            for name in values:
                setattr(config, name, 0.0)
