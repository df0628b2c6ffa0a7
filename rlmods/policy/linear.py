"""Linear layers in float32: by oneDNN on x86-64 processors, and also under autocast or with 16-bit
weights for logits.

PyTorch computes them by MKL, which uses half of the vector width of processors that are not
Intel's. oneDNN, which PyTorch uses for 16-bit products, is about twice as fast there, and as fast
as MKL on Intel's. Both sum in float32, in another order."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

MIN_PRODUCTS = 2**20
"""Scalar products below which a call of oneDNN takes longer than it saves."""
ROWS = 32
"""Rows of a product for which the layout of packed weights is chosen; others are right too."""
_IS_X86 = platform.machine() in ("x86_64", "AMD64")


class CPULinear(nn.Linear):
    """`nn.Linear` by `cpu_linear`, or within `packed_weights` by weights in the layout of
    oneDNN."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # inductor has no oneDNN for weights that change
            return super().forward(x)
        packed = packed_weight(self)
        if packed is None:
            return cpu_linear(x, self.weight, self.bias)
        return packed_linear(x, packed, self.bias)


@contextmanager
def packed_weights(network: nn.Module, output_layer: nn.Module) -> Iterator[None]:
    """Within the block, compute linear layers without a gradient by copies of their weights in the
    layout of oneDNN: in the data type of autocast, or their own. It saves the cast and the change
    of layout in each of many forwards of few rows, as in sampling. The `output_layer`, whose
    products stay in float32, is computed by whoever reads its `packed_weight`.

    Changes of the weights within the block are not seen."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    dtypes = packed_dtypes(network, output_layer, autocast)
    try:
        for layer, dtype in dtypes.items():
            weight = layer.weight.detach()
            if type(layer.weight) is nn.Parameter and weight.device.type == "cpu":
                layer.packed = pack(weight.to(dtype))
        yield
    finally:
        for layer in dtypes:
            layer.__dict__.pop("packed", None)


def packed_dtypes(
    network: nn.Module, output_layer: nn.Module, autocast: torch.dtype | None
) -> dict[nn.Linear, torch.dtype]:
    """Return the layers that `packed_weights` copies on this processor, and the data types of the
    copies, given that of autocast."""
    if not _has_onednn():
        return {}
    found = {torch.float32, torch.bfloat16} if _has_bfloat16() else {torch.float32}
    dtypes: dict[nn.Linear, torch.dtype] = {}
    for layer in network.modules():
        if not isinstance(layer, nn.Linear):
            continue
        is_output = layer is output_layer and type(layer) is nn.Linear
        if isinstance(layer, CPULinear) or is_output:
            weight_dtype: torch.dtype = layer.weight.dtype
            dtype = torch.float32 if layer is output_layer else autocast or weight_dtype
            if dtype in found and weight_dtype in (torch.float32, torch.bfloat16):
                dtypes[layer] = dtype
    return dtypes


def pack(weight: Tensor) -> Tensor:
    """Return a weight in the layout of oneDNN."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return packed


def packed_weight(layer: nn.Module) -> Tensor | None:
    """Return the packed weight of a layer within `packed_weights`, None elsewhere and where
    gradients are recorded."""
    return None if torch.is_grad_enabled() else layer.__dict__.get("packed")


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x W^T + b` in the data type of the packed weight."""
    rows = x.reshape(-1, x.shape[-1]).to(packed.dtype)
    output: Tensor = torch.ops.mkldnn._linear_pointwise(
        rows, packed, None if bias is None else bias.to(packed.dtype), "none", [], ""
    )
    return output.view(*x.shape[:-1], -1)


def use_cpu_linear(network: nn.Module, *, except_for: nn.Module | None = None) -> None:
    """Compute all plain linear layers of a network by `cpu_linear`, in place. Parameters and their
    names stay."""
    for module in network.modules():
        if type(module) is nn.Linear and module is not except_for:
            module.__class__ = CPULinear


def cpu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x W^T + b`: by oneDNN for float32 on an x86-64 processor, outside of autocast, else
    as PyTorch does."""
    if not uses_onednn(x, weight):
        return linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        output: Tensor = _OneDNNLinear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        output = _product(rows, weight, bias)
    return output.view(*x.shape[:-1], -1)


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if `cpu_linear` computes this product by oneDNN."""
    return (
        type(weight) in (nn.Parameter, Tensor)
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() * len(weight) >= MIN_PRODUCTS
        and _has_onednn()
        and not torch.is_autocast_enabled("cpu")
    )


def _has_onednn() -> bool:
    is_built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return _IS_X86 and bool(is_built) and bool(torch.backends.mkldnn.enabled)


def _has_bfloat16() -> bool:
    """Return True if oneDNN computes products of bfloat16 on this processor: with AVX-512, not with
    AVX2."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if needs_x else None,
            _product(gradient.t(), x.t()) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.detach(), bias, "none", [], "")
    return result


def float32_linear(
    hidden: Float[Tensor, "... H"], weight: Float[Tensor, "V H"], bias: Float[Tensor, " V"] | None
) -> Float[Tensor, "... V"]:
    """Return `hidden weight^T + bias` in float32, also under autocast and with 16-bit weights."""
    if is_exact(hidden, weight):
        return linear(hidden, weight, bias)
    logits: Tensor = _Float32Linear.apply(hidden, weight)  # type: ignore[no-untyped-call]
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


class _Float32Linear(torch.autograd.Function):
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
    if has_float32_sums(a, b):
        rows = torch.mm(a.flatten(0, -2), b, out_dtype=torch.float32)
        return rows.view(*a.shape[:-1], -1)
    with product_precision(a.device.type):
        return a.float() @ b.float()


def has_float32_sums(a: Tensor, b: Tensor) -> bool:
    """Return True if the device multiplies these matrices as they are and returns float32: 16 bits
    on GPUs. Others are cast first."""
    is_16_bit = a.dtype in (torch.bfloat16, torch.float16)
    return a.device.type == "cuda" and is_16_bit and a.dtype == b.dtype


@contextmanager
def product_precision(device: str) -> Iterator[None]:
    """Compute products of float32 matrices with 16-bit factors and float32 sums where the device
    has them: TF32 on GPUs, bfloat16 on processors. Without autocast."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
