"""A policy of which only a low-rank adapter is trained (LoRA, arXiv 2106.09685)."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlmods.policy.base import Policy, PolicyOutput
from rlmods.policy.fingerprint import fingerprint
from rlmods.policy.injection import adapted_layers, check_names, in_force, inject, is_linear, need_peft, other_linears, switches
from rlmods.policy.quantization import plain_state, shown_as_plain
from rlmods.types import UserError

X = TypeVar("X", bound=Tensor)
TRAINED, REFERENCE = "default", "reference"
"""Adapters by name: the first is what peft calls it, the second stands still in the same network."""
INITS = (True, False, "gaussian", "orthogonal")
"""Ways to draw A and B, as peft names them, that leave the base as it is."""
ADAPTER = "adapter_config.json"
"""The file that makes a directory an adapter's."""
FILE, BASE = "adapter_model.safetensors", "rlmods_base"
"""Where an adapter's tensors are, and in what entry of its metadata the fingerprint of the base."""
ON_DISK = "base_model.model."
"""What peft puts before every name."""
NAMED = re.compile(r"\.(?:modules_to_save|(lora_\w+))\.(default|reference)\.")
"""A tensor of an adapter, in a network that holds several; on disk it is `.lora_A.` or, of a module that is saved whole, `.`."""


