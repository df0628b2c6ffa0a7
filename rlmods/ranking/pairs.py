"""Pairs of a ranking: P prompts, K candidates each. Rank 0 is the best, equal ranks are ties;
`present` is False for absent candidates."""

import torch

from rlmods.ops import masked_mean
from rlmods.types import (
    CandidateFloats,
    CandidateInts,
    CandidateMask,
    PairFloats,
    PairMask,
    PromptFloats,
)

TIE = 1e-5
"""Size of a difference of scores up to which it is a tie: rounding errors of summed
log-probabilities."""


def is_better(rank: CandidateInts, present: CandidateMask) -> PairMask:
    """Return a mask that is True at (p, i, j) if candidate i of prompt p ranks strictly above
    candidate j: every pair once, no ties."""
    both = present[:, :, None] & present[:, None, :]
    return both & (rank[:, :, None] < rank[:, None, :])


def pairwise_differences(x: CandidateFloats, present: CandidateMask) -> PairFloats:
    """Return the differences x_i - x_j at (p, i, j). Absent candidates may hold any value."""
    x = torch.where(present, x, 0.0)
    return x[:, :, None] - x[:, None, :]


def pair_mean(x: PairFloats, mask: PairMask) -> PromptFloats:
    """Return the mean over each prompt's pairs in the mask; 0 for a prompt without any."""
    return masked_mean(x.flatten(1), mask.flatten(1))


def pair_correctness(difference: PairFloats) -> PairFloats:
    """Return 1 where the difference is positive, 0.5 where it is at most `TIE` in size, else 0. The
    mean over all strict pairs is the pair accuracy."""
    return (torch.where(difference.abs() <= TIE, 0.0, difference).sign() + 1) / 2
