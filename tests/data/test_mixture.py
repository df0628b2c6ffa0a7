"""Mixtures of data sets."""

from collections import Counter
from collections.abc import Callable
from itertools import chain, islice, repeat
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.data import Arithmetic, Jsonl, Mixture, PromptLoader, Splits
from rlmods.data.loader import source_at
from rlmods.errors import UserError
from rlmods.types import Prompt
from tests.support.rows import write_rows


def part(num_train: int, num_val: int = 2) -> Callable[[], Splits]:
    """Data set whose ids are those of any other."""
    rows = [Prompt(id=str(i), text=f"{i}?") for i in range(num_train + num_val)]
    return lambda: Splits(rows[num_val:], rows[:num_val])


def stream(
    splits: Splits,
    batch_size: int,
    num_batches: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
) -> list[list[Prompt]]:
    loader = PromptLoader(splits.train, batch_size, seed, rank, world_size, splits.weights)
    return list(islice(chain.from_iterable(repeat(loader)), num_batches))


def greedy(weights: dict[str, float], length: int) -> list[tuple[str, int]]:
    """Slow reference: each position goes to the source with the earliest next item."""
    total, taken, order = sum(weights.values()), dict.fromkeys(weights, 0), []
    for _ in range(length):
        name = min(weights, key=lambda name: (taken[name] + 0.5) / (weights[name] / total))
        order.append((name, taken[name]))
        taken[name] += 1
    return order


class TestTurnsOfSources:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 120))
    def test_equals_the_loop(self, weights: list[int], length: int) -> None:
        named = {str(i): float(weight) for i, weight in enumerate(weights)}
        shares = {name: weight / sum(weights) for name, weight in named.items()}
        found = [source_at(position, shares) for position in range(length)]
        assert found == greedy(named, length)

    @pytest.mark.parametrize("start", [0, 17, 1000])
    def test_every_stretch_has_the_shares(self, start: int) -> None:
        shares = {"a": 0.625, "b": 0.25, "c": 0.125}
        counts = Counter(source_at(position, shares)[0] for position in range(start, start + 80))
        assert all(abs(counts[name] - 80 * share) <= 1 for name, share in shares.items())


class TestSplits:
    def test_ids_are_unique_and_sources_are_named(self) -> None:
        splits = Mixture({"x": part(5), "y": part(3)}, {"y": 2.0})()
        assert [prompt.id for prompt in splits.train] == [
            "x/2",
            "y/2",
            "x/3",
            "y/3",
            "x/4",
            "y/4",
            "x/5",
            "x/6",
        ]
        assert all(
            prompt.id.startswith(f"{prompt.source}/") for prompt in (*splits.train, *splits.val)
        )
        assert splits.weights == {"x": 1.0, "y": 2.0}

    def test_first_prompts_are_of_all_sources(self) -> None:
        splits = Mixture({"x": part(5, 4), "y": part(3, 2), "z": part(3, 0)})()
        assert [prompt.source for prompt in splits.val] == ["x", "y", "x", "y", "x", "x"]

    @pytest.mark.parametrize(
        ("mixture", "message"),
        [
            (Mixture(), r"data=mixture needs data sets; type \+data@data.sources.NAME=OPTION"),
            (
                Mixture({"x": part(3)}, {"y": 1.0}),
                r"data.weights.y: no such data set; choose from x",
            ),
            (
                Mixture({"x": part(3)}, {"x": 0.0}),
                r"data.weights.x=0.0: must be above 0; .*type ~data.sources.x",
            ),
            (
                Mixture({"x": Arithmetic(operations="/")}),
                r"data.sources.x: data.sources.x.operations=/: choose from",
            ),
            (
                Mixture({"x": Jsonl()}),
                r"data.sources.x: data.sources.x.train=null: the data needs a file; type data.sources.x.tra",
            ),
            (
                Mixture({"x": part(3), "y": Jsonl("y.jsonl", max_prompt_tokens=9)}),
                r"data.sources.y.max_prompt_tokens is not read",
            ),
            (
                Mixture({"x": Mixture({"y": part(3)})}),
                r"data.sources.x: a mixture cannot be part of a mixture",
            ),
            (
                Mixture({"x": "arithmetic"}),
                r"data.sources.x: is not a data set; type \+data@data.sources.x=OPTION",
            ),  # type: ignore[dict-item]
        ],
    )
    def test_errors(self, mixture: Mixture, message: str) -> None:
        with pytest.raises(UserError, match=f"^{message}") as error:
            mixture()
        assert "\n" not in str(error.value)


class TestStream:
    SPLITS = Mixture({"x": part(7), "y": part(4), "z": part(30)}, {"x": 2.0, "y": 1.0, "z": 1.0})()

    def test_every_batch_has_the_shares_and_every_pass_all_prompts(self) -> None:
        batches = stream(self.SPLITS, 8, 14)
        assert all(
            Counter(prompt.source for prompt in batch) == {"x": 4, "y": 2, "z": 2}
            for batch in batches
        )
        flat = list(chain.from_iterable(batches))
        for source, size in (("x", 7), ("y", 4)):
            own = [prompt for prompt in flat if prompt.source == source]
            for number in range(3):
                one = own[number * size : (number + 1) * size]
                assert len({prompt.id for prompt in one}) == size
                assert {prompt.time for prompt in one} == {number}

    def test_ranks_split_the_batches(self) -> None:
        parts = zip(*(stream(self.SPLITS, 6, 9, rank, 2) for rank in range(2)), strict=True)
        assert [list(chain.from_iterable(part)) for part in parts] == stream(self.SPLITS, 6, 9)

    def test_other_weights_are_other_data(self) -> None:
        state = PromptLoader(self.SPLITS.train, 6, weights=self.SPLITS.weights).state_dict()
        with pytest.raises(UserError, match="the data changed between save and resume"):
            PromptLoader(
                self.SPLITS.train, 6, weights={"x": 1.0, "y": 1.0, "z": 1.0}
            ).load_state_dict(state)


def test_a_column_is_the_source(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1+1=", "answer": 2, "kind": "sums"},
        {"prompt": "Hi", "answer": None, "kind": "talk"},
    ]
    file = str(write_rows(tmp_path / "x.jsonl", rows))
    first, second = Jsonl(file, source="kind", num_val=0)().train
    assert (first.source, first.answer) == ("sums", "2")
    assert (second.source, second.answer) == ("talk", None)
    assert first.meta == {}
