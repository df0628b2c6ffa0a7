"""Groups wait in the order in which they were sampled; rejected ones only fill up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rlmods.training.buffer import SampleBuffer
from tests.training.test_rank_state import rows


def buffer(*kept: int, rejected: tuple[int, ...] = (), other_rank: int = 99) -> SampleBuffer:
    """Return a buffer on one of two ranks, the other of which has `other_rank` groups."""

    def reduce(x: torch.Tensor, op: str) -> torch.Tensor:
        return {"min": min, "max": max}[op](x, torch.tensor(other_rank))

    ranks: Any = SimpleNamespace(reduce=reduce)
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
    assert groups(made.keep_newest(3)) == [5, 6, 8]
    assert groups(made.kept) == [5, 6, 8]
    assert groups(made.keep_newest(9)) == [5, 6, 8]
    assert groups(made.keep_newest(0)) == []


def test_it_is_ready_when_every_rank_is() -> None:
    assert buffer(3, 5, 6, other_rank=1).min_groups() == 1
    assert buffer(3, 5, 6, other_rank=7).min_groups() == 3


def test_the_next_iteration_keeps_the_kept_groups_only() -> None:
    made = buffer(3, 5, rejected=(4,))
    assert made.num_pushed == 2
    made.end_iteration()
    assert (made.num_pushed, made.rejected, made.num_groups) == (0, None, 2)
