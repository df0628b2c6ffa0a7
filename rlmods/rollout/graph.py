"""A decode step of fixed shapes, which a CUDA graph replays: one launch in place of hundreds.

R rows; H heads, S slots and D features in the cache; V tokens in the vocabulary."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlmods.errors import UserError
from rlmods.policy.base import Policy
from rlmods.policy.fused import sampling

Buffers = Sequence[Tensor]
"""Keys and values of a layer, [R, H, S, D] each."""
MOVING_ROTATIONS = ("dynamic", "longrope")
"""Kinds of rotary positions whose angles depend on the largest position so far, which the host
reads."""


class FixedCache:
    """Keys and values of all layers in buffers of S slots. The next token of each row goes to
    `slot`, and attention reads every slot, under a mask."""

    def __init__(self, layers: Sequence[Buffers], slot: Int[Tensor, " 1"]) -> None:
        self.layers = layers
        self.slot = slot

    def update(self, key_states: Tensor, value_states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Write states of one token, [R, H, 1, D], and return all states [R, H, S, D]."""
        keys, values = self.layers[layer]
        keys.index_copy_(2, self.slot, key_states.to(keys.dtype))
        values.index_copy_(2, self.slot, value_states.to(values.dtype))
        return keys, values


class StepGraph:
    """The next logits of R rows after one more token in each. The first call computes them, the
    second records the computation, and from then on a call replays it.

    All that changes from step to step is in tensors that a call writes in place: ids, positions,
    the next slot, and which slots are visible.

    Args:
        layers: buffers of each layer, whose first `width` slots are in use.
        mask: [R, S'], S' >= width: True on ids, False on padding.
        cache_name: name of the cache among the parameters of the network."""

    def __init__(
        self,
        policy: Policy,
        layers: Sequence[Buffers],
        mask: Bool[Tensor, "R _"],
        width: int,
        cache_name: str,
    ) -> None:
        num_rows, _, self.num_slots, _ = layers[0][0].shape
        self.policy = policy
        self.cache_name = cache_name
        for buffer in (buffer for layer in layers for buffer in layer):
            buffer[:, :, width:] = 0  # 0 times what was in memory may be NaN
        self.slot = torch.tensor([width], device=mask.device)
        self.visible = mask.new_zeros(num_rows, self.num_slots)
        self.visible[:, :width] = mask[:, :width]
        self.ids = torch.zeros(num_rows, 1, dtype=torch.long, device=mask.device)
        self.positions = torch.zeros_like(self.ids)
        self.cache = FixedCache(layers, self.slot)
        self.num_calls = 0
        self.replay: Callable[[], None] | None = None

    def __call__(
        self, ids: Int[Tensor, " R"], positions: Int[Tensor, " R"]
    ) -> Float[Tensor, "R V"]:
        """Return the next logits, which the next call may overwrite."""
        self.ids.copy_(ids[:, None])
        self.positions.copy_(positions[:, None])
        self.num_calls += 1
        if self.num_calls == 1:  # libraries allocate memory of their own in a first call
            return self._compute()
        if self.replay is None:
            graph = torch.cuda.CUDAGraph()
            # records, and computes nothing; other threads, of tools, may use the GPU meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.logits = self._compute()
            self.replay = graph.replay
        self.replay()
        return self.logits

    def _compute(self) -> Tensor:
        self.visible.index_fill_(1, self.slot, True)
        context = {
            "attention_mask": self.visible,
            "position_ids": self.positions,
            self.cache_name: self.cache,
            "use_cache": True,
        }
        device = self.slot.device.type
        is_mixed = torch.is_autocast_enabled(device)
        # a cast that autocast caches while it is recorded would be read by others before a replay
        autocast = torch.autocast(device, enabled=is_mixed, cache_enabled=False)
        with autocast, plain_kernels():
            logits = self.policy.next_logits(self.ids, **context)
        self.slot.add_(1)
        return logits


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Do not ask for deterministic kernels: the one that writes to a slot reads the slot on the
    host, which a recording may not. Each slot is written once, so results are the same."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def check_graphs(policy: Policy, fused: bool) -> None:
    """Check that decode steps of this policy can be recorded.

    Raises:
        UserError: they cannot.
    """
    device = policy.device.type
    advice = "type rollout.graphs=false"
    if device != "cuda":
        raise UserError(f"rollout.graphs=true needs a policy on a GPU, not on {device}: {advice}")
    rotation = getattr(policy.model.config.get_text_config(), "rope_parameters", None) or {}
    if rotation.get("rope_type") in MOVING_ROTATIONS:
        raise UserError(
            f"rollout.graphs=true: positions of the type {rotation['rope_type']} move: {advice}"
        )
    with sampling(policy, fused):
        if policy.sampling_trunk is None:
            raise UserError(
                "rollout.graphs=true needs rollout.fused=true and a Llama, Mistral, Qwen2 or Qwen3 "
                "with policy.attention=sdpa, without sliding windows, shards and quantization, not "
                f"this {type(policy.model).__name__}: {advice}"
            )
