from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward import Diversity
from rlmods.types import Prompt, Response


def score(rows: list[tuple[str, str]], size: int = 2) -> list[float | None]:
    return list(
        Diversity(size)(
            [Response(Prompt(id=prompt, text=prompt), text=text) for prompt, text in rows]
        )
    )


def test_by_hand() -> None:
    rows = [
        ("1", "great question the answer is two"),
        ("2", "Great question it depends"),
        ("3", "four"),
        ("3", "quite another"),
    ]
    assert score(rows) == pytest.approx([-1 / 5, -1 / 3, 0.0, 0.0])


def test_responses_to_one_prompt_may_be_alike() -> None:
    assert score([("1", "a b c"), ("1", "a b c")]) == [0.0, 0.0]
    assert score([("1", "a b c"), ("1", "a b c"), ("2", "a b c")]) == [-1.0] * 3


TEXTS = st.lists(st.sampled_from("abc"), max_size=6).map(" ".join)


@given(
    st.lists(st.tuples(st.sampled_from("123"), TEXTS), max_size=6),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_matches_a_reference_loop_in_any_order(
    rows: list[tuple[str, str]], size: int, random: Any
) -> None:
    def grams(text: str) -> list[list[str]]:
        words = text.split()
        return [words[i : i + size] for i in range(len(words) - size + 1)]

    expected = []
    for prompt, text in rows:
        distinct = [gram for i, gram in enumerate(grams(text)) if gram not in grams(text)[:i]]
        shared = [
            gram
            for gram in distinct
            if any(gram in grams(other) for p, other in rows if p != prompt)
        ]
        expected.append(-len(shared) / len(distinct) if distinct else 0.0)
    assert score(rows, size) == pytest.approx(expected)
    order = random.sample(range(len(rows)), len(rows))
    assert score([rows[i] for i in order], size) == pytest.approx([expected[i] for i in order])


def test_short_responses_score_0_and_are_counted() -> None:
    scores = Diversity(3)(
        [
            Response(Prompt(id=x, text=""), text=text)
            for x, text in (("1", ""), ("2", "a b"), ("3", "a b c"))
        ]
    )
    assert (list(scores), scores.counts) == ([0.0, 0.0, 0.0], {"short": 2})
