"""Weights in 4 or 8 bits under an adapter (QLoRA, arXiv 2305.14314)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
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


def dequantized_state(model: PreTrainedModel, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the state of a model with its quantized weights dequantized; `state` itself if none is
    quantized."""
    for name, module in model.named_modules():
        if "base_layer" in module._modules:  # an adapter, which shows the weight of its base
            continue
        weight: Any = getattr(module, "weight", None)
        if type(weight).__name__ not in ("Params4bit", "Int8Params"):
            continue
        from peft.utils.integrations import dequantize_module_weight

        if type(weight).__name__ == "Int8Params" and module.state.SCB is None:
            module.state.SCB = weight.SCB  # bitsandbytes sets it in the first forward
        quantized = (f"{name}.weight", f"{name}.SCB")
        state = {key: x for key, x in state.items() if not key.startswith(quantized)}
        state[f"{name}.weight"] = dequantize_module_weight(module)
    return state


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
