import re
from random import Random

import pytest
from hypothesis import given, strategies as st

from rlmods.data.solutions import (
    MAX_CANDIDATES,
    mistakes,
    place_values,
    ranked_candidates,
    solution_with_error,
    worked_solution,
)

OPERANDS = st.integers(0, 999)
QUESTIONS = st.one_of(
    st.builds("{}{}{}".format, OPERANDS, st.sampled_from("+-*"), OPERANDS),
    st.builds("({}{}{})*{}".format, OPERANDS, st.sampled_from("+-*"), OPERANDS, st.integers(2, 9)),
)


def is_correct(step: str) -> bool:
    question, value = step.rstrip("\n").split("=")
    return eval(question) == int(value)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("7+8", "7+8=15"),
        ("37+48", "7+8=15 30+40=70 70+15=85"),
        ("52-37", "2-7=-5 50-30=20 20-5=15"),
        ("12-345", "2-5=-3 10-40=-30 0-300=-300 -300-30=-330 -330-3=-333"),
        ("37*8", "7*8=56 30*8=240 240+56=296"),
        ("(3-45)*7", "3-5=-2 0-40=-40 -40-2=-42 -2*7=-14 -40*7=-280 -280-14=-294"),
    ],
)
def test_solves_digit_by_digit(question, expected):
    *calculations, answer = worked_solution(question)
    assert calculations == [f"{line}\n" for line in expected.split()]
    assert answer == f"<answer>{eval(question)}</answer>"


@given(number=st.integers(-99_999, 99_999))
def test_place_values_add_up_to_the_number(number):
    assert sum(place_values(number)) == number
    assert [abs(x) // 10**exponent for exponent, x in enumerate(place_values(number))] == [
        int(digit) for digit in str(abs(number))[::-1]
    ]


@given(question=QUESTIONS)
def test_every_step_is_correct_and_the_last_is_the_answer(question):
    *calculations, answer = worked_solution(question)
    assert all(map(is_correct, calculations))
    assert answer == f"<answer>{eval(question)}</answer>"


@given(question=QUESTIONS, seed=st.integers(0, 99))
def test_one_step_is_wrong_and_later_steps_continue_from_it(question, seed):
    steps, labels = solution_with_error(question, Random(seed))
    *calculations, answer = steps
    wrong_step = labels.index(0.0)
    assert labels == (1.0,) * wrong_step + (0.0,) * (len(steps) - wrong_step)
    assert steps[:wrong_step] == worked_solution(question)[:wrong_step]
    assert [is_correct(step) for step in calculations] == [
        i != wrong_step for i in range(len(calculations))
    ]
    final_value = int(re.fullmatch(r"<answer>(-?\d+)</answer>", answer)[1])
    assert final_value != eval(question)
    assert calculations[-1].endswith(f"={final_value}\n")
    assert (steps, labels) == solution_with_error(question, Random(seed))


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (57, [56, 58, 47, 67, 75]),
        (-132, [-133, -131, -142, -122, -123]),
        (4, [3, 5, -6, 14]),
        (33, [32, 34, 23, 43]),
    ],
)
def test_off_by_one_off_by_ten_or_swapped(answer, wrong):
    assert mistakes(answer) == wrong


@given(answer=st.integers(-9999, 9999), num=st.integers(2, MAX_CANDIDATES), seed=st.integers(0, 9))
def test_candidates_are_different_have_one_sign_and_are_ranked_by_distance(answer, num, seed):
    candidates, ranks = ranked_candidates(answer, num, Random(seed))
    assert len(set(candidates)) == len(ranks) == num
    assert candidates[ranks.index(0)] == answer
    assert ranks.count(0) == 1
    assert all((x < 0) == (answer < 0) for x in candidates)
    for x, i in zip(candidates, ranks, strict=True):
        for y, j in zip(candidates, ranks, strict=True):
            assert (i < j) == (abs(x - answer) < abs(y - answer))
    assert sorted(set(ranks)) == list(range(max(ranks) + 1))
