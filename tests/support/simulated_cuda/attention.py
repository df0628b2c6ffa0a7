"""Attention on the device: which kernel a GPU takes, and the result of the CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.support.simulated_cuda import counts
from tests.support.simulated_cuda.tensor import SimulatedTensor

plain_attention = functional.scaled_dot_product_attention


def kernel(
    query: Tensor, key: Tensor, dtype: torch.dtype, mask: Tensor | None, is_causal: bool
) -> str:
    """Return the kernel that torch 2.11 to 2.13 takes on an H100 without cuDNN. Flash needs 16 bits
    and takes no mask; the memory-efficient kernel takes both, but no heads that share keys."""
    is_square = query.shape[2] == key.shape[2] or query.shape[2] == 1
    is_16_bit = dtype in (torch.bfloat16, torch.float16)
    if is_16_bit and mask is None and query.shape[-1] <= 256 and (is_square or not is_causal):
        return "flash"
    return "efficient" if query.shape[1] == key.shape[1] else "math"


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`, also of tensors of the device."""
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
    }
    if not isinstance(query, SimulatedTensor):
        return plain_attention(query, key, value, attn_mask, **options)
    dtype = query.dtype
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
    call = counts.Attention(
        kernel(query, key, dtype, attn_mask, is_causal),
        *(str(dtype).removeprefix("torch."), tuple(query.shape), tuple(key.shape)),
        *(str(x.dtype).removeprefix("torch.") for x in (key, value)),
    )
    counts.attend(call)
    casts = [x.to(dtype) for x in (query, key, value)]
    output: Tensor = _Attention.apply(*casts, attn_mask, options)  # type: ignore[no-untyped-call]
    return output


class _Attention(torch.autograd.Function):
    """One kernel in each direction."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: dict[str, Any]
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.options = options
        counts.launch("attention")
        return SimulatedTensor(plain_attention(*_data(query, key, value), _mask(mask), **options))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask = ctx.saved_tensors
        counts.launch("attention backward")
        inputs = [x.requires_grad_() for x in _data(query, key, value)]
        with torch.enable_grad():
            output = plain_attention(*inputs, _mask(mask), **ctx.options)
        gradients = torch.autograd.grad(output, inputs, *_data(gradient))
        return *map(SimulatedTensor, gradients), None, None


def _data(*tensors: Any) -> list[Tensor]:
    return [x.held.detach() for x in tensors]


def _mask(mask: Any) -> Tensor | None:
    return None if mask is None else mask.held
