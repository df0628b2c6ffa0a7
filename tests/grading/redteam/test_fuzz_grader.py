"""The grader under random texts: it returns a verdict in bounded time, and the format around an
answer does not change it."""

import pytest
from hypothesis import given, strategies as st

from rlmods.grading.grader import extract, extract_gold, same_answer, verify
from rlmods.grading.time_limit import time_limit
from tests.grading.redteam import honest, hostile
from tests.grading.redteam.fuzz import fuzz
from tests.grading.redteam.rows import WRAPPERS

pytestmark = pytest.mark.nightly

SECONDS = 5.0
ROWS = [*hostile.rows(), *honest.rows()]
GOLDS = sorted({row.gold for row in ROWS})
PIECES = sorted({piece for row in ROWS for piece in (row.text[:12], row.text[-12:], row.gold)})
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join),
)
golds = st.sampled_from(GOLDS) | texts
"""Texts put together from parts of the corpora, and random ones."""
numbers = st.integers(-(10**6), 10**6).map(str) | st.decimals(
    -1000, 1000, allow_nan=False, places=3
).map(str)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A response of the corpora with a part removed, repeated, or replaced by a part of another
    one."""
    text, other = (draw(st.sampled_from(ROWS)).text[:400] for _ in range(2))
    i, j = sorted(draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    return text[:i] + draw(st.sampled_from(["", text[i:j] * 2, other[i:j], other])) + text[j:]


@fuzz(100)
@given(mutated() | texts)
def test_fuzz_extraction_gives_a_part_of_the_text_or_none(text: str) -> None:
    with time_limit(SECONDS):
        assert verify(text, "17") in (True, False)
        answer = extract(text)
        assert answer is None or (isinstance(answer, str) and answer == answer.strip() != "")
        assert isinstance(extract_gold(text), str)


@fuzz(100)
@given(numbers, numbers)
def test_fuzz_the_format_around_a_number_does_not_change_its_verdict(
    answer: str, gold: str
) -> None:
    expected = same_answer(answer, gold)
    assert {
        verify(wrapper.replace("ANSWER", answer), gold) for wrapper in (*WRAPPERS, "ANSWER")
    } == {expected}


@fuzz(60)
@given(
    texts.filter(lambda text: not any(char in text for char in "\\{}<>$#\n") and text.strip()),
    golds,
)
def test_fuzz_tags_do_not_change_the_verdict_of_a_text(text: str, gold: str) -> None:
    """Texts without commands and braces mean the same in a box, between tags and on their own."""
    with time_limit(SECONDS):
        assert verify(rf"\boxed{{{text}}}", gold) is verify(f"<answer>{text}</answer>", gold)


@fuzz(100)
@given(st.sampled_from(GOLDS), st.sampled_from(WRAPPERS))
def test_fuzz_a_gold_that_contains_the_answer_is_not_enough(gold: str, wrapper: str) -> None:
    """What precedes or follows the gold answer is a part of the answer."""
    with time_limit(SECONDS):
        assert not verify(wrapper.replace("ANSWER", f"{gold} is wrong, 12345"), gold)
