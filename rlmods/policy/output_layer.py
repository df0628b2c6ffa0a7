"""The output layer: logits of hidden states in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from rlmods.distributed.sharding import full_tensor
from rlmods.errors import UserError
from rlmods.policy.linear import (
    autocast_dtype,
    cpu_linear,
    float32_linear,
    has_float32_sums,
    is_exact,
    packed_linear,
    packed_weight,
    product_precision,
)

Head = Callable[[Tensor], Tensor]
"""Maps hidden states [..., H] to logits [..., V]."""


def logit_transform(config: PreTrainedConfig, temperature: float = 1.0) -> LogitTransform:
    """Return the scaling and capping that the architecture applies to its output layer."""
    text = config.get_text_config()
    factor = getattr(text, "logit_scale", None) or 1.0
    divisor = getattr(text, "logits_scaling", None) or 1.0
    cap = getattr(text, "final_logit_softcapping", None) or 0.0
    return LogitTransform(factor / divisor, cap, temperature)


def output_logits(model: PreTrainedModel, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Return the logits of hidden states, float32 also under autocast."""
    layer = model.get_output_embeddings()
    packed = packed_weight(layer) if is_plain_linear(layer) else None
    if packed is None:
        output = float32_output(layer, hidden)
    else:
        output = packed_linear(hidden, packed, layer.bias)
    return logit_transform(model.config).apply(output)


def gathered_head(model: PreTrainedModel) -> Head | None:
    """Return a function that computes `output_logits` by full copies of a sharded layer's weights,
    None if the layer is not sharded. Every rank must call this; one rank alone may call the
    function, which does not call the layer's hooks."""
    layer = model.get_output_embeddings()
    if not isinstance(layer.weight, DTensor):
        return None
    weight = full_tensor(layer.weight.detach())
    bias = None if layer.bias is None else full_tensor(layer.bias.detach())
    transform = logit_transform(model.config)

    def head(hidden: Tensor) -> Tensor:
        nonlocal weight, bias
        # in the precision of the forward, which casts the float32 shards
        weight = weight.to(hidden)
        bias = None if bias is None else bias.to(hidden)
        return transform.apply(float32_linear(hidden, weight, bias))

    return head


