"""Loops as TRL writes them: `generate` of transformers on repeated prompts, then the logits of all
response tokens in float32, one log-softmax a row, and the clipped objective of GRPO.

R rows, T tokens of a prompt and its response, L of the response."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CLIP_LOW, CLIP_HIGH = 0.2, 0.28


def sample(network: Any, prompts: Tensor, samples: int, num_tokens: int) -> Tensor:
    """Return rows [R, T] of `samples` responses of exactly `num_tokens` tokens to each prompt."""
    with torch.no_grad():
        rows: Tensor = network.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            num_return_sequences=samples,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
    return rows


def token_logprobs(network: Any, tokens: Tensor, present: Tensor, num: int) -> tuple[Tensor, ...]:
    """Return log-probabilities and entropies [R, L] of the last `num` tokens. `present`: False for
    padding."""
    output = network(
        input_ids=tokens, attention_mask=present.long(), logits_to_keep=num + 1, use_cache=False
    )
    logits = output.logits[:, :-1].float()
    chosen = logits.gather(-1, tokens[:, -num:, None]).squeeze(-1)
    log_z = torch.stack([row.logsumexp(-1) for row in logits])
    with torch.no_grad():
        entropies = torch.stack([entropy(row) for row in logits])
    return chosen - log_z, entropies


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each distribution, nats."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def objective(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """Return the clipped loss of each token: `-min(r A, clip(r) A)` with `r = exp(new - old)`."""
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return -torch.minimum(ratio * advantages, clipped * advantages)


@dataclass
class Update:
    """One optimizer step on right-padded rows, some rows at a time. Where the memory does not
    suffice, half as many are taken."""

    network: Any
    optimizer: torch.optim.Optimizer
    rows: int
    """Rows of a microbatch; as many as fit, after a call."""

    def __call__(self, tokens: Tensor, mask: Tensor, advantages: Tensor) -> None:
        while True:
            try:
                return self.step(tokens, mask, advantages)
            except torch.OutOfMemoryError:
                if self.rows == 1:
                    raise
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
            self.rows //= 2

    def step(self, tokens: Tensor, mask: Tensor, advantages: Tensor) -> None:
        """Add the gradients of all microbatches, clip them, and step."""
        num = int(mask.any(0).sum())
        total = mask.sum()
        for rows in self.microbatches(len(tokens)):
            wanted = mask[rows, -num:]
            present = mask[rows].clone()
            present[:, :-num] = True
            with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
                logprobs, _ = token_logprobs(self.network, tokens[rows], present, num)
            losses = objective(logprobs, logprobs.detach(), advantages[rows, None])
            ((losses * wanted).sum() / total).backward()  # type: ignore[no-untyped-call]
        parameters = [x for x in self.network.parameters() if x.requires_grad]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def microbatches(self, num_rows: int) -> Iterator[slice]:
        for start in range(0, num_rows, self.rows):
            yield slice(start, start + self.rows)
