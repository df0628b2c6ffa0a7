import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.reward import Copying
from rlmods.types import Prompt, Response


def penalty(source: str, text: str, size: int = 2, allowed: float = 0.0) -> float | None:
    return Copying(size, allowed)([Response(Prompt(id="1", text=source), text=text)])[0]


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("the cat sat on the mat", "a cat slept", 0.0),
        ("the cat sat on the mat", "The CAT sat", -1.0),
        ("the cat sat on the mat", "the cat sat here on", -0.5),
        ("the cat sat", "cat the", 0.0),
        ("", "the cat", 0.0),
    ],
)
def test_by_hand(source: str, text: str, expected: float) -> None:
    assert penalty(source, text) == pytest.approx(expected)


@given(
    *[st.lists(st.sampled_from("abc"), max_size=12)] * 2,
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
)
def test_matches_a_reference_loop(
    source: list[str], words: list[str], size: int, allowed: float
) -> None:
    grams = [words[i : i + size] for i in range(len(words) - size + 1)]
    copied = sum(
        any(source[j : j + size] == gram for j in range(len(source))) for gram in grams
    ) / max(1, len(grams))
    expected = 0.0 if copied <= allowed else -(copied - allowed) / (1 - allowed)
    assert penalty(" ".join(source), " ".join(words), size, allowed) == pytest.approx(expected)


def test_all_messages_count_and_ngrams_do_not_span_them() -> None:
    prompt = Prompt(
        id="1", messages=[{"role": "system", "content": "a b"}, {"role": "user", "content": "c d"}]
    )
    assert list(Copying(2)([Response(prompt, text=text) for text in ("a b", "c d", "b c")])) == [
        -1.0,
        -1.0,
        0.0,
    ]


def test_short_responses_score_0_and_are_counted() -> None:
    scores = Copying(3)(
        [Response(Prompt(id="1", text="a b c"), text=text) for text in ("", "a b", "a b c")]
    )
    assert (list(scores), scores.counts) == ([0.0, 0.0, -1.0], {"short": 2})
