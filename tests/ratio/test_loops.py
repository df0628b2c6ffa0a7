"""Every ratio against a slow loop written from its paper: objective, clipped tokens and gradient."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from rlmods.needs import RatioNeeds, needs_of
from rlmods.ratio import (
    CISPO,
    DPPO,
    TOPR,
    Clipped,
    GeometricMean,
    KLPenalty,
    LogLikelihood,
    Soft,
    Unclipped,
)
from tests.support import reference
from tests.support.batches import Batch, batches, few, gradient

BOUND = st.floats(0, 0.6)
NO_BOUND = st.one_of(st.none(), BOUND)
DISTANCE = st.floats(1e-3, 0.3)
TEMPERATURE = st.floats(0.1, 5)
DUAL = st.sampled_from([None, 1.2, 3.0])
LOOPS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "clipped": (Clipped, reference.clipped, (BOUND, BOUND, st.just("token"), DUAL)),
    "sequence": (Clipped, reference.clipped, (BOUND, BOUND, st.just("sequence"), DUAL)),
    "sequence_token": (Clipped, reference.clipped, (BOUND, BOUND, st.just("sequence_token"), DUAL)),
    "cispo": (CISPO, reference.cispo, (NO_BOUND, NO_BOUND)),
    "dppo tv": (DPPO, reference.dppo, (st.just("tv"), DISTANCE, DISTANCE)),
    "dppo kl": (DPPO, reference.dppo, (st.just("kl"), DISTANCE, DISTANCE)),
    "geometric_mean": (GeometricMean, reference.geometric_mean, (BOUND, BOUND)),
    "kl_penalty": (KLPenalty, reference.kl_penalty, (st.floats(1e-3, 5),)),
    "log_likelihood": (LogLikelihood, reference.log_likelihood, ()),
    "soft": (Soft, reference.soft, (TEMPERATURE, TEMPERATURE)),
    "topr": (TOPR, reference.topr, (st.just("sequence_token"),)),
    "topr token": (TOPR, reference.topr, (st.just("token"),)),
    "unclipped": (Unclipped, reference.unclipped, ()),
}
"""Part, loop, and the fields that both are given."""


@pytest.mark.parametrize("name", LOOPS)
@few
@given(batches, st.data())
def test_equals_the_loop(name: str, b: Batch, data: Any) -> None:
    kind, loop, fields = LOOPS[name]
    settings = list(map(data.draw, fields))
    part = kind(*settings)
    options = [b.old_logprobs] if needs_of(part, RatioNeeds).old_logprobs else []
    fast, slow = b.log_ratio.clone().requires_grad_(), b.log_ratio.clone().requires_grad_()
    surrogate = part(fast, b.advantages, b.mask, *options)
    field, clipped = loop(slow, b.advantages, b.mask, *options, *settings)
    torch.testing.assert_close(surrogate.objective, reference.dense(field, b.mask.shape))
    assert set(map(tuple, surrogate.clipped.nonzero().tolist())) == clipped
    if field:
        weight = torch.linspace(0.5, 2, b.mask.numel(), dtype=torch.float64).view(b.mask.shape)
        expected = gradient(sum(x * weight[at] for at, x in field.items()), slow)
        torch.testing.assert_close(gradient((surrogate.objective * weight).sum(), fast), expected)
