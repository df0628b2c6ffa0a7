"""The steps of an iteration on networks without weights: what each of them holds beside the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlmods.algo import Learner
from rlmods.critic.shared import ValueHead
from rlmods.memory.allocations import Peak, measure
from rlmods.memory.workload import Rows, Sampling
from rlmods.policy import Policy
from rlmods.policy.scalar import ScalarModel
from rlmods.rollout.decode import GrowingLayer, new_cache, sample_tokens


def update(learner: Learner, rows: Rows, *, autocast: torch.dtype | None, keep_gradients: bool) -> Peak:
    """Forward and backward of a microbatch through every network that is trained. `keep_gradients`: those that it makes are counted, all
    at the end; otherwise each is gone when it is made, as where it is added to what there is."""
    networks = learner.networks
    entropy = bool(getattr(getattr(learner, "entropy_bonus", None), "coefficient", 0.0))

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    def forward_and_backward() -> None:
        hooks = [] if keep_gradients else [p.register_post_accumulate_grad_hook(drop) for p in _trained(learner)]  # type: ignore[no-untyped-call]
        for network in networks.values():
            network.train(getattr(networks[next(iter(networks))], "gradient_checkpointing", False))
        with _cast(autocast):
            loss = _said(networks, rows, entropy=entropy)
        loss.backward()  # type: ignore[no-untyped-call]
        for hook in hooks:
            hook.remove()

    found = measure(forward_and_backward, *networks.values(), picked=rows.num * rows.response)
    for network in networks.values():
        network.eval()
        network.zero_grad()
    return found


def scoring(network: nn.Module, rows: Rows, *, autocast: torch.dtype | None) -> Peak:
    """Forward of a microbatch without a gradient."""

    @torch.no_grad()
    def forward() -> None:
        with _cast(autocast):
            _said({"": network}, rows)

    return measure(forward, network, picked=rows.num * rows.response)


def decoding(policy: Policy, rollout: Any, work: Sampling, *, autocast: torch.dtype | None) -> Peak:
    """Reading every prompt, and the last token of every response, with a full cache."""
    rows, seen = work.rows, work.rows.length - work.rows.response
    settings = {"temperature": 1.0} | {name: getattr(rollout, name) for name in ("temperature", "top_p", "top_k") if hasattr(rollout, name)}

    @torch.no_grad()
    def decode() -> None:
        cache = new_cache(policy.model.config, rows.length)
        with _cast(autocast):
            logits = policy.next_logits(torch.zeros(work.prompts, seen, dtype=torch.long), past_key_values=cache, use_cache=True)
            cache.reorder_cache(torch.zeros(rows.num, dtype=torch.long))
            logits = logits.new_empty(rows.num, logits.shape[-1])
            sample_tokens(logits, torch.zeros(rows.num), **settings)
            for layer in cache.layers:
                if isinstance(layer, GrowingLayer):
                    layer._grow(rows.length)
                    layer.keys, layer.values = (buffer[:, :, : rows.length - 1] for buffer in layer.buffers)
            position = torch.full((rows.num, 1), rows.length - 1)
            logits = policy.next_logits(position, position_ids=position, past_key_values=cache, use_cache=True)
            sample_tokens(logits, torch.zeros(rows.num), **settings)

    return measure(decode, policy)


def optimizer_step(learner: Learner, *, foreach: bool) -> tuple[Peak, Peak]:
    """The optimizer's state, and what a step holds beside it. `foreach`: all tensors at once, as torch does on a GPU."""
    state: list[int] = []
    gradients: list[int] = []

    def step() -> None:
        optimizer = learner.optimizer(learner.parameter_groups())
        for group in optimizer.param_groups:
            if foreach and group.get("foreach", False) is None:
                group["foreach"] = True
            for parameter in group["params"]:
                parameter.grad = torch.empty_like(parameter)
                gradients.append(parameter.grad.nbytes)
        optimizer.step()
        state.extend(x.nbytes for values in optimizer.state.values() for x in values.values() if isinstance(x, Tensor))

    found = measure(step, *learner.networks.values())
    for network in learner.networks.values():
        network.zero_grad()
    held = Peak.of(*state)
    return held, found - held - Peak.of(*gradients)


def _said(networks: dict[str, nn.Module], rows: Rows, *, entropy: bool = False) -> Tensor:
    """The sum of what the networks say of these rows."""
    tokens = torch.zeros(rows.num, rows.length, dtype=torch.long)
    mask = torch.ones(rows.num, rows.length, dtype=torch.bool)
    head = next((network for network in networks.values() if isinstance(network, ValueHead)), None)
    total = torch.zeros(())
    for network in networks.values():
        if isinstance(network, Policy):
            scored = network(tokens, mask, entropy=entropy, value_head=head)
            total = total + scored.logprobs.sum() + (scored.entropy.sum() if entropy else 0.0)
            total = total if scored.values is None else total + scored.values.sum()
        elif isinstance(network, ScalarModel):
            total = total + network(tokens).sum()
        elif network is not head:
            total = total + network(tokens, mask).sum()
    return total


def _trained(learner: Learner) -> list[nn.Parameter]:
    return [p for network in learner.networks.values() for p in network.parameters() if p.requires_grad]


def _cast(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None)
