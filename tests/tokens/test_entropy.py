from dataclasses import replace

import torch
from hypothesis import given, strategies as st

import rlmods.ops
import rlmods.tokens.entropy
from rlmods.tokens import HighEntropy
from tests.advantage.ranks import on_ranks
from tests.support.batches import Batch, batch, batches, few
from tests.support.reference import highest_entropy


def selected(b: Batch, fraction: float) -> torch.Tensor:
    return HighEntropy(fraction)(b.old_logprobs, b.advantages, b.mask, b.rewards.abs())


@few
@given(batches, st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.0]))
def test_equals_the_loop(b: Batch, fraction: float) -> None:
    expected = highest_entropy(b.rewards.abs(), b.mask, fraction)
    found = selected(b.poisoned(), fraction)
    assert {tuple(x) for x in found.nonzero().tolist()} == expected


def test_equal_entropies_are_all_trained() -> None:
    mask = torch.ones(2, 4, dtype=torch.bool)
    entropy = torch.tensor([[0.0, 0.0, 1.0, 0.0], [2.0, 0.0, 0.0, 1.0]])
    found = HighEntropy(0.25)(entropy, entropy, mask, entropy)
    assert found.nonzero().tolist() == [[0, 2], [1, 0], [1, 3]]


def test_the_threshold_is_of_all_ranks(monkeypatch) -> None:
    b = batch(6, 7, seed=3)
    b = replace(b, rewards=b.rewards * torch.tensor([5.0, 5, 1, 1, 1, 1])[:, None])
    parts = [b.select(torch.arange(2)), b.select(torch.arange(2, 6))]
    modules = (rlmods.ops, rlmods.tokens.entropy)
    work = [lambda p=p: selected(p, 0.3) for p in parts]
    found = torch.cat(on_ranks(monkeypatch, modules, *work))
    monkeypatch.undo()
    assert torch.equal(found, selected(b, 0.3))
    alone = torch.cat([selected(part, 0.3) for part in parts])
    assert not torch.equal(found, alone)
