"""The decoding loop: P prompts, G samples each, R = P * G rows, L new tokens at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rlmods.policy.base import Policy
from rlmods.rollout.cache import new_cache
from rlmods.rollout.draw import draw

COMPACT_BELOW = 7 / 8
"""Share of rows still unfinished below which the others leave the batch: copying the cache costs about what a step costs."""

OnStep = Callable[[int, int], None]
"""Told after every step how many rows ended in it and how many tokens it sampled."""


@dataclass
class Decoded:
    """R rows in the order of the prompts, the samples of a prompt side by side."""

    tokens: Int[Tensor, "R L"]
    """Sampled ids; garbage from `lengths` on."""
    logprobs: Float[Tensor, "R L"]
    """Natural log-probability of each under the distribution it was drawn from."""
    lengths: Int[Tensor, " R"]
    """Tokens sampled, EOS included."""
    stopped: Bool[Tensor, " R"]
    """True where EOS or a stop string ended the row, False where the limit did."""


@torch.no_grad()  # not inference_mode: some models keep tensors made in forward, which training then uses
def decode(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    uniforms: Float[Tensor, "R L"],
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    stop: Callable[[list[int]], bool] | None = None,
    window: int = 0,
    on_step: OnStep | None = None,
) -> Decoded:
    """Samples R / P responses to each prompt, one prefill a prompt. The caller puts the modules in eval mode.

    `limits[p]`: tokens that a response to prompt p may have. `uniforms`: row r's step t reads [r, t] and nothing else that is random.
    `stop` says of a row's last `window` tokens whether it ends there.
    """
    device, steps = policy.device, max(limits)
    repeat = torch.arange(len(prompts), device=device).repeat_interleave(len(uniforms) // len(prompts))
    context = _Context(policy, prompts, steps)
    logits = context.prefill(repeat)
    limit, uniforms = torch.tensor(limits, device=device)[repeat], uniforms.to(device)
    eos = torch.tensor(sorted(policy.eos_ids), device=device)
    out = Decoded(
        tokens=torch.zeros(len(repeat), steps, dtype=torch.long, device=device),
        logprobs=torch.zeros(len(repeat), steps, device=device),
        lengths=torch.zeros(len(repeat), dtype=torch.long, device=device),
        stopped=torch.zeros(len(repeat), dtype=torch.bool, device=device),
    )
    batch = torch.arange(len(repeat), device=device)  # the row of `out` that each row of the batch is
    live, alive = torch.ones_like(out.stopped), len(repeat)
    for step in range(steps):
        tokens, logprobs = draw(logits, uniforms[batch, step], temperature=temperature, top_p=top_p, top_k=top_k)
        out.tokens[batch, step], out.logprobs[batch, step] = tokens, logprobs
        out.lengths[batch] += live
        ends = (tokens[:, None] == eos).any(-1)
        if stop is not None:
            tails = out.tokens[batch[live], max(0, step + 1 - window) : step + 1].tolist()
            ends[live] |= torch.tensor([stop(tail) for tail in tails], device=device)
        out.stopped[batch] |= ends & live
        live = live & ~ends & (step + 1 < limit[batch])
        sampled, alive = alive, int(live.sum())
        if on_step is not None:
            on_step(sampled - alive, sampled)
        if alive == 0:
            break
        if alive <= COMPACT_BELOW * len(batch):
            keep = live.nonzero().squeeze(-1)
            context.select(keep)
            batch, tokens, live = batch[keep], tokens[keep], live[keep]
        logits = context.read(tokens)
    return out


class _Context:
    """What the model has read so far, row by row: the cache, and where the next token goes."""

    def __init__(self, policy: Policy, prompts: Sequence[Sequence[int]], steps: int) -> None:
        self.policy = policy
        self.ids, mask = _left_padded(prompts, policy.pad_id, policy.device)
        self.seen = self.ids.shape[1]
        self.padded = not bool(mask.all())
        self.position = mask.sum(-1)
        self.mask = torch.cat([mask, mask.new_ones(len(prompts), steps)], dim=1)
        self.cache = new_cache(policy.model.config, self.seen + steps)

    def prefill(self, repeat: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Reads every prompt once; row r then goes on from prompt `repeat[r]`."""
        position = (self.mask[:, : self.seen].cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(self.ids, position)
        if len(repeat) > len(logits):
            self.select(repeat)
        return logits[repeat]

    def select(self, rows: Int[Tensor, " R"]) -> None:
        self.cache.reorder_cache(rows)
        self.position, self.mask = self.position[rows], self.mask[rows]

    def read(self, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """One more token a row; the logits of the one after it."""
        # A row that has ended may still be in the batch: its positions have to stay inside the model's tables.
        position = self.position.clamp(max=self.policy.context_length - 1)
        self.position, self.seen = self.position + 1, self.seen + 1
        return self._forward(tokens[:, None], position[:, None])

    def _forward(self, ids: Tensor, position: Tensor) -> Tensor:
        mask = self.mask[:, : self.seen].long() if self.padded else None  # attention has a faster path without a mask
        kwargs = {"attention_mask": mask, "position_ids": position, "past_key_values": self.cache, "use_cache": True}
        return self.policy.next_logits(ids, **kwargs)


def _left_padded(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [P, W] and mask [P, W], True on the prompts."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


@contextmanager
def sampling_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode: no dropout, and a cache that gradient checkpointing does not throw away. Puts each mode back."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    torch.clear_autocast_cache()  # casts of the weights are cached while sampling; none may outlive them
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for m, training in modes:
            m.training = training
