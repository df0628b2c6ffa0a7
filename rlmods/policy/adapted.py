"""A policy with a trained low-rank adapter on frozen weights (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from rlmods.distributed.deferred import cpu_placeholders, read_on_every_rank
from rlmods.errors import UserError, in_one_line
from rlmods.policy.base import Policy, PolicyOutput
from rlmods.policy.files import fingerprint, read_config
from rlmods.policy.quantization import DequantizedState, without_quantization_config

if TYPE_CHECKING:
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel


X = TypeVar("X", bound=Tensor)
TRAINED = "default"
"""Name of the trained adapter in the network, peft's default."""
REFERENCE = "reference"
"""Name of a frozen copy of it."""
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal"),
    "modules_to_save": (None, []),
    "target_parameters": (None, []),
    "use_dora": (None, False),
    "lora_bias": (None, False),
}
"""Settings in peft's files with which an adapted layer is `W + scale B A` for an unchanged W; None:
not set."""
ADAPTER_CONFIG = "adapter_config.json"
"""A directory with this file holds an adapter."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""File of the adapter's tensors."""
BASE_KEY = "rlmods_base"
"""Entry of its metadata with the fingerprint of the base."""
PREFIX = "base_model.model."
"""Prefix of every tensor name in peft's files."""
ADAPTER_TENSOR = re.compile(r"\.(lora_\w+)\.(default|reference)\.")
"""Matches an adapter's tensor in a network with several adapters. In peft's files the match is
`.lora_A.`."""


