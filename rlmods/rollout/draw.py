"""From logits to tokens: R rows, V words in the vocabulary."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def uniforms(count: int, *key: int | str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`count` numbers in [0, 1) that depend on `key` alone: not on the process, the platform or any global generator.

    A longer stream starts with the shorter one.
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(count)


def draw(
    logits: Float[Tensor, "R V"], uniform: Float[Tensor, " R"], *, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """One token a row, and its natural log-probability (float32) under the distribution it was drawn from.

    The inverse CDF of softmax(logits / temperature), truncated and renormalised, read at `uniform` in [0, 1): one number
    decides one token, and a token of probability zero is never chosen. Temperature 0 takes the most probable token; its
    log-probability is then that of temperature 1 without truncation, under which a certainty is not log 1.
    Logits that are not finite give a log-probability that is not finite.
    """
    scores = logits.float()
    if temperature > 0:
        scores = truncate(scores / temperature, top_p=top_p, top_k=top_k)
    scores = scores - scores.amax(-1, keepdim=True)
    # In float32, a word rarer than 6e-8 that stands behind the others would have no width left. (MPS has no float64.)
    cdf = scores.exp().cumsum(-1, dtype=torch.float32 if scores.device.type == "mps" else torch.float64)
    total = cdf[:, -1:]
    if temperature > 0:
        # A uniform just under 1 is 1 in float32, and the total lies behind the last word.
        point = torch.minimum(uniform[:, None].to(cdf) * total, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(cdf, point, right=True).clamp(max=logits.shape[-1] - 1)
    else:
        tokens = scores.argmax(-1, keepdim=True)
    return tokens.squeeze(-1), (scores.gather(-1, tokens) - total.log()).squeeze(-1).float()


def truncate(scores: Float[Tensor, "R V"], *, top_p: float, top_k: int) -> Float[Tensor, "R V"]:
    """-inf outside the `top_k` best words (0: all; ties with the last stay), then outside the fewest words whose mass reaches `top_p`."""
    if 0 < top_k < scores.shape[-1]:
        last = scores.topk(top_k).values[:, -1:]
        scores = scores.masked_fill(scores < last, -torch.inf)
    if top_p < 1:
        ranked, words = scores.sort(stable=True, dim=-1, descending=True)
        probability = ranked.softmax(-1)
        better = probability.cumsum(-1) - probability  # mass of the words ahead of a word
        scores = scores.masked_fill(torch.empty_like(words, dtype=torch.bool).scatter(-1, words, better >= top_p), -torch.inf)
    return scores
