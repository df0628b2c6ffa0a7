from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlmods.reward import Copying, Diversity, Repetition
from rlmods.types import Prompt, Response
from tests.reward.samples import response

WORDS = st.lists(st.sampled_from("abc"), max_size=12)


def grams_of(words: list[str], size: int) -> list[list[str]]:
    return [words[i : i + size] for i in range(len(words) - size + 1)]


@pytest.mark.parametrize(
    ("reward", "values", "num_short"),
    [
        (Repetition(3), [0.0, 0.0, 0.0, 0.0, 0.0, -0.5], 4),
        (Copying(3), [0.0, 0.0, 0.0, 0.0, -1.0, -1.0], 4),
        (Diversity(3), [0.0, 0.0, 0.0, 0.0, -1.0, -1.0], 4),
    ],
)
def test_texts_shorter_than_one_ngram_score_0_and_are_counted(
    reward: Any, values: list[float], num_short: int
) -> None:
    texts = ("", " \n", "a a", "好" * 50, "a a a", "a a a a")
    rows = [Response(Prompt(id=text, text="a a a"), text=text) for text in texts]
    scores = reward(rows)
    assert (scores.values, scores.counts) == (values, {"short": num_short})


class TestRepetition:
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
    def test_matches_values_computed_by_hand(self, text: str, size: int, value: float) -> None:
        assert list(Repetition(size)([response(text)])) == pytest.approx([value], abs=1e-12)

    @given(WORDS, st.integers(1, 5))
    def test_matches_a_reference_loop(self, words: list[str], size: int) -> None:
        grams = grams_of(words, size)
        repeats = sum(gram in grams[:i] for i, gram in enumerate(grams))
        expected = -repeats / len(grams) if grams else 0.0
        assert list(Repetition(size)([response(" ".join(words))])) == pytest.approx([expected])


def copying(source: str, text: str, size: int = 2, allowed: float = 0.0) -> list[float | None]:
    return list(Copying(size, allowed)([Response(Prompt(id="1", text=source), text=text)]))


class TestCopying:
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
    def test_by_hand(self, source: str, text: str, expected: float) -> None:
        assert copying(source, text) == pytest.approx([expected])

    @given(WORDS, WORDS, st.integers(1, 3), st.sampled_from([0.0, 0.3]))
    def test_matches_a_reference_loop(
        self, source: list[str], words: list[str], size: int, allowed: float
    ) -> None:
        grams = grams_of(words, size)
        copied = sum(gram in grams_of(source, size) for gram in grams) / max(1, len(grams))
        expected = 0.0 if copied <= allowed else -(copied - allowed) / (1 - allowed)
        found = copying(" ".join(source), " ".join(words), size, allowed)
        assert found == pytest.approx([expected])

    def test_all_messages_count_and_ngrams_do_not_span_them(self) -> None:
        turns = [{"role": "system", "content": "a b"}, {"role": "user", "content": "c d"}]
        prompt = Prompt(id="1", messages=turns)
        rows = [Response(prompt, text=text) for text in ("a b", "c d", "b c")]
        assert list(Copying(2)(rows)) == [-1.0, -1.0, 0.0]


def diversity(rows: list[tuple[str, str]], size: int = 2) -> list[float | None]:
    responses = [Response(Prompt(id=prompt, text=prompt), text=text) for prompt, text in rows]
    return list(Diversity(size)(responses))


class TestDiversity:
    def test_by_hand(self) -> None:
        rows = [
            ("1", "great question the answer is two"),
            ("2", "Great question it depends"),
            ("3", "four"),
            ("3", "quite another"),
        ]
        assert diversity(rows) == pytest.approx([-1 / 5, -1 / 3, 0.0, 0.0])

    def test_responses_to_one_prompt_may_be_alike(self) -> None:
        assert diversity([("1", "a b c"), ("1", "a b c")]) == [0.0, 0.0]
        assert diversity([("1", "a b c"), ("1", "a b c"), ("2", "a b c")]) == [-1.0] * 3

    @given(
        st.lists(st.tuples(st.sampled_from("123"), WORDS), max_size=6),
        st.integers(1, 3),
        st.randoms(use_true_random=False),
    )
    def test_matches_a_reference_loop_in_any_order(
        self, rows: list[tuple[str, list[str]]], size: int, random: Any
    ) -> None:
        expected = []
        for prompt, words in rows:
            others: list[list[str]] = []
            for other, text in rows:
                others += grams_of(text, size) if other != prompt else []
            grams = grams_of(words, size)
            distinct = [gram for i, gram in enumerate(grams) if gram not in grams[:i]]
            shared = sum(gram in others for gram in distinct)
            expected.append(-shared / len(distinct) if distinct else 0.0)
        texts = [(prompt, " ".join(words)) for prompt, words in rows]
        assert diversity(texts, size) == pytest.approx(expected)
        order = random.sample(range(len(rows)), len(rows))
        shuffled = diversity([texts[i] for i in order], size)
        assert shuffled == pytest.approx([expected[i] for i in order])