class AdaptedPolicy(Policy):
    """`h = W x + scale B A x` in every adapted layer: W is frozen, A and B are trained, in float32 whatever W is.

    The adapter is injected in place, so `model` stays the transformers class that it was. A frozen copy is a second adapter in the same
    network: it costs what an adapter costs, and stands where training began, be that the base or an adapter that was loaded.
    """

    def __init__(self, policy: Policy, config: Any) -> None:
        """
        Args:
            policy: the base; its network is taken over.
            config: `peft.LoraConfig`.

        Raises:
            UserError: a layer that is not there, that others share, or that is no linear one.
        """
        base = fingerprint(policy)
        check_names(policy.model, config)
        if config.modules_to_save and policy.model.dtype != torch.float32:
            dtype = str(policy.model.dtype).removeprefix("torch.")
            raise UserError(f"adapter.modules_to_save are trained in float32, and the base is {dtype}: type policy.dtype=float32")
        if config.target_modules == "all-linear":  # to peft, experts that are one tensor are too
            config.target_modules = sorted({name.rpartition(".")[2] for name in other_linears(policy.model)})
        inject(policy.model, config, TRAINED)
        super().__init__(policy.model, policy.tokenizer, gradient_checkpointing=policy.gradient_checkpointing)
        self.dropout, self.eos_ids, self.base = policy.dropout, policy.eos_ids, base
        self.config, self.adapter = config, TRAINED
        self._settle()
        for name, layer in adapted_layers(self.model).items():
            if TRAINED not in layer.lora_A or not is_linear(layer, TRAINED):
                raise UserError(f"adapter.targets: {name} is no linear layer; type 'adapter.targets=[NAME,...]' with those that are")
            if layer.lora_variant or any(layer.lora_bias.values()):
                raise UserError(f"the adapter is more than W + B A in {name} (DoRA, a bias or the like), which is not supported")

    def forward(self, *args: Any, **kwargs: Any) -> PolicyOutput:
        """As any policy, with this adapter in force."""
        with in_force(self.model, self.adapter):
            return super().forward(*args, **kwargs)

    def trainable_tensors(self) -> dict[str, nn.Parameter]:
        """The adapter's tensors, by the names that they have on disk."""
        return self._of_adapter(dict(self.model.named_parameters()))

    def _of_adapter(self, state: Mapping[str, X]) -> dict[str, X]:
        found = {name: match for name in state if (match := NAMED.search(name)) and match[2] == self.adapter}
        return {name.replace(match[0], f".{match[1]}." if match[1] else "."): state[name] for name, match in found.items()}

    def frozen_copy(self) -> AdaptedPolicy:
        """The same network with another adapter in force while it is asked."""
        if REFERENCE not in self.model.peft_config:
            config = copy.deepcopy(self.config)
            config.lora_dropout = 0.0  # the trained one's is off already
            inject(self.model, config, REFERENCE)
            self.eval()
        twin = copy.copy(self)  # one network, two views of it
        twin.adapter = REFERENCE
        self._settle()
        twin.load_tensors(self.trainable_tensors())
        return twin

    def weights(self, state: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
        """`W + scale B A` by the names that the base has; the network does not change.

        `state`: full weights of `self.model`, where this copy of them is sharded.
        """
        state = plain_state(self.model, self.model.state_dict() if state is None else state)
        layers, copied = adapted_layers(self.model), f".modules_to_save.{self.adapter}."
        for name, x in state.items():
            place, _, key = name.rpartition(".base_layer.")
            if place in layers:
                yield f"{place}.{key}", self._merged(layers[place], place, x, state) if key == "weight" else x
            elif copied in name:
                yield name.replace(copied, "."), x
            elif name.split(".lora_")[0] not in layers and ".modules_to_save." not in name and ".original_module." not in name:
                yield name, x

    @torch.no_grad()
    def _merged(self, layer: Any, place: str, weight: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        a, b = (state[f"{place}.lora_{x}.{self.adapter}.weight"].float() for x in "AB")
        delta: Tensor = layer.scaling[self.adapter] * (b @ a)
        return (weight.float() + (delta.T if layer.fan_in_fan_out else delta)).to(weight.dtype)

    def with_adapter(self, config: Any) -> AdaptedPolicy:
        """Itself: an adapter that was loaded is trained on.

        Raises:
            UserError: it has another shape than was asked for.
        """
        have = {"rank": self.config.r, "alpha": self.config.lora_alpha, "rslora": self.config.use_rslora}
        want = {"rank": config.r, "alpha": config.lora_alpha, "rslora": config.use_rslora}
        for key, name in (("targets", "target_modules"), ("modules_to_save", "modules_to_save")):
            have[key], want[key] = (_names(getattr(c, name)) for c in (self.config, config))
        if want["targets"] == "all-linear" and not other_linears(self.model):
            have["targets"] = "all-linear"
        if differ := [f"adapter.{key}={_typed(value)}" for key, value in have.items() if value != want[key]]:
            raise UserError(f"the adapter that is to be trained on has another shape: type {' '.join(differ)}")
        return self

    def merged(self) -> Policy:
        """The same policy without an adapter, every weight of it trained. This one is used up."""
        weights = dict(self.weights())
        for name, module in list(self.model.named_modules()):
            for inner in ("base_layer", "original_module"):
                if inner in module._modules:
                    self.model.set_submodule(name, module.get_submodule(inner))
        del self.model.peft_config
        self.model.load_state_dict(weights)
        whole = Policy(self.model.requires_grad_(True), self.tokenizer, gradient_checkpointing=self.gradient_checkpointing)
        whole.dropout, whole.eos_ids = self.dropout, self.eos_ids
        return whole

    @property
    def shares_network(self) -> bool:
        return self.adapter == REFERENCE

    def write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        """The merged model, and in `adapter/` the adapter as peft saves it."""
        from safetensors.torch import save_file

        with shown_as_plain(self.model):
            super().write(folder, dict(self.weights(state)))
        config = copy.deepcopy(self.config)
        source = str(getattr(self.model, "name_or_path", "") or "")
        config.base_model_name_or_path = (str(Path(source).absolute()) if source and Path(source).is_dir() else source) or None
        config.inference_mode = True
        config.save_pretrained(folder / "adapter")
        tensors = {f"{ON_DISK}{name}": x.detach().cpu().contiguous() for name, x in self._of_adapter(state).items()}
        save_file(tensors, folder / "adapter" / FILE, {"format": "pt", BASE: f"{self.model.dtype} {self.base}"})

    def _settle(self) -> None:
        """The trained adapter in force, in float32, and nothing else trained."""
        for module in switches(self.model):
            module._active_adapter = [TRAINED]
        for name, x in self.model.named_parameters():
            match = NAMED.search(name)
            x.requires_grad_(match is not None and match[2] == TRAINED)
            x.data = x.data.float() if match else x.data


def base_of(folder: Path) -> str:
    """The model that an adapter was trained on, as the adapter names it.

    Raises:
        UserError: it names none, or peft is not installed.
    """
    need_peft(f"the adapter in {str(folder)!r}")
    if not (base := json.loads((folder / ADAPTER).read_text()).get("base_model_name_or_path")):
        raise UserError(f"the adapter in {str(folder)!r} does not name its base: give the run, or the merged model")
    return str(base)


def load_adapter(folder: Path, base: Policy) -> AdaptedPolicy:
    """A LoRA adapter as peft saves it, on its base.

    Raises:
        UserError: it is no LoRA adapter, or does not fit.
    """
    from peft import LoraConfig
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    said = json.loads((folder / ADAPTER).read_text())
    kind, init = said.get("peft_type"), said.get("init_lora_weights", True)
    if kind != "LORA" or init not in INITS:
        what = f"init_lora_weights={init}" if kind == "LORA" else kind
        raise UserError(f"the adapter in {str(folder)!r} ({what}) is not supported: give a LoRA adapter on an unchanged base")
    try:
        config, tensors = LoraConfig.from_pretrained(folder), load_file(folder / FILE)
        with safe_open(folder / FILE, "pt") as file:
            trained_on = (file.metadata() or {}).get(BASE)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"the adapter in {str(folder)!r} cannot be loaded ({str(error).strip().splitlines()[0]})") from error
    config.inference_mode = False
    have = f"{base.model.dtype} {fingerprint(base)}"
    if trained_on is not None and trained_on.split()[0] == have.split()[0] and trained_on != have:  # in another dtype nobody can tell
        raise UserError(
            f"the adapter in {str(folder)!r} was trained on other weights than {said['base_model_name_or_path']!r} has: give those"
        )
    policy = AdaptedPolicy(base, config)
    try:
        policy.load_tensors({name.removeprefix(ON_DISK): x for name, x in tensors.items()})
    except ValueError as error:
        raise UserError(f"the adapter in {str(folder)!r} does not fit its base: {error}") from error
    return policy


def _names(names: Any) -> Any:
    return names if isinstance(names, str) else sorted(names or ())


def _typed(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
