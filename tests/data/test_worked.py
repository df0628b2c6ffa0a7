"""Arithmetic with demonstrations of different lengths."""

from collections import Counter

import pytest

from rlmods.data import Arithmetic, Worked
from rlmods.data.solutions import worked_solution
from rlmods.errors import UserError
from rlmods.types import Prompt


def stated(prompt: Prompt) -> str:
    return answer_of(str(prompt.meta["response"]))


def answer_of(response: str) -> str:
    return response.rpartition("<answer>")[2].removesuffix("</answer>")


def test_questions_and_answers_are_those_of_arithmetic() -> None:
    worked = Worked(level=5, num_train=50, num_val=20)()
    plain = Arithmetic(level=5, num_train=50, num_val=20)()
    for a, b in zip((*worked.train, *worked.val), (*plain.train, *plain.val), strict=True):
        assert (a.id, a.text, a.answer) == (b.id, b.text, b.answer)
    assert all("response" not in prompt.meta for prompt in worked.val)


def test_styles_have_their_shares_and_forms() -> None:
    splits = Worked(num_train=2000, styles={"direct": 1, "short": 2, "checked": 1}, wrong={})()
    styles = Counter(prompt.meta["style"] for prompt in splits.train)
    assert 400 < styles["direct"] < 600
    assert 900 < styles["short"] < 1100
    for prompt in splits.train:
        lines = worked_solution((prompt.text or "").removesuffix("="))
        response = prompt.meta["response"]
        assert stated(prompt) == prompt.answer
        repeats = response.count("".join(lines[:-1]))
        expected = {"direct": (0,), "short": (1,), "checked": (2, 3)}[prompt.meta["style"]]
        assert repeats in expected
        assert response == "".join(lines[:-1]) * repeats + lines[-1]


@pytest.mark.parametrize("style", ["direct", "short", "checked"])
def test_a_fraction_of_a_style_is_wrong(style: str) -> None:
    splits = Worked(level=3, num_train=1000, styles={style: 1}, wrong={style: 0.25})()
    wrong = [prompt for prompt in splits.train if stated(prompt) != prompt.answer]
    assert 200 < len(wrong) < 300


def test_pairs_are_a_correct_and_a_wrong_response_in_the_styles_of_each() -> None:
    splits = Worked(num_train=2000, styles={"direct": 1, "short": 1}, wrong={"direct": 0.75})()
    direct = [0, 0]
    for prompt in (*splits.train, *splits.val):
        right, wrong = prompt.meta["candidates"]
        assert prompt.meta["ranks"] == (0, 1)
        assert answer_of(right) == prompt.answer != answer_of(wrong)
        direct[0] += right.startswith("<answer>")
        direct[1] += wrong.startswith("<answer>")
    assert 0.17 < direct[0] / 2200 < 0.23  # 0.25 / 1.25
    assert direct[1] == 2200


def test_there_are_no_pairs_without_wrong_responses() -> None:
    assert "candidates" not in Worked(num_train=5, wrong={})().train[0].meta


def test_the_seed_draws_questions_and_styles() -> None:
    a, again, b = (Worked(num_train=200, seed=seed)().train for seed in (0, 0, 1))
    assert a == again
    assert [p.text for p in a] != [p.text for p in b]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"styles": {"long": 1}}, r"data\.styles\.long: no such style"),
        ({"max_repeats": 1}, r"data\.max_repeats=1"),
        ({"level": 9}, r"data\.level=9"),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        Worked(**settings)()  # type: ignore[arg-type]
