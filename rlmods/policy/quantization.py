"""Weights in 4 or 8 bits under an adapter (QLoRA, arXiv 2305.14314)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rlmods.errors import UserError

KINDS = ("nf4", "int8")


def quantization_config(kind: str, dtype: torch.dtype) -> Any:
    """Return the transformers configuration of `nf4` (4 bits, with quantized scales, computing in
    `dtype`) or `int8`.

    Raises:
        UserError: an unknown kind, or bitsandbytes is not installed.
    """
    if kind not in KINDS:
        raise UserError(f"policy.quantization={kind}: must be one of {', '.join(KINDS)}, or null")
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


def dequantized_state(model: Any, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the state of a model with its quantized weights dequantized; `state` itself if none is
    quantized."""
    for name, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if type(weight).__name__ in ("Params4bit", "Int8Params"):
            from peft.utils.integrations import dequantize_module_weight

            if getattr(getattr(module, "state", None), "SCB", weight) is None:
                module.state.SCB = weight.SCB  # bitsandbytes sets it in the first forward
            state = {
                key: x
                for key, x in state.items()
                if not key.startswith(f"{name}.weight") and key != f"{name}.SCB"
            }
            state[f"{name}.weight"] = dequantize_module_weight(module)
    return state


@contextmanager
def without_quantization_config(model: Any) -> Iterator[None]:
    """Remove the model's quantization settings inside the block, so that it is saved as an ordinary
    model."""
    quantizer, config = (
        getattr(model, "hf_quantizer", None),
        getattr(model.config, "quantization_config", None),
    )
    if config is not None:
        model.hf_quantizer = None
        del model.config.quantization_config
    try:
        yield
    finally:
        if config is not None:
            model.hf_quantizer, model.config.quantization_config = quantizer, config
