"""Groups wait in the order in which they were sampled, rejected ones only fill up, and another
number of ranks shares whole groups."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.training.buffer import SampleBuffer
from rlmods.training.checkpoint import rank_state, reshard, reshard_rows
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


def buffer(*kept: int, rejected: tuple[int, ...] = (), other_rank: int = 99) -> SampleBuffer:
    """Return a buffer on one of two ranks, the other of which has `other_rank` groups."""

    def reduce_count(count: int, op: str) -> int:
        return {"min": min, "max": max}[op](count, other_rank)

    ranks: Any = SimpleNamespace(reduce_count=reduce_count)
    made = SampleBuffer(ranks)
    groups = sorted((*kept, *rejected))
    for part in (groups[: len(groups) // 2], groups[len(groups) // 2 :]):
        made.push(
            batch := rows(*part), torch.tensor([group in kept for group in batch.group.tolist()])
        )
    return made


def groups(x: Any) -> list[int]:
    return torch.unique(x.group).tolist()


def test_the_oldest_groups_are_handed_out_first() -> None:
    made = buffer(3, 5, 6, 8, 9, rejected=(4, 7))
    assert made.num_groups == 5
    assert groups(made.pop(2)) == [3, 5]
    assert groups(made.pop(2)) == [6, 8]
    assert made.num_groups == 1
    assert groups(made.kept) == [9]


def test_rejected_groups_fill_up_without_loss() -> None:
    batch = buffer(3, 8, rejected=(4, 7, 9)).pop(4)
    assert groups(batch) == [3, 4, 7, 8]
    with_loss = batch.mask.any(1)
    assert groups(batch.select(with_loss)) == [3, 8]
    assert groups(batch.select(~with_loss)) == [4, 7]


def test_the_newest_groups_are_carried_over() -> None:
    made = buffer(3, 5, 6, 8)
    for limit, expected, expected_drops in [(3, [5, 6, 8], 1), (9, [5, 6, 8], 0), (0, [], 3)]:
        newest, num_dropped = made.keep_newest(limit)
        assert groups(newest) == groups(made.kept) == expected
        assert num_dropped == expected_drops


def test_it_is_ready_when_every_rank_is() -> None:
    assert buffer(3, 5, 6, other_rank=1).min_groups() == 1
    assert buffer(3, 5, 6, other_rank=7).min_groups() == 3


def test_the_next_iteration_keeps_the_kept_groups_only() -> None:
    made = buffer(3, 5, rejected=(4,))
    assert made.num_draws == 2
    made.end_iteration()
    assert (made.num_draws, made.rejected, made.num_groups) == (0, None, 2)


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


def test_items_go_in_turn() -> None:
    assert [reshard([[1, 2, 3], [4]], rank, 2) for rank in range(2)] == [[1, 2, 3], [4]]
    assert [reshard([[1, 2, 3], [4]], rank, 3) for rank in range(3)] == [[1, 4], [2], [3]]
