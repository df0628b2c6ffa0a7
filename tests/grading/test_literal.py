"""Dates, scores, ranges, versions, phone numbers and ratios in words are compared as written."""

import pytest

from rlmods.grading.grader import CLOSED_FORMS, same_answer

SAME = [  # gold, answer
    ("2 to 3", "2 to 3"),
    ("2 to 3", "2:3"),
    ("2 to 3", r"2\text{ to }3"),
    ("2:3", "2 to 3"),
    ("2020-02-01", "2020-02-01"),
    ("2020-02-01", "2020-2-1"),
    ("3-1", "3–1"),
    ("3-1", "3 - 1"),
    ("7-10", "7 to 10"),
    ("1/2/2020", "01/02/2020"),
    ("556-1235", "556-1235"),
    ("3 of 2", r"\text{3 of 2}"),
    ("1.10.2", "1.10.2"),
    ("5 July", "July 5"),
    ("July 4, 1776", "4 July 1776"),
    ("5 July", r"5\text{ July}"),
    ("(555) 123-4567", "(555) 123-4567"),
    ("1.10.2", "v1.10.2"),
    ("v1.10.2", "1.10.2"),
]
DIFFERENT = [
    ("2 to 3", "3 to 2"),
    ("2 to 3", "6to"),
    ("2 to 3", "4 to 6"),
    ("2:3", "3 to 2"),
    ("3 of 2", "2 of 3"),
    ("2 in 3", "3 in 2"),
    ("2 by 3", "3 by 2"),
    ("1 out of 4", "4 out of 1"),
    ("2020-02-01", "2020-01-02"),
    ("2020-02-01", "2017"),
    ("3-1", "4-2"),
    ("3-1", "2"),
    ("7-10", "4-7"),
    ("7-10", "-3"),
    ("556-1235", "555-1234"),
    ("1/2/2020", "1/4040"),
    ("1.10.2", "1.1.2"),
    ("5 July", "5"),
    ("5 July", "5 June"),
    ("July 4, 1776", "4"),
    ("(555) 123-4567", "(555) 124-4568"),
    ("1.10.2", "v1.10.3"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_same(gold: str, answer: str) -> None:
    assert same_answer(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not same_answer(answer, gold, CLOSED_FORMS)