def is_plain_linear(layer: nn.Module) -> bool:
    """Return True for a linear layer whose output is `x W^T + b` and nothing else: no adapter, and
    no hooks that see or change it."""
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def float32_output(layer: nn.Module, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... V"]:
    """Return the layer's output for these hidden states without rounding it to 16 bits, as autocast
    and 16-bit weights do: a logit of 20 would be rounded to a multiple of 1/8. The layer runs as a
    module, with its hooks. An adapted layer computes as it does by itself."""
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


LOGITS_PER_CHUNK = {"cpu": 2**23, "cuda": 2**26}
"""Maximum number of logits in memory, by device. Chunks of 32 MiB of float32 stay near the cache of
a processor and are not returned to the system after each use; a GPU needs larger products, and
reads all weights for each chunk."""


@dataclass(frozen=True)
class LogitTransform:
    """`cap tanh(scale x / cap) / temperature`, which some architectures apply to the outputs x of
    their output layer; cap 0: no tanh."""

    scale: float = 1.0
    cap: float = 0.0
    temperature: float = 1.0

    def apply(self, logits: Tensor) -> Tensor:
        """Return transformed logits."""
        factor = self.scale / self.temperature
        if self.cap:
            return torch.tanh(logits * (self.scale / self.cap)) * (self.cap / self.temperature)
        return logits if factor == 1 else logits * factor

    def backward_(self, gradient: Tensor, logits: Tensor) -> None:
        """Turn the gradient of transformed `logits` into that of the outputs of the layer, in
        place."""
        factor = self.scale / self.temperature
        if self.cap:
            gradient.mul_(1 - (logits * (self.temperature / self.cap)).square_())
        if factor != 1:
            gradient.mul_(factor)


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
    r"""Return log-probabilities of `targets` and entropies of the distributions, from l =
    transform(h W^T + b):

        log pi(y) = l_y - log sum_v exp(l_v)                  H = -sum_v pi(v) log pi(v)

    whose gradients are  d log pi(y) / d l_v = 1[v = y] - pi(v)  and  d H / d l_v = -pi(v) (log
    pi(v) + H).

    Logits, float32 (float64 for weights of float64), exist for a chunk at a time: in forward those
    of some tokens, in backward, which computes them again, those of a part of the vocabulary, so
    that each row of the gradient of W is written once. Under autocast, or with weights of bfloat16,
    the factors of products in backward are rounded to 16 bits, as those of other layers are. The
    entropy carries a gradient only with `entropy_gradient`."""
    logprobs, entropy = _LinearLogprobs.apply(
        hidden, weight, bias, targets, transform, entropy_gradient
    )  # type: ignore[no-untyped-call]
    return TokenScores(logprobs, entropy)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        exact = is_exact(hidden, weight)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        log_z = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropy = torch.empty_like(log_z)
        logprobs = torch.empty_like(log_z)
        size = logits_per_chunk(hidden.device.type) // len(weight)
        cast = autocast_dtype(hidden)
        factors = hidden.dtype if has_float32_sums(hidden, weight) else dtype
        if cast == torch.float16 and hidden.device.type == "cuda":
            factors = cast  # as exact as TF32, which GPUs without bfloat16 do not have
        with torch.autocast(hidden.device.type, enabled=False):
            states = hidden.to(factors)
            matrix = weight.to(factors)
            for rows in _chunks(len(hidden), size):
                logits = _logits(states[rows], matrix, bias, transform, exact)
                highest = logits.amax(-1, keepdim=True)
                probabilities = logits.sub_(highest).exp()
                total = probabilities.sum(-1)
                log_total = total.log()
                logprobs[rows] = logits.gather(-1, targets[rows, None]).squeeze(-1) - log_total
                entropy[rows] = log_total - probabilities.mul_(logits).sum(-1) / total
                log_z[rows] = log_total + highest.squeeze(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_z, entropy)
        ctx.transform = transform
        ctx.exact = exact
        ctx.entropy_gradient = entropy_gradient
        ctx.logit_factors = factors
        ctx.factors = cast or (torch.bfloat16 if weight.dtype == torch.bfloat16 else dtype)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_z, entropy = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        states = hidden.to(ctx.logit_factors)
        states_factor = states.to(ctx.factors)
        factor = -of_logprobs[:, None]
        d_hidden = torch.zeros_like(hidden, dtype=log_z.dtype) if needs_hidden else None
        d_weight = torch.empty_like(weight) if needs_weight else None
        d_bias = torch.empty_like(bias) if needs_bias else None
        # Half as many logits as in forward, as their gradient is in memory too.
        size = logits_per_chunk(hidden.device.type) // 2 // max(1, len(hidden))
        for words in _chunks(len(weight), size):
            matrix = weight[words].to(ctx.logit_factors)
            part = None if bias is None else bias[words]
            logits = _logits(states, matrix, part, ctx.transform, ctx.exact)
            if ctx.entropy_gradient or ctx.transform.cap:
                gradient = (logits - log_z[:, None]).exp_()
            else:  # the logits are not read again
                gradient = logits.sub_(log_z[:, None]).exp_()
            if ctx.entropy_gradient:
                gradient.mul_(factor - of_entropy[:, None] * (logits - (log_z - entropy)[:, None]))
            else:
                gradient.mul_(factor)
            is_here = (targets >= words.start) & (targets < words.stop)
            index = torch.where(is_here, targets - words.start, 0)[:, None]
            gradient.scatter_add_(-1, index, torch.where(is_here, of_logprobs, 0.0)[:, None])
            ctx.transform.backward_(gradient, logits)
            if d_bias is not None:
                d_bias[words] = gradient.sum(0)
            gradient = gradient.to(ctx.factors)
            if d_hidden is not None:
                d_hidden += _product(gradient, matrix.to(ctx.factors), ctx.exact)
            if d_weight is not None:
                d_weight[words] = _product(gradient.t(), states_factor, ctx.exact)
        if d_hidden is not None:
            d_hidden = d_hidden.to(hidden.dtype)
        return d_hidden, d_weight, d_bias, None, None, None


def _chunks(count: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform, exact: bool
) -> Tensor:
    logits = _product(hidden, weight.t(), exact)
    return transform.apply(logits if bias is None else logits.add_(bias))


def _product(a: Tensor, b: Tensor, exact: bool) -> Tensor:
    if exact:
        return cpu_linear(a, b.t())
    if has_float32_sums(a, b):
        return torch.mm(a, b, out_dtype=torch.float32)
    with product_precision(a.device.type):
        return a @ b


@torch.no_grad()
def check_head(model: PreTrainedModel, device: torch.device) -> None:
    """Check that the model computes logits as `output_logits` does. Otherwise its
    log-probabilities would be silently wrong.

    Raises:
        UserError: they are not.
    """
    if device.type == "meta":
        return
    ids = torch.arange(4, device=device)[None] % model.config.get_text_config().vocab_size
    expected = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    actual = output_logits(model, hidden)
    # transformers rounds logits to 16 bits
    tolerance = 1e-3 if expected.dtype == torch.float32 else 2e-2
    if not torch.allclose(expected.float(), actual.float(), rtol=tolerance, atol=tolerance):
        raise UserError(
            f"policy: {type(model).__name__} transforms its logits after the output layer, which "
            "is not supported: choose another model"
        )
