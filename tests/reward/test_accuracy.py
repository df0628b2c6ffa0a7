from __future__ import annotations

import pytest

from rlmods.reward import Accuracy
from rlmods.reward.accuracy import verify
from rlmods.types import UserError
from tests.reward.samples import response


def test_correct_wrong_and_without_gold() -> None:
    rows = [
        response(r"\boxed{5}", "5"),
        response(r"\boxed{6}", "5"),
        response("no idea", "5"),
        response(r"\boxed{6}"),
        response(r"\boxed{(x+1)^2}", "x^2+2x+1"),
    ]
    scores = Accuracy(correct=1.0, wrong=-1.0)(rows)
    assert list(scores) == [1.0, -1.0, -1.0, None, 1.0]
    assert scores.correct == [True, False, False, None, True]
    assert scores.counts == {"timeouts": 0, "errors": 0}
    assert scores.columns == {"extracted": ["5", "6", "no idea", "6", "(x+1)^2"]}


def test_plain_answers_use_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.accuracy.shared_pool", lambda *_: pytest.fail("a worker was used"))
    pairs = [("3/4", "0.75"), ("B", "A"), ("Monday", "Monday"), (r"\pi", r"\pi")]
    assert Accuracy()([response(rf"\boxed{{{text}}}", gold) for text, gold in pairs]).correct == [True, False, True, True]


def test_scores_are_in_the_order_of_the_responses() -> None:
    rows = [response(rf"\boxed{{{n}+x}}", f"x+{n % 3}") for n in range(12)]
    forward, backward = Accuracy()(rows), Accuracy()(rows[::-1])
    assert forward.correct == [n < 3 for n in range(12)]
    assert backward.correct == list(forward.correct or [])[::-1]


def test_failures_are_wrong_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlmods.reward.pool import Outcome

    class Pool:
        def map(self, calls: list[object], **_: object) -> list[Outcome]:
            return [Outcome("timeout"), Outcome("error", "boom"), Outcome("ok", True)]

    monkeypatch.setattr("rlmods.reward.accuracy.shared_pool", lambda *_: Pool())
    scores = Accuracy(wrong=-0.5)([response(rf"\boxed{{x+{n}}}", "y") for n in range(3)])
    assert list(scores) == [-0.5, -0.5, 1.0]
    assert scores.counts == {"timeouts": 1, "errors": 1}


def test_verify_grades_one_response_without_workers() -> None:
    assert verify(r"so \boxed{\frac{1}{2}}", "0.5")
    assert not verify(r"so \boxed{\frac{1}{3}}", "0.5")
    assert not verify(None, "5")  # type: ignore[arg-type]


def test_no_responses() -> None:
    assert list(Accuracy()([])) == []


@pytest.mark.parametrize(("field", "value"), [("timeout_s", 0.0), ("batch_timeout_s", -1.0), ("workers", 0)])
def test_limits_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(UserError, match=field):
        Accuracy(**{field: value})  # type: ignore[arg-type]
