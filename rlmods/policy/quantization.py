"""Weights in 4 or 8 bits under an adapter (QLoRA, arXiv 2305.14314)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlmods.errors import UserError


def quantization_config(kind: Literal["nf4", "int8"], dtype: torch.dtype) -> Any:
    """Return the transformers configuration of `nf4` (4 bits, with quantized scales, computing in
    `dtype`) or `int8`.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise UserError(
            f"policy.quantization={kind} needs bitsandbytes: pip install 'rlmods[qlora]', or "
            "type policy.quantization=null"
        )
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    options = {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **options)


QUANTIZED = ("Params4bit", "Int8Params")
"""Classes of the quantized weights of bitsandbytes."""
BESIDE_WEIGHTS = ("SCB", "weight_format")
"""Entries of the state of a layer with weights in 8 bits that belong to them."""


def is_quantized(network: nn.Module) -> bool:
    """Return True if some weights of a network are quantized."""
    return any(type(x).__name__ in QUANTIZED for x in network.parameters())


class DequantizedState(Mapping[str, Tensor]):
    """The state of a model. A quantized weight is dequantized when it is read, one at a time."""

    def __init__(self, model: PreTrainedModel, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.quantized: dict[str, Any] = {}
        """Module by the name of its weight."""
        parts: list[str] = []
        for name, module in model.named_modules():
            if "base_layer" in module._modules:  # an adapter, which shows the weight of its base
                continue
            kind = type(getattr(module, "weight", None)).__name__
            if kind not in QUANTIZED:
                continue
            if kind == "Int8Params" and module.state.SCB is None:
                module.state.SCB = module.weight.SCB  # bitsandbytes sets it in the first forward
            parts += [f"{name}.weight", f"{name}.SCB"]
            self.quantized[f"{name}.weight"] = module
        plain = [key for key in state if not key.startswith(tuple(parts))]
        self.names = (*plain, *self.quantized)

    def __getitem__(self, name: str) -> Tensor:
        module = self.quantized.get(name)
        if module is None:
            return self.state[name]
        from peft.utils.integrations import dequantize_module_weight

        weight: Tensor = dequantize_module_weight(module)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def has_int8_products(model: PreTrainedModel) -> bool:
    """Return True if products of the model round activations to 8 bits, with scales that depend on
    the other tokens of a batch (LLM.int8(), arXiv 2208.07339)."""
    return any(type(x).__name__ == "Int8Params" for x in model.parameters())


@contextmanager
def without_quantization_config(model: PreTrainedModel) -> Iterator[None]:
    """Remove the model's quantization settings inside the block, so that it is saved as an ordinary
    model."""
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        yield
        return
    quantizer = model.hf_quantizer
    model.hf_quantizer = None
    del model.config.quantization_config
    try:
        yield
    finally:
        model.hf_quantizer = quantizer
        model.config.quantization_config = config
