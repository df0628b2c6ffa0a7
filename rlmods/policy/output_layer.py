"""The output layer, with logits in float32."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


def float32_output(layer: nn.Module, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Return the layer's output for these hidden states without rounding it to 16 bits, as autocast and 16-bit weights do: a logit of 20
    would be rounded to a multiple of 1/8. The layer runs as a module, with its hooks. One that is not a plain linear layer (an adapted one)
    computes as it does by itself."""
    with _Float32Linear(layer) if type(layer) is nn.Linear else nullcontext():
        output: Tensor = layer(hidden)
    return output


class _Float32Linear(TorchFunctionMode):
    """Compute the product with the weight of a linear layer by `float32_linear`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is linear and args[1] is self.layer.weight:
            return float32_linear(*args)
        return func(*args, **(kwargs or {}))


def float32_linear(
    hidden: Float[Tensor, "... H"], weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "... V"]:
    """Return `hidden weight^T + bias` in float32, also under autocast and with 16-bit weights."""
    if _computes_float32(hidden, weight):
        return linear(hidden, weight, bias)
    logits: Tensor = _Linear.apply(hidden, weight)  # type: ignore[no-untyped-call]
    return logits if bias is None else logits + bias.float()


def _computes_float32(hidden: Tensor, weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and not torch.is_autocast_enabled(hidden.device.type)


class _Linear(torch.autograd.Function):
    """`x W^T` with 16-bit products and float32 sums where the device has them, else in float32; also in backward."""

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
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # TF32 on GPUs, bfloat16 with float32 sums on processors that have it
    try:
        with torch.autocast(a.device.type, enabled=False):
            return a.float() @ b.float()
    finally:
        torch.set_float32_matmul_precision(before)
