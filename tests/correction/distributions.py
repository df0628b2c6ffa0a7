"""Two policies over responses of two tokens, small enough for exact expectations."""

from itertools import product

import torch
from torch import Tensor

NUM_TOKENS = 4


def logprobs(logits: Tensor, response: tuple[int, int]) -> Tensor:
    """Return the log-probabilities of the two tokens of a response. `logits` [1 + V, V] are those
    of the first token, and of the second one after each first one."""
    first, second = response
    table = logits.log_softmax(-1)
    return torch.stack([table[0, first], table[1 + first, second]])


def random_logits(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1 + NUM_TOKENS, NUM_TOKENS, generator=generator, dtype=torch.float64) * 0.5


RESPONSES = list(product(range(NUM_TOKENS), repeat=2))
TRAINER, SAMPLER = random_logits(0), random_logits(1)
FUNCTION = torch.randn(
    len(RESPONSES), 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64
)
"""Any function of a response, one number for each of its tokens."""
OLD = torch.stack([logprobs(TRAINER, response) for response in RESPONSES])
BEHAVIOR = torch.stack([logprobs(SAMPLER, response) for response in RESPONSES])
"""Log-probabilities [responses, 2] of both policies."""
