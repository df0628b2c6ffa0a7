"""Float32 products of hidden states and output weights, also under autocast and with 16-bit
weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def float32_linear(
    hidden: Float[Tensor, "... H"], weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "... V"]:
    """Return `hidden weight^T + bias` in float32, also under autocast and with 16-bit weights."""
    if is_exact(hidden, weight):
        return linear(hidden, weight, bias)
    logits: Tensor = _Linear.apply(hidden, weight)  # type: ignore[no-untyped-call]
    return logits if bias is None else logits + bias.float()


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the data type of autocast on the device of a tensor, None without autocast."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def is_exact(hidden: Tensor, weight: Tensor) -> bool:
    """Return True if a product with these weights is to be computed in their precision: neither
    autocast nor 16-bit weights."""
    return weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(
        hidden.device.type
    )


class _Linear(torch.autograd.Function):
    """`x W^T` with 16-bit products and float32 sums where the device has them, else in float32;
    also in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _matmul(gradient, weight).to(x.dtype) if needs_x else None,
            _matmul(rows.t(), x.flatten(0, -2)).to(weight.dtype) if needs_weight else None,
        )


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    with product_precision(a.device.type, exact=False):
        return a.float() @ b.float()


@contextmanager
def product_precision(device: str, exact: bool) -> Iterator[None]:
    """Compute products of float32 matrices exactly, or with 16-bit factors and float32 sums where
    the device has them: TF32 on GPUs, bfloat16 on processors. Without autocast in both cases."""
    before = torch.get_float32_matmul_precision()
    if not exact:
        torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
