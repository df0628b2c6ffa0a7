import math

import torch
from hypothesis import given, strategies as st

from rlmods.correction import Masked
from tests.support.batches import Batch, batches, few
from tests.support.reference import correction, dense, true_slots

LIMITS = st.floats(0.01, 0.3)


@few
@given(batches, st.sampled_from(["token", "sequence"]), st.floats(0.0, 1.0), st.floats(1.0, 3.0))
def test_equals_the_loop(b: Batch, level: str, low: float, high: float) -> None:
    behavior = b.values - b.log_ratio
    found = Masked(low, high, level)(b.values, behavior, b.mask)  # type: ignore[arg-type]
    expected, outside = correction(b.values, behavior, b.mask, level, low, high, masks=True)
    torch.testing.assert_close(
        torch.where(b.mask, found.weights, 0.0), dense(expected, b.mask.shape)
    )
    assert {tuple(x) for x in found.outside.nonzero().tolist()} == outside


def test_by_token_is_icepop() -> None:
    ratio = torch.tensor([[0.49, 0.51, 1.0, 4.9, 5.1]], dtype=torch.float64)
    found = Masked()(ratio.log(), torch.zeros_like(ratio), torch.ones(1, 5, dtype=torch.bool))
    torch.testing.assert_close(
        found.weights, torch.tensor([[0.0, 0.51, 1.0, 4.9, 0.0]], dtype=torch.float64)
    )


def test_by_response_masks_whole_responses() -> None:
    """MIS: the product of a response's ratios, with an upper bound alone."""
    ratio = torch.tensor([[1.9, 1.9, 0.1], [1.9, 1.0, 1.2], [0.01, 0.1, 1.0]], dtype=torch.float64)
    found = Masked(low=0.0, high=2.0, level="sequence")(
        ratio.log(), torch.zeros_like(ratio), torch.ones(3, 3, dtype=torch.bool)
    )
    expected = torch.tensor([0.361, 0.0, 0.001], dtype=torch.float64)
    torch.testing.assert_close(found.weights, expected[:, None].expand(3, 3))
    assert found.outside.tolist() == [[False] * 3, [True] * 3, [False] * 3]


@few
@given(batches, st.sampled_from(["tv", "kl"]), st.sampled_from(["token", "sequence"]), LIMITS)
def test_gates_by_divergence_equal_the_loop(b: Batch, gate: str, level: str, limit: float) -> None:
    old = b.old_logprobs
    behavior = (old - b.log_ratio).clamp(max=-1e-3)
    weights, _ = correction(old, behavior, b.mask, level, 0.0, math.inf, masks=True)
    outside = set()
    for i, ts in enumerate(true_slots(b.mask)):
        distances = []
        for t in ts:
            p, q = math.exp(float(behavior[i, t])), min(math.exp(float(old[i, t])), 1 - 1e-7)
            other = (1 - p) * math.log((1 - p) / (1 - q))
            kl = p * math.log(p / q) + other
            distances.append(abs(p - q) if gate == "tv" else kl)
        if level == "sequence" and ts:
            distances = [sum(distances) / len(ts)] * len(ts)
        outside |= {(i, t) for t, d in zip(ts, distances, strict=True) if d > limit}
    part = Masked(level=level, gate=gate, limit=limit)  # type: ignore[arg-type]
    found = part(old, torch.where(b.mask, behavior, torch.nan), b.mask)
    assert {tuple(x) for x in found.outside.nonzero().tolist()} == outside
    expected = {slot: 0 * w if slot in outside else w for slot, w in weights.items()}
    torch.testing.assert_close(
        torch.where(b.mask, found.weights, 0.0), dense(expected, b.mask.shape)
    )
