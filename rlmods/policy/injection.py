"""Interface to peft: inject adapters into a network in place, several per layer, and select the
active one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from rlmods.distributed.deferred import cpu_placeholders, read
from rlmods.errors import UserError

if TYPE_CHECKING:
    from peft import LoraConfig


def require_peft(feature: str) -> None:
    """Check that peft is installed, which `feature` needs.

    Raises:
        UserError: peft is not installed.
    """
    if find_spec("peft") is None:
        raise UserError(f"{feature} needs peft: pip install 'rlmods[lora]'")


def inject(model: Any, config: LoraConfig, name: str) -> None:
    """Add an adapter to the network, make it the active one and freeze everything else.

    Raises:
        UserError: peft rejects the configuration.
    """
    from peft import inject_adapter_in_model
    from peft.utils import ModulesToSaveWrapper

    # peft creates adapters on the device of the base
    with cpu_placeholders(model), warnings.catch_warnings():
        # A second adapter is intended, and peft sets fan_in_fan_out per layer.
        for message in ("Already found a `peft_config`", "fan_in_fan_out is set to"):
            warnings.filterwarnings("ignore", message)
        try:
            inject_adapter_in_model(config, model, name)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"adapter: {' '.join(str(error).split())}") from error
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper) and name in module.modules_to_save:
            read(module.modules_to_save[name])  # own weights, which loading an adapter changes


def adapted_layers(model: Any) -> dict[str, Any]:
    """Return the LoRA layers by module name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def is_linear(layer: Any, adapter: str) -> bool:
    """Return True if the adapter is on a linear layer, not on a tensor that stacks several
    matrices, such as experts."""
    from peft.tuners.lora.layer import ParamWrapper

    return isinstance(layer.lora_A[adapter], nn.Linear) and not isinstance(layer, ParamWrapper)


def adapter_modules(model: Any) -> list[Any]:
    """Return the modules that hold adapters, one of which is active."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [
        module
        for module in model.modules()
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)
    ]


@contextmanager
def active_adapter(model: Any, name: str) -> Iterator[None]:
    """Select the adapter used by forward inside the block. peft's `set_adapter` would also change
    `requires_grad`, which sharding and the optimizer have read."""
    modules = adapter_modules(model)
    previous = [module._active_adapter for module in modules]
    try:
        for module in modules:
            module._active_adapter = [name]
        yield
    finally:
        for module, active in zip(modules, previous, strict=True):
            module._active_adapter = active


def unadapted_linears(model: Any) -> set[str]:
    """Return the names of the linear layers without an adapter, except the output layer."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    adapted = tuple(f"{layer}." for layer in adapted_layers(model))
    linears = set()
    for name, module in model.named_modules():
        is_other_linear = isinstance(module, nn.Linear | Conv1D) and module is not head
        if is_other_linear and not name.startswith(adapted):
            linears.add(name)
    return linears


def check_module_names(model: Any, config: LoraConfig) -> None:
    """Check `target_modules` and `modules_to_save` of a `peft.LoraConfig`.

    Raises:
        UserError: a name matches no module, or a module shares its weight with another one.
    """
    targets = config.target_modules
    if targets is not None and not isinstance(targets, str):
        _check_names(model, "targets", targets)
    _check_names(model, "modules_to_save", config.modules_to_save or ())


def _check_names(model: Any, setting: str, names: Iterable[str]) -> None:
    modules = [name for name, _ in model.named_modules()]
    shared = _sharing_modules(model)
    for name in names:
        matches = [x for x in modules if x == name or x.endswith(f".{name}")]
        if not matches:
            known = sorted({linear.rpartition(".")[2] for linear in unadapted_linears(model)})
            raise UserError(
                f"adapter.{setting}: the model has no {name}; its linear layers are "
                f"{', '.join(known)}"
            )
        for match in matches:
            if match in shared:
                raise UserError(
                    f"adapter.{setting}: {' and '.join(shared[match])} share one weight, which "
                    f"cannot be adapted: remove {name}"
                )


def _sharing_modules(model: Any) -> dict[str, list[str]]:
    """Return, for each module that shares a parameter, the modules that do."""
    users: dict[int, list[str]] = {}
    for name, x in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(x), []).append(name.rpartition(".")[0])
    shared = {}
    for names in users.values():
        if len(names) > 1:
            shared.update(dict.fromkeys(names, names))
    return shared
