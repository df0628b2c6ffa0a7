"""Prompts that are retired and brought back."""

import json
from collections.abc import Callable
from itertools import chain, islice, repeat
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.data import PromptLoader
from rlmods.data.pools import DifficultyPools
from rlmods.types import Prompt

SAMPLES = 4


def prompts(number: int, source: str | None = None) -> list[Prompt]:
    return [Prompt(id=f"{source}-{i}", text=f"{i}?", source=source) for i in range(number)]


def outcome(prompt: Prompt) -> int:
    """Correct responses of four: a third of the prompts is always solved, a third never, a third
    changes with the pass."""
    number = int(prompt.id.rpartition("-")[2])
    return (SAMPLES, 0, (prompt.time + number) % 3)[number % 3]


class Run:
    """Loaders of all ranks in lockstep, with pools that all ranks update alike."""

    def __init__(
        self,
        rows: list[Prompt],
        batch_size: int,
        world_size: int = 1,
        weights: Any = None,
        **options: Any,
    ) -> None:
        options = {"solved_after": 2, "unsolved_after": 2, "bring_back": 0.25} | options
        self.pools = [DifficultyPools(**options) for _ in range(world_size)]
        self.loaders = [
            PromptLoader(rows, batch_size, 5, rank, world_size, weights, self.pools[rank])
            for rank in range(world_size)
        ]
        self.batches = [chain.from_iterable(repeat(loader)) for loader in self.loaders]

    def step(self, outcome: Callable[[Prompt], int] = outcome) -> list[Prompt]:
        batch = list(chain.from_iterable(next(batches) for batches in self.batches))
        for pools in self.pools:
            for prompt in batch:
                pools.update(prompt.id, outcome(prompt), SAMPLES)
        return batch

    def state(self) -> list[Any]:
        return [
            (json.dumps(pools.state_dict()), json.dumps(loader.state_dict()))
            for pools, loader in zip(self.pools, self.loaders, strict=True)
        ]


def passes(batches: list[list[Prompt]]) -> dict[int, list[str]]:
    """Ids by pass."""
    found: dict[int, list[str]] = {}
    for prompt in chain.from_iterable(batches):
        found.setdefault(prompt.time, []).append(prompt.id)
    return found


class TestUpdate:
    def test_retires_after_a_number_in_a_row(self) -> None:
        pools = DifficultyPools(solved_after=2, unsolved_after=3, bring_back=0.0)
        solved = [(4, False), (2, False), (4, False), (4, True), (4, True)]
        unsolved = [(0, False), (0, False), (0, True), (1, False), (0, False), (0, False)]
        for num_correct, retired in [
            *solved,
            *unsolved,
            (4, False),
            (0, False),
            (4, False),
            (4, True),
        ]:
            pools.update("a", num_correct, 4)
            assert ("a" in pools.retired) == retired

    def test_unscored_occurrences_do_not_count(self) -> None:
        pools = DifficultyPools(2, 2, 0.0)
        for num_correct, num_scored in [(4, 4), (0, 0), (2, 2)]:
            pools.update("a", num_correct, num_scored)
        assert list(pools.retired) == ["a"]


class TestPass:
    def pools(self, num_retired: int, bring_back: float) -> DifficultyPools:
        pools = DifficultyPools(1, None, bring_back)
        for i in range(num_retired):
            pools.update(str(i), 4, 4)
        return pools

    @pytest.mark.parametrize(("bring_back", "back"), [(0.0, 0), (0.25, 3), (0.01, 1), (1.0, 10)])
    def test_brings_a_fraction_back(self, bring_back: float, back: int) -> None:
        pools = self.pools(10, bring_back)
        left_out = pools.begin_pass({str(i) for i in range(20)}, "0-1", 1)
        assert len(left_out) == len(pools.retired) == 10 - back
        assert pools.num_brought_back == back

    def test_one_that_was_brought_back_is_retired_again_after_one_more(self) -> None:
        pools = DifficultyPools(3, None, 1.0)
        for _ in range(3):
            pools.update("a", 4, 4)
        assert pools.begin_pass({"a", "b"}, "0-1", 1) == frozenset()
        pools.update("a", 4, 4)
        assert list(pools.retired) == ["a"]

    def test_enough_prompts_stay(self) -> None:
        pools = self.pools(10, 0.0)
        assert pools.begin_pass({str(i) for i in range(10)}, "0-1", 4) == {
            str(i) for i in range(4, 10)
        }, "the earliest come back"


class TestStream:
    def test_a_pass_holds_every_prompt_that_is_not_retired_when_it_begins(self) -> None:
        run = Run(prompts(30), 6)
        batches = [run.step() for _ in range(24)]
        found = passes(batches)
        assert [len(found[number]) for number in (0, 1)] == [30, 30]
        for number in range(max(found)):
            assert len(set(found[number])) == len(found[number])
        third = {int(name.split("-")[1]) % 3 for name in found[2]}
        assert len(found[2]) == 10 + 5, "the unstable ones, and a quarter of the 20 others"
        assert third == {0, 1, 2}

    def test_without_retired_prompts_it_is_the_plain_stream(self) -> None:
        run = Run(prompts(7), 3, solved_after=100, unsolved_after=100)
        plain = chain.from_iterable(repeat(PromptLoader(prompts(7), 3, 5)))
        assert [run.step() for _ in range(12)] == list(islice(plain, 12))

    def test_all_solved_still_fills_batches_without_repetition(self) -> None:
        run = Run(prompts(12), 4, bring_back=0.0)
        for _ in range(20):
            assert len({prompt.id for prompt in run.step(lambda prompt: SAMPLES)}) == 4

    @settings(max_examples=25, deadline=None)
    @given(st.integers(5, 20), st.integers(1, 3), st.integers(1, 3), st.integers(0, 12))
    def test_ranks_are_one_and_resuming_changes_nothing(
        self, number: int, batch: int, world_size: int, before: int
    ) -> None:
        size = batch * world_size
        straight, ranks = Run(prompts(number), size), Run(prompts(number), size, world_size)
        expected = [straight.step() for _ in range(before + 8)]
        assert [ranks.step() for _ in range(before)] == expected[:before]
        assert len(set(ranks.state())) == 1
        pools, loader = map(json.loads, ranks.state()[0])
        resumed = Run(prompts(number), size)
        resumed.pools[0].load_state_dict(pools)
        resumed.loaders[0].load_state_dict(loader)
        assert [resumed.step() for _ in range(8)] == expected[before:]
        assert resumed.state() == straight.state()

    def test_sources_have_passes_of_their_own(self) -> None:
        rows = [*prompts(8, "x"), *prompts(30, "y")]
        run = Run(rows, 6, weights={"x": 2.0, "y": 1.0}, bring_back=0.0)
        batches = [run.step() for _ in range(20)]
        assert all(sum(prompt.source == "x" for prompt in batch) == 4 for batch in batches)
        found = passes(
            [[prompt for prompt in chain.from_iterable(batches) if prompt.source == "x"]]
        )
        assert [len(found[number]) for number in (0, 1, 2)] == [8, 8, 4], (
            "two are unstable, and a batch needs four"
        )
