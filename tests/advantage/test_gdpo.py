from math import sqrt

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from rlmods.advantage import GDPO, GroupNorm, gdpo as module
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few

WEIGHTS = torch.tensor([1.0, 0.1, -2.0], dtype=torch.float64)


def terms_of(b: Batch, seed: int = 0) -> Tensor:
    """Scores of three terms of different scales, NaN where a term abstains."""
    g = torch.Generator().manual_seed(seed)
    terms = torch.randn(len(b.mask), 3, generator=g, dtype=torch.float64) * torch.tensor(
        [1.0, 0.01, 50.0]
    )
    return terms.masked_fill(torch.rand(terms.shape, generator=g) < 0.2, torch.nan)


def advantages(b: Batch, terms: Tensor, weights: Tensor = WEIGHTS, **fields: bool) -> Tensor:
    return GDPO(**fields)(b.rewards, b.mask, b.group, None, terms, weights).advantages


@few
@given(batches, st.integers(0, 10**6), st.booleans())
def test_equals_the_loop(b: Batch, seed: int, unbiased: bool) -> None:
    """Equations 4 to 6 with the batch's mean, which is 0."""
    terms, total = terms_of(b, seed), {i: 0.0 for i in range(len(b.mask)) if b.mask[i].any()}
    for k in range(3):
        scores = {i: float(terms[i, k]) for i in total if not terms[i, k].isnan()}
        for i, own in scores.items():
            members = [x for j, x in scores.items() if b.group[j] == b.group[i]]
            if len(members) > 1:
                mean = sum(members) / len(members)
                std = sqrt(sum((x - mean) ** 2 for x in members) / (len(members) - int(unbiased)))
                total[i] += float(WEIGHTS[k]) * (own - mean) / (std + 1e-6)
    mean = sum(total.values()) / max(1, len(total))
    std = sqrt(sum((x - mean) ** 2 for x in total.values()) / max(1, len(total) - int(unbiased)))
    expected = torch.zeros(b.mask.shape, dtype=torch.float64)
    for i, x in total.items():
        expected[i, b.mask[i]] = (x - mean) / (std + 1e-6)
    torch.testing.assert_close(advantages(b.poisoned(), terms, unbiased=unbiased), expected)


def test_combinations_with_other_totals_differ() -> None:
    """The example of the paper: group_norm gives (0, 1) and (0, 2) equal advantages; the latter has
    two terms more."""
    terms = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    mask, group = torch.ones(4, 1, dtype=torch.bool), torch.tensor([0, 0, 1, 1])
    plain = GroupNorm()(terms.sum(1, keepdim=True), mask, group).advantages[:, 0]
    assert plain[1].item() == pytest.approx(plain[3].item(), rel=1e-5)
    by_term = GDPO()(
        terms[:, :1], mask, group, None, terms, torch.ones(2, dtype=torch.float64)
    ).advantages[:, 0]
    assert by_term[3].item() == pytest.approx(2 * by_term[1].item(), rel=1e-4)


def test_the_scale_of_a_term_does_not_matter_and_its_weight_does() -> None:
    b = batch(9, 4, seed=3)
    terms = terms_of(b)
    full = advantages(b, terms)
    torch.testing.assert_close(
        advantages(b, terms * torch.tensor([1.0, 10.0, 3.0])), full, rtol=1e-3, atol=1e-3
    )
    assert not torch.allclose(
        advantages(b, terms, WEIGHTS * torch.tensor([1.0, 10.0, 1.0])), full, atol=1e-2
    )


def test_one_term_is_group_norm_divided_by_the_std_of_the_batch() -> None:
    b = batch(9, 4, seed=3)
    score = torch.where(b.mask, b.rewards, 0).sum(1, keepdim=True)
    plain = GroupNorm()(b.rewards, b.mask, b.group).advantages
    rows = torch.stack([plain[i][b.mask[i]][0] for i in range(9) if b.mask[i].any()])
    torch.testing.assert_close(
        advantages(b, score, torch.ones(1, dtype=torch.float64)), plain / (rows.std() + 1e-6)
    )


def test_two_ranks_share_the_standard_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    b = batch(12, 4, seed=3)
    terms, first = terms_of(b), b.group < 993
    assert 0 < int(first.sum()) < 12
    full = advantages(b, terms)
    one, two = (
        lambda rows=rows: advantages(b.select(rows), terms[rows]) for rows in (first, ~first)
    )
    found = on_ranks(monkeypatch, module, one, two)
    torch.testing.assert_close(found[0], full[first])
    torch.testing.assert_close(found[1], full[~first])
