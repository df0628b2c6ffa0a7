"""Log-probabilities and entropies from hidden states, without the logits of all tokens in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlmods.ops import is_exact, product_precision
from rlmods.policy.cpu_linear import cpu_linear

LOGITS_PER_CHUNK = {"cpu": 2**23, "cuda": 2**26}
"""Maximum number of logits in memory, by device. Backward computes those of a chunk again. Chunks of 32 MiB of float32 stay near the cache
of a processor and are not returned to the system after each use; a GPU needs larger products, and reads all weights for each chunk."""


@dataclass(frozen=True)
class LogitTransform:
    """`cap tanh(scale x / cap) / temperature`, which some architectures apply to the outputs x of their output layer; cap 0: no tanh."""

    scale: float = 1.0
    cap: float = 0.0
    temperature: float = 1.0

    def apply(self, logits: Tensor) -> Tensor:
        """Return transformed logits."""
        factor = self.scale / self.temperature
        if self.cap:
            return torch.tanh(logits * (self.scale / self.cap)) * (self.cap / self.temperature)
        return logits if factor == 1 else logits * factor

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform in place, without a gradient."""
        factor = self.scale / self.temperature
        if self.cap:
            return logits.mul_(self.scale / self.cap).tanh_().mul_(self.cap / self.temperature)
        return logits if factor == 1 else logits.mul_(factor)

    def backward_(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn the gradient of transformed `logits` into that of the outputs of the layer, in place."""
        factor = self.scale / self.temperature
        if self.cap:
            gradient.mul_(1 - (logits * (self.temperature / self.cap)).square_())
        return gradient if factor == 1 else gradient.mul_(factor)


def logits_per_chunk(device: str) -> int:
    """Return the maximum number of logits in memory on a type of device."""
    return LOGITS_PER_CHUNK.get(device, LOGITS_PER_CHUNK["cuda"])


class TokenScores(NamedTuple):
    """Scores of n tokens, float32."""

    logprobs: Float[Tensor, " n"]
    """Natural log-probability."""
    entropy: Float[Tensor, " n"]
    """Entropy of the distribution of the token, nats."""


def linear_logprobs(
    hidden: Float[Tensor, "n H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " n"],
    transform: LogitTransform,
    *,
    entropy_gradient: bool = False,
) -> TokenScores:
    r"""Return log-probabilities of `targets` and entropies of the distributions, from l = transform(h W^T + b):

        log pi(y) = l_y - log sum_v exp(l_v)                  H = -sum_v pi(v) log pi(v)

    whose gradients are  d log pi(y) / d l_v = 1[v = y] - pi(v)  and  d H / d l_v = -pi(v) (log pi(v) + H).

    Logits, float32 (float64 for weights of float64), exist for `logits_per_chunk / V` tokens at a time, also in backward, which computes
    them again. The entropy carries a gradient only with `entropy_gradient`.
    """
    logprobs, entropy = _LinearLogprobs.apply(hidden, weight, bias, targets, transform, entropy_gradient)  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, entropy)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, transform: LogitTransform, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        layer = _Layer(hidden, weight, bias, transform, is_exact(hidden, weight))
        log_z, entropy, logprobs = (torch.empty(len(hidden), dtype=layer.dtype, device=hidden.device) for _ in range(3))
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in layer.chunks:
                logits = layer.logits(rows)
                highest = logits.amax(-1, keepdim=True)
                probabilities = logits.sub_(highest).exp()
                total = probabilities.sum(-1)
                log_total = total.log()
                logprobs[rows] = logits.gather(-1, targets[rows, None]).squeeze(-1) - log_total
                entropy[rows] = log_total - probabilities.mul_(logits).sum(-1) / total
                log_z[rows] = log_total + highest.squeeze(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy)
        ctx.transform, ctx.exact, ctx.entropy_gradient = transform, layer.exact, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        layer = _Layer(hidden, weight, bias, ctx.transform, ctx.exact)
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        d_weight = torch.zeros_like(weight, dtype=layer.dtype) if needs_weight else None
        d_bias = torch.zeros_like(bias, dtype=layer.dtype) if needs_bias else None
        for rows in layer.chunks:
            logits = layer.logits(rows)
            needs_logits = ctx.entropy_gradient or ctx.transform.cap
            gradient = (logits - log_z[rows, None] if needs_logits else logits.sub_(log_z[rows, None])).exp_()
            factor = -of_logprobs[rows, None]
            if ctx.entropy_gradient:
                gradient.mul_(factor - of_entropy[rows, None] * (logits - (log_z - entropy)[rows, None]))
            else:
                gradient.mul_(factor)
            gradient.scatter_add_(-1, targets[rows, None], -factor)
            layer.transform.backward_(gradient, logits)
            if d_hidden is not None:
                d_hidden[rows] = layer.multiply(gradient, layer.weight).to(hidden.dtype)
            if d_weight is not None:
                layer.add_product(d_weight, gradient.t(), hidden[rows].to(layer.dtype))
            if d_bias is not None:
                d_bias += gradient.sum(0)
        parameters = (x if x is None else x.to(weight.dtype) for x in (d_weight, d_bias))
        return d_hidden, *parameters, None, None, None


class _Layer:
    """The output layer on n hidden states, in chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, exact: bool) -> None:
        self.exact, self.transform = exact, transform
        self.dtype = torch.promote_types(weight.dtype, torch.float32)
        self.hidden, self.weight, self.bias = hidden, weight.to(self.dtype), bias
        size = max(1, logits_per_chunk(hidden.device.type) // len(weight))
        self.chunks = [slice(start, start + size) for start in range(0, len(hidden), size)]

    def logits(self, rows: slice) -> Tensor:
        logits = self.multiply(self.hidden[rows].to(self.dtype), self.weight.t())
        return self.transform.apply_(logits if self.bias is None else logits.add_(self.bias))

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        if self.exact:
            return cpu_linear(a, b.t())
        with product_precision(a.device.type, self.exact):
            return a @ b

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        with product_precision(a.device.type, self.exact):
            total.addmm_(a, b)
