"""What of peft is used: layers put into a network in place, several adapters in each, one of them in force."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from torch import nn

from rlmods.types import UserError


def need_peft(what: str) -> None:
    """
    Raises:
        UserError: peft is not installed.
    """
    if find_spec("peft") is None:
        raise UserError(f"{what} needs peft: pip install 'rlmods[lora]'")


def inject(model: Any, config: Any, name: str) -> None:
    """Put one more adapter into the network: it is then in force, and the rest frozen.

    Raises:
        UserError: peft's refusal.
    """
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        for said in ("Already found a `peft_config`", "fan_in_fan_out is set to"):  # a second adapter is meant; peft sets it by layer
            warnings.filterwarnings("ignore", said)
        try:
            inject_adapter_in_model(config, model, name)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"adapter: {' '.join(str(error).split())}") from error


def adapted_layers(model: Any) -> dict[str, Any]:
    """By name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def is_linear(layer: Any, name: str) -> bool:
    """Whether the adapter is on a linear layer, and not on a tensor that holds several matrices, such as experts."""
    from peft.tuners.lora.layer import ParamWrapper

    return isinstance(layer.lora_A[name], nn.Linear) and not isinstance(layer, ParamWrapper)


def switches(model: Any) -> list[Any]:
    """Modules that hold several adapters, of which one is in force."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)]


@contextmanager
def in_force(model: Any, name: str) -> Iterator[None]:
    """Which adapter speaks, and nothing else: peft's own switch would also say whose gradient is wanted."""
    layers = switches(model)
    before = [layer._active_adapter for layer in layers]
    try:
        for layer in layers:
            layer._active_adapter = [name]
        yield
    finally:
        for layer, active in zip(layers, before, strict=True):
            layer._active_adapter = active


def other_linears(model: Any) -> set[str]:
    """Names of the linear layers without an adapter, the output layer left out."""
    from transformers.pytorch_utils import Conv1D

    head, layers = model.get_output_embeddings(), tuple(adapted_layers(model))
    found = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D) and module is not head}
    return {name for name in found if not name.startswith(tuple(f"{layer}." for layer in layers))} if layers else found


def check_names(model: Any, config: Any) -> None:
    """
    Raises:
        UserError: a name that nothing in the model has, or a layer whose weight another one shares.
    """
    users: dict[int, list[str]] = {}
    for name, x in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(x), []).append(name.rpartition(".")[0])
    shared = {name: names for names in users.values() if len(names) > 1 for name in names}
    for key, wanted in (("targets", config.target_modules), ("modules_to_save", config.modules_to_save or ())):
        for name in () if isinstance(wanted, str) else wanted:
            found = [other for other, _ in model.named_modules() if other == name or other.endswith(f".{name}")]
            if not found:
                known = ", ".join(sorted({linear.rpartition(".")[2] for linear in other_linears(model)}))
                raise UserError(f"adapter.{key}: the model has no {name}; its linear layers are {known}")
            if tied := [other for other in found if other in shared]:
                raise UserError(f"adapter.{key}: {' and '.join(shared[tied[0]])} share one weight, which no adapter can: drop {name}")