class AdaptedPolicy(Policy):
    """A policy with `h = W x + scale B A x` in every adapted layer: W is frozen, A and B are
    trained in float32 for any dtype of W.

    The adapter is injected in place, so the class of `model` does not change. A frozen copy is a
    second adapter in the same network, so it needs only the memory of an adapter; it holds the
    weights from which training starts: the base, or a loaded adapter."""

    def __init__(self, policy: Policy, config: LoraConfig) -> None:
        """
        Args:
            policy: the base; its network is modified in place.

        Raises:
            UserError: a target does not exist, shares its weight with another module, or is not a
            linear layer.
        """
        base_fingerprint = fingerprint(policy)
        if not isinstance(config.target_modules, str):
            check_targets(policy.model, config.target_modules or ())
        # peft would also adapt experts stacked in one tensor
        if config.target_modules == "all-linear":
            config.target_modules = sorted(
                {name.rpartition(".")[2] for name in unadapted_linears(policy.model)}
            )
        inject(policy.model, config, TRAINED)
        super().__init__(
            policy.model,
            policy.tokenizer,
            gradient_checkpointing=policy.gradient_checkpointing,
            compiles=policy.compiles,
            flex_attention=policy.flex_attention,
        )
        self.dropout = policy.dropout
        self.eos_ids = policy.eos_ids
        self.control_tokens_in_data = policy.control_tokens_in_data
        self.base_fingerprint = base_fingerprint
        self.config = config
        self.adapter = TRAINED
        self._reset_adapters()
        for name, layer in adapted_layers(self.model).items():
            if TRAINED not in layer.lora_A or not isinstance(layer.lora_A[TRAINED], nn.Linear):
                raise UserError(
                    f"adapter.targets: {name} is not a linear layer: type "
                    "'adapter.targets=[NAME,...]' with linear layers"
                )
            if layer.lora_variant:
                raise UserError(
                    f"the adapter in {name} has more than W + B A, which is not supported: use a "
                    "plain LoRA adapter"
                )

    def forward(self, *args: Any, **kwargs: Any) -> PolicyOutput:
        """Run `Policy.forward` with this policy's adapter active."""
        with active_adapter(self.model, self.adapter):
            return super().forward(*args, **kwargs)

    def output_layer(self) -> Callable[[Tensor], Tensor]:
        """Return `Policy.output_layer` with this policy's adapter active."""
        layer = super().output_layer()

        def adapted(hidden: Tensor) -> Tensor:
            with active_adapter(self.model, self.adapter):
                return layer(hidden)

        return adapted

    def trainable_tensors(self) -> dict[str, nn.Parameter]:
        """Return the adapter's tensors, by their names in peft's files without the prefix."""
        tensors = {}
        for name, x in self.model.named_parameters():
            found = self._adapter_name(name)
            if found is not None:
                tensors[found] = x
        return tensors

    def _adapter_name(self, name: str) -> str | None:
        """Return the name in peft's files, without the prefix, of a tensor of this adapter; None
        for other tensors."""
        match = ADAPTER_TENSOR.search(name)
        if match is None or match[2] != self.adapter:
            return None
        return name.replace(match[0], f".{match[1]}.")

    def frozen_copy(self) -> AdaptedPolicy:
        """Return a policy on the same network that uses a second, frozen adapter with the current
        weights."""
        if REFERENCE not in self.model.peft_config:
            config = copy.deepcopy(self.config)
            config.lora_dropout = 0.0  # the trained adapter's dropout is already off
            inject(self.model, config, REFERENCE)
            self.eval()
        reference = copy.copy(self)  # shallow: both use one network
        reference.adapter = REFERENCE
        reference.shares_network = True
        self._reset_adapters()
        reference.load_tensors(self.trainable_tensors())
        return reference

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the merged weights, `W + scale B A`, by their names in the base; the network does
        not change.

        `state`: full state of `self.model`, for a sharded model.
        """
        state = DequantizedState(self.model, self.model.state_dict() if state is None else state)
        layers = adapted_layers(self.model)
        for name, x in state.items():
            layer, _, key = name.rpartition(".base_layer.")
            if layer in layers:
                if key == "weight":
                    a, b = (state[f"{layer}.lora_{part}.{self.adapter}.weight"] for part in "AB")
                    x = merged_weight(layers[layer], self.adapter, x, a, b)
                yield f"{layer}.{key}", x
            elif name.split(".lora_")[0] not in layers:
                yield name, x

    def check_config(self, config: LoraConfig) -> None:
        """Check that a requested `peft.LoraConfig` matches this adapter, which was loaded to
        continue its training.

        Raises:
            UserError: rank, scale or modules differ.
        """
        loaded = _settings(self.config)
        requested = _settings(config)
        if config.target_modules == "all-linear":  # the default: those of the loaded adapter
            requested["targets"] = loaded["targets"]
        overrides = []
        for key, value in loaded.items():
            if value != requested[key]:
                overrides.append(f"adapter.{key}={value}")
        if overrides:
            raise UserError(
                f"the loaded adapter has different settings: type {' '.join(overrides)}"
            )

    def merged(self) -> Policy:
        """Return a policy with the merged weights, all of them trained. It takes over the network:
        do not use this one afterwards."""
        read_on_every_rank(self, "an adapter is merged")
        weights = dict(self.weights())
        for name, module in list(self.model.named_modules()):
            if "base_layer" in module._modules:
                self.model.set_submodule(name, module.get_submodule("base_layer"))
        del self.model.peft_config
        self.model.load_state_dict(weights)
        policy = Policy(
            self.model.requires_grad_(True),
            self.tokenizer,
            gradient_checkpointing=self.gradient_checkpointing,
            compiles=self.compiles,
            flex_attention=self.flex_attention,
        )
        policy.dropout = self.dropout
        policy.eos_ids = self.eos_ids
        policy.control_tokens_in_data = self.control_tokens_in_data
        return policy

    def write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """Write the merged model, and in `adapter/` the adapter in peft's format."""
        from safetensors.torch import save_file

        with without_quantization_config(self.model):
            super().write(folder, dict(self.weights(state)))
        config = copy.deepcopy(self.config)
        source = str(self.model.name_or_path or "")
        if source and Path(source).is_dir():
            source = str(Path(source).absolute())
        config.base_model_name_or_path = source or None
        config.inference_mode = True
        config.save_pretrained(folder / "adapter")
        metadata = {"format": "pt", BASE_KEY: f"{self.model.dtype} {self.base_fingerprint}"}
        save_file(self.adapter_file(state), folder / "adapter" / ADAPTER_WEIGHTS, metadata)

    def adapter_file(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the adapter's tensors by their names in peft's files, from the full state of
        `model`. With a sharded model, every rank calls this."""
        tensors = {}
        for name in state:
            found = self._adapter_name(name)
            if found is not None:
                tensors[f"{PREFIX}{found}"] = state[name].detach().cpu().contiguous()
        return tensors

    def _reset_adapters(self) -> None:
        """Make the trained adapter the active one, keep adapters in float32 and freeze everything
        else."""
        for layer in adapted_layers(self.model).values():
            layer._active_adapter = [TRAINED]
        for name, x in self.model.named_parameters():
            match = ADAPTER_TENSOR.search(name)
            x.requires_grad_(match is not None and match[2] == TRAINED)
            x.data = x.data.float() if match else x.data


@torch.no_grad()
def merged_weight(layer: LoraLayer, adapter: str, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return `W + scale B A`. peft's `merge` would change the network, and cannot merge shards;
    this also rounds a 16-bit sum once."""
    with torch.autocast(weight.device.type, enabled=False):
        delta: Tensor = layer.scaling[adapter] * (b.float() @ a.float())
    if layer.fan_in_fan_out:
        delta = delta.T
    return (weight.float() + delta).to(weight.dtype)


def base_model_name(folder: Path) -> str:
    """Return the name of the model that an adapter was trained on, from the adapter's
    configuration.

    Raises:
        UserError: the configuration has no such name, or peft is not installed.
    """
    require_peft(f"the adapter in {str(folder)!r}")
    base = read_config(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not base:
        raise UserError(
            f"the adapter in {str(folder)!r} does not name its base: type the run, or the "
            "merged model"
        )
    return str(base)


def load_adapter(folder: Path, base: Policy) -> AdaptedPolicy:
    """Load a LoRA adapter saved by peft, on its base.

    Raises:
        UserError: it is not a LoRA adapter, or does not fit the base.
    """
    from peft import LoraConfig
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    saved = read_config(folder / ADAPTER_CONFIG)
    for key, values in SUPPORTED.items():
        if saved.get(key) not in values:
            raise UserError(
                f"the adapter in {str(folder)!r} ({key}={saved.get(key)}) is not supported: use a "
                "LoRA adapter that keeps the base unchanged"
            )
    try:
        config = LoraConfig.from_pretrained(folder)
        tensors = load_file(folder / ADAPTER_WEIGHTS)
        with safe_open(folder / ADAPTER_WEIGHTS, "pt") as file:
            expected = (file.metadata() or {}).get(BASE_KEY)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(
            f"the adapter in {str(folder)!r} cannot be loaded "
            f"({str(error).strip().splitlines()[0]})"
        ) from error
    config.inference_mode = False
    actual = f"{base.model.dtype} {fingerprint(base)}"
    # Fingerprints of different data types cannot be compared.
    if expected is not None and expected.split()[0] == actual.split()[0] and expected != actual:
        name = saved["base_model_name_or_path"]
        raise UserError(
            f"the adapter in {str(folder)!r} was not trained on the current weights of "
            f"{name!r}: restore its original base"
        )
    policy = AdaptedPolicy(base, config)
    try:
        policy.load_tensors({name.removeprefix(PREFIX): x for name, x in tensors.items()})
    except ValueError as error:
        raise UserError(f"the adapter in {str(folder)!r} does not fit its base: {error}") from error
    return policy


def _settings(config: LoraConfig) -> dict[str, str]:
    """Return the settings of an adapter by their names in `adapter=lora`, as they are typed."""
    targets = config.target_modules
    return {
        "rank": str(config.r),
        "alpha": str(config.lora_alpha),
        "rslora": str(config.use_rslora).lower(),
        "targets": targets if isinstance(targets, str) else f"[{','.join(sorted(targets))}]",
    }


def require_peft(feature: str) -> None:
    """Check that peft is installed, which `feature` needs.

    Raises:
        UserError: peft is not installed.
    """
    if find_spec("peft") is None:
        raise UserError(f"{feature} needs peft: pip install 'rlmods[lora]'")


def inject(model: PreTrainedModel, config: LoraConfig, name: str) -> None:
    """Add an adapter to the network, make it the active one and freeze everything else.

    Raises:
        UserError: peft rejects the configuration.
    """
    from peft import inject_adapter_in_model

    # peft creates adapters on the device of the base
    with cpu_placeholders(model), warnings.catch_warnings():
        # of a second adapter, which is intended, and of fan_in_fan_out, which peft sets itself
        warnings.simplefilter("ignore")
        try:
            inject_adapter_in_model(config, model, name)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"adapter: {in_one_line(error)}") from error


def adapted_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """Return the LoRA layers by module name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


@contextmanager
def active_adapter(model: nn.Module, name: str) -> Iterator[None]:
    """Select the adapter used by forward inside the block; outside it is `TRAINED`. peft's
    `set_adapter` would also change `requires_grad`, which sharding and the optimizer have read."""
    layers = adapted_layers(model).values()
    try:
        for layer in layers:
            layer._active_adapter = [name]
        yield
    finally:
        for layer in layers:
            layer._active_adapter = [TRAINED]


def unadapted_linears(model: PreTrainedModel) -> set[str]:
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


def check_targets(model: PreTrainedModel, names: Iterable[str]) -> None:
    """Check `adapter.targets`.

    Raises:
        UserError: a name matches no module, or an output layer that shares its weight.
    """
    head = model.get_output_embeddings()
    is_tied = head.weight is model.get_input_embeddings().weight
    for name in names:
        matches = [x for key, x in model.named_modules() if f".{key}".endswith(f".{name}")]
        if not matches:
            known = sorted({linear.rpartition(".")[2] for linear in unadapted_linears(model)})
            raise UserError(
                f"adapter.targets: the model has no {name}; its linear layers are "
                f"{', '.join(known)}"
            )
        if is_tied and head in matches:
            raise UserError(
                f"adapter.targets: {name} shares its weight with the embeddings, which cannot be "
                f"adapted: remove {name}"
            )
