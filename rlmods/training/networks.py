"""Networks before training: sharding, checks, and parameter groups of the optimizer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlmods.critic.networks import ValueNetwork
from rlmods.distributed.sharding import blocks, is_sharded
from rlmods.distributed.strategy import FSDP2
from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.quantization import is_quantized


def shard(networks: Sequence[nn.Module], strategy: Any) -> None:
    """Shard the networks if the strategy shards."""
    if isinstance(strategy, FSDP2):
        for network in networks:
            if not is_sharded(network):
                strategy.shard(network)


def compile_networks(networks: Sequence[nn.Module]) -> None:
    """Compile the blocks of the networks, which are not sharded yet.

    Raises:
        UserError: a network is quantized, a policy is a mixture of experts, or transformers does
            not name the blocks.
    """
    if any(map(is_quantized, networks)):
        raise UserError(
            "policy.compile=true: quantized weights cannot be compiled: type policy.compile=false"
        )
    if any(network.is_mixture for network in networks if isinstance(network, Policy)):
        raise UserError(
            "policy.compile=true: a mixture of experts chooses its computation by values, which "
            "is not supported: type policy.compile=false"
        )
    from rlmods.policy.compiled import compile_blocks  # loads torch's compiler

    compiled = list(filter(blocks, networks))  # a value head has none
    if not compiled:
        raise UserError(
            "policy.compile=true: transformers names no blocks of this model: type "
            "policy.compile=false"
        )
    torch._dynamo.reset()  # what earlier runs of this process compiled counts towards the limit
    for network in compiled:
        compile_blocks(network)


def check_deferred(networks: Sequence[nn.Module]) -> list[Policy]:
    """Check the networks that were not checked when they were built (`is_checked_later`), and
    return the policies among them."""
    checked: list[Policy] = []
    for network in networks:
        if isinstance(network, Policy | ValueNetwork) and not network.is_checked:
            network.check()
            if isinstance(network, Policy):
                checked.append(network)
    return checked


def hidden_matrices(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters with two dimensions, apart from embeddings, output layers of language
    models, and matrices with one row or column, such as value heads. Experts in one tensor have
    three dimensions."""
    outer: list[Any] = []
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            outer.append(module)
        elif isinstance(module, PreTrainedModel):
            outer.append(module.get_output_embeddings())
    excluded = {id(layer.weight) for layer in outer if layer is not None}
    matrices = [x for x in network.parameters() if x.ndim == 2 and min(x.shape) > 1]
    return [x for x in matrices if id(x) not in excluded]


def parameter_groups(
    name: str, network: nn.Module, *, hidden: bool = False, **settings: Any
) -> list[dict[str, Any]]:
    """Return the trained parameters in two groups: matrices, which have the optimizer's weight
    decay, and one-dimensional parameters (norms and biases), which have none, as in nanoGPT and the
    Trainer of transformers. An empty group is left out.

    Args:
        hidden: put `hidden_matrices` into a group of their own, in which `hidden` is True.
        settings: settings of all groups, such as `lr`.

    Raises:
        UserError: a trained parameter with fewer than 32 bits.
    """
    trained = [x for x in network.parameters() if x.requires_grad]
    for x in trained:
        if torch.finfo(x.dtype).bits < 32:
            dtype = str(x.dtype).removeprefix("torch.")
            raise UserError(
                f"the weights of {name} are {dtype}, and rounding loses most updates at the usual "
                "learning rates: train float32 weights with trainer.precision=bf16-mixed, or type "
                "adapter=lora"
            )
    inner = {id(x) for x in hidden_matrices(network)} if hidden else set()
    matrices = [x for x in trained if x.ndim > 1]
    groups = [
        {"params": [x for x in matrices if id(x) not in inner], **settings},
        {"params": [x for x in matrices if id(x) in inner], "hidden": True, **settings},
        {"params": [x for x in trained if x.ndim <= 1], "weight_decay": 0.0, **settings},
    ]
    return [group for group in groups if group["params"]]
