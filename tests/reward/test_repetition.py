import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward import Repetition
from tests.reward.samples import response


def penalty(text: str, size: int = 3) -> float | None:
    return Repetition(size)([response(text)])[0]


@pytest.mark.parametrize(
    ("text", "size", "value"),
    [
        ("a b c d", 3, 0.0),
        ("a b c a b c", 3, -0.25),  # abc bca cab abc
        ("a a a a a", 3, -2 / 3),
        ("A a\nA\ta a", 3, -2 / 3),
        ("a b a b", 1, -0.5),
        ("a b a b", 2, -1 / 3),
        ("a b a b", 4, 0.0),
        ("a, a a", 2, 0.0),
        ("é é é é", 2, -2 / 3),
    ],
)
def test_matches_values_computed_by_hand(text: str, size: int, value: float) -> None:
    assert penalty(text, size) == pytest.approx(value, abs=1e-12)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 5))
def test_matches_a_reference_loop(words: list[str], size: int) -> None:
    grams = [words[i : i + size] for i in range(len(words) - size + 1)]
    repeats = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert penalty(" ".join(words), size) == pytest.approx(-repeats / len(grams) if grams else 0.0)


def test_texts_shorter_than_one_ngram_score_0_and_are_counted() -> None:
    result = Repetition(3)(
        [response(text) for text in ("", " \n", "a a", "好" * 50, "a a a", "a a a a")]
    )
    assert result.values == [0.0, 0.0, 0.0, 0.0, 0.0, -0.5]
    assert result.counts == {"short": 4}
