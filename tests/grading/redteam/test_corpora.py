"""The corpora of mathematical answers are large, reproducible and without contradictions, and the
tools that grade them count right. The grader pays at most 1 % of the hostile answers, each
explained, and refuses at most 3 % of the honest ones."""

import re
import time
from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from rlmods.grading.grader import verify
from rlmods.grading.time_limit import LateError, time_limit
from tests.grading.redteam import __main__ as command, honest, hostile
from tests.grading.redteam.__main__ import EXPLAINED
from tests.grading.redteam.rows import WRAPPERS, Graded, Row, grade, wrap

pytestmark = pytest.mark.slow

HOSTILE, HONEST = hostile.rows(), honest.rows()


class TestRows:
    def test_there_are_enough(self) -> None:
        assert len(HOSTILE) >= 600
        assert len(HONEST) >= 500
        for rows, families in ((HOSTILE, hostile), (HONEST, honest)):
            sizes = {
                name: sum(row.family == name for row in rows)
                for name in families.FAMILIES | families.WHOLE
            }  # type: ignore[attr-defined]
            assert min(sizes.values()) >= 20, sizes

    @pytest.mark.slow
    def test_are_determined_by_the_seed(self) -> None:
        assert hostile.rows() == HOSTILE
        assert honest.rows() == HONEST
        for kind, rows in ((hostile, HOSTILE), (honest, HONEST)):
            others = {(row.gold, row.text) for row in kind.rows(seed=1)}  # type: ignore[attr-defined]
            assert len(others - {(row.gold, row.text) for row in rows}) > len(rows) / 2

    def test_no_response_is_both_hostile_and_honest(self) -> None:
        assert not {(row.gold, row.text) for row in HOSTILE} & {
            (row.gold, row.text) for row in HONEST
        }

    def test_no_hostile_response_states_the_gold_itself(self) -> None:
        stated = {
            (row.gold, wrapper.replace("ANSWER", row.gold))
            for row in HOSTILE
            for wrapper in (*WRAPPERS, "ANSWER")
        }
        assert not stated & {(row.gold, row.text) for row in HOSTILE}


class TestWrap:
    @pytest.mark.parametrize(
        ("answer", "absent"), [("$5$", "$$"), ("**B**", "boxed"), ("1\n2", "####")]
    )
    def test_only_formats_that_hold_the_answer(self, answer: str, absent: str) -> None:
        assert not [text for i in range(50) if absent in (text := wrap(Random(i), answer))]


class TestGrade:
    ROWS = (Row("a", "1", "1", True), Row("a", "1", "2", False), Row("b", "1", "slow", False))

    @staticmethod
    def slow(text: str, gold: str, question: str) -> bool:
        try:
            if text == "slow":
                time.sleep(30)
        except Exception:  # a grader that catches everything does not hide that it is late
            return True
        return text == gold

    def test_late_verdicts_are_neither_paid_nor_refused(self) -> None:
        graded = grade(self.ROWS, self.slow, limit_s=0.2)
        assert [x.paid for x in graded] == [True, False, None]
        assert graded[2].seconds < 10

    def test_limit_also_holds_in_a_regular_expression(self) -> None:
        with pytest.raises(LateError), time_limit(0.2):
            re.fullmatch(r"(a|a)*b", "a" * 60)


class TestCommand:
    def test_prints_the_table_of_a_section(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            hostile,
            "rows",
            lambda: [
                Row("echo", "4", "<answer>5</answer>", False),
                Row("sign", "4", "<answer>4</answer>", False),
            ],
        )
        monkeypatch.setattr(honest, "rows", lambda: [Row("plain", "4", "<answer>4</answer>", True)])
        command.main(["grader"])
        lines = [
            [cell.strip() for cell in line.split("|")[1:6]]
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("|")
        ]
        assert lines[0] == ["answers", "tried", "paid", "refused", "late"]
        assert ["hostile: all", "2", "1", "1", "0"] in lines
        assert ["hostile: echo", "1", "0", "1", "0"] in lines
        assert ["honest: plain", "1", "1", "0", "0"] in lines

    def test_unknown_section(self) -> None:
        with pytest.raises(SystemExit, match="no section nonsense; there are: grader"):
            command.main(["nonsense"])

    def test_explained_rows_exist(self) -> None:
        assert set(EXPLAINED) <= {(row.gold, row.text) for row in HOSTILE}


MAX_PAID = 0.01
MAX_REFUSED = 0.03


@cache
def graded(title: str) -> Sequence[Graded]:
    return grade({"hostile": hostile, "honest": honest}[title].rows(), verify)


def test_hostile_answers_are_not_paid() -> None:
    answers = graded("hostile")
    paid = [(x.row.gold, x.row.text) for x in answers if x.paid]
    assert [pair for pair in paid if pair not in EXPLAINED] == []
    assert len(paid) <= MAX_PAID * len(answers)
    assert [x.row.text[:100] for x in answers if x.paid is None] == []


def test_honest_answers_are_not_refused() -> None:
    refused = [(x.row.gold, x.row.text) for x in graded("honest") if not x.paid]
    assert len(refused) <= MAX_REFUSED * len(graded("honest")), refused
