"""The output layer: logits of hidden states in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from rlmods.distributed.sharding import full_tensor
from rlmods.ops import float32_linear
from rlmods.policy.cpu_linear import packed_linear, packed_weight
from rlmods.policy.linear_logprobs import LogitTransform

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
