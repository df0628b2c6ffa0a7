"""Rows of all ranks go back to them; another number of ranks shares them out whole, in the order in
which they were drawn."""

from __future__ import annotations

import pytest
import torch

from rlmods.training.rank_state import rank_state, reshard, reshard_rows
from rlmods.types import Experience


def rows(*groups: int, mark: int = 0) -> Experience:
    """Two rows a group; a row's token says which rank and group it came from."""
    group = torch.tensor(groups).repeat_interleave(2)
    tokens = (100 * mark + group)[:, None].repeat(1, 3)
    zeros = torch.zeros(tokens.shape)
    ones, lengths = torch.ones(tokens.shape, dtype=torch.bool), torch.full((len(group),), 3)
    numbers = {
        "rewards": zeros,
        "old_logprobs": zeros,
        "behavior_logprobs": zeros,
        "advantages": zeros,
    }
    return Experience(
        tokens=tokens,
        on_policy=torch.zeros(len(group), dtype=torch.bool),
        mask=ones,
        lengths=lengths,
        policy_version=lengths,
        sampler_version=lengths,
        group=group,
        **numbers,
    )


HELD = [rows(4, 7, mark=0), None, rows(3, 9, 12, mark=2)]


def found(num_ranks: int) -> list[Experience | None]:
    return [
        reshard_rows([rank_state(part) for part in HELD], rank, num_ranks)
        for rank in range(num_ranks)
    ]


def test_the_same_ranks_get_their_own() -> None:
    for before, now in zip(HELD, found(3), strict=True):
        assert (before is None) == (now is None)
        if before is not None and now is not None:
            assert all(
                torch.equal(x, now.tensors()[name])
                for name, x in before.tensors().items()
                if x is not None
            )


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 7])
def test_other_ranks_share_them_out(num_ranks: int) -> None:
    parts = [part for part in found(num_ranks) if part is not None]
    held = [part for part in HELD if part is not None]
    everything = sorted(int(x) for part in held for x in part.tokens[:, 0])
    assert sorted(int(x) for part in parts for x in part.tokens[:, 0]) == everything
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 2
    for part in parts:
        for group in part.group.unique():
            assert len(part.tokens[part.group == group, 0].unique()) == 1
            assert (part.group == group).sum() == 2
        assert part.group.max() < 0  # below any that is yet to be drawn


def test_the_oldest_stay_first() -> None:
    [part] = found(1)
    assert part is not None
    order = [int(part.tokens[part.group == group, 0][0]) for group in part.group.unique()]
    assert order == [4, 203, 7, 209, 212]


def test_nothing_stays_nothing() -> None:
    assert rank_state(None) == {}
    assert reshard_rows([{}, {}], 0, 2) is None
    assert reshard_rows([{}, {}], 0, 1) is None


def test_items_go_in_turn() -> None:
    assert [reshard([[1, 2, 3], [4]], rank, 2) for rank in range(2)] == [[1, 2, 3], [4]]
    assert [reshard([[1, 2, 3], [4]], rank, 3) for rank in range(3)] == [[1, 4], [2], [3]]
