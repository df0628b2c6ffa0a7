import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.data.arithmetic import Arithmetic
from rlmods.errors import UserError
from rlmods.grading.pool import Outcome
from rlmods.reward import Accuracy, Rules
from rlmods.reward.accuracy import verify
from rlmods.types import Prompt, Response
from tests.reward.samples import response

NO_FAILURES = {"timeouts": 0, "errors": 0}
NO_SYMPY = {"sympy_decided": 0, "sympy_timeouts": 0}


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
    assert scores.counts == {**NO_FAILURES, **NO_SYMPY}
    assert scores.columns == {"extracted": ["5", "6", "no idea", "6", "(x+1)^2"]}


def test_plain_answers_use_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rlmods.reward.accuracy.shared_pool", lambda *_: pytest.fail("a worker was used")
    )
    pairs = [("3/4", "0.75"), ("B", "A"), ("Monday", "Monday"), (r"\pi", r"\pi")]
    assert Accuracy()([response(rf"\boxed{{{text}}}", gold) for text, gold in pairs]).correct == [
        True,
        False,
        True,
        True,
    ]


def test_failures_are_wrong_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def map(self, calls: list[object], **_: object) -> list[Outcome]:
            return [Outcome("timeout"), Outcome("error", "boom"), Outcome("ok", True)]

    monkeypatch.setattr("rlmods.reward.accuracy.shared_pool", lambda *_: Pool())
    scores = Accuracy(wrong=-0.5)([response(rf"\boxed{{x+{n}}}", "y") for n in range(3)])
    assert list(scores) == [-0.5, -0.5, 1.0]
    assert scores.counts == {"timeouts": 1, "errors": 1, **NO_SYMPY}


def test_sympy_decides_in_a_worker_and_is_counted() -> None:
    prompt = Prompt(id="0", text="Add the first n squares.", answer=r"\frac{n(n+1)(2n+1)}{6}")
    series = Prompt(id="1", text="Which series is it?", answer=r"\sum_{k=1}^{n} k^2")
    rows = [
        Response(prompt, tokens=range(1), text=r"\boxed{\sum_{k=1}^{n} k^2}"),
        Response(series, tokens=range(1), text=r"\boxed{\frac{n(n+1)(2n+1)}{6}}"),
        Response(series, tokens=range(1), text=r"\boxed{\frac{n(n+1)(2n-1)}{6}}"),
    ]
    scores = Accuracy()(rows)
    assert scores.correct == [False, True, False]
    assert scores.counts == {**NO_FAILURES, "sympy_decided": 1, "sympy_timeouts": 0}
    assert Accuracy(rules=Rules(sympy=False))(rows).correct == [False, False, False]


def test_an_answer_that_was_late_is_graded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [Outcome("timeout"), Outcome("error", "killed"), Outcome("ok", True)]
    graded: list[int] = []

    class Pool:
        def map(self, calls: list[object], **_: object) -> list[Outcome]:
            graded.append(len(calls))
            return late[: len(calls)] if len(graded) == 1 else [Outcome("ok", True)] * len(calls)

    monkeypatch.setattr("rlmods.reward.accuracy.shared_pool", lambda *_: Pool())
    monkeypatch.setattr("rlmods.reward.accuracy._VERDICTS", {})
    rows = [response(rf"\boxed{{late+{n}}}", "z") for n in range(3)]
    assert Accuracy()(rows).correct == [False, False, True]
    assert Accuracy()(rows).correct == [True, True, True]
    assert graded == [3, 2]


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_expression_of_a_question_earns_nothing(level: int) -> None:
    prompts = Arithmetic(level=level, num_train=1, num_val=200)().val
    for form in ("%s", "<answer>%s</answer>", r"\boxed{%s}", "#### %s", r"\boxed{%s+0}"):
        rows = [
            Response(prompt, tokens=range(1), text=form % prompt.id.rpartition("-val-")[2])
            for prompt in prompts
        ]
        assert not any(Accuracy()(rows).correct or [])
    rows = [
        Response(prompt, tokens=range(1), text=f"<answer>{prompt.answer}</answer>")
        for prompt in prompts
    ]
    assert all(Accuracy()(rows).correct or [])


def test_an_expression_that_occurs_in_the_question_is_wrong_under_any_rules() -> None:
    prompts = [
        Prompt(id="0", text="Compute $7^2+1$.", answer="50"),
        Prompt(id="1", messages=[{"role": "user", "content": "7^2+1"}], answer="50"),
    ]
    rows = [
        Response(prompt, tokens=range(1), text=rf"\boxed{{{text}}}")
        for prompt in prompts
        for text in ("7^2 + 1", "1+7^2", "50")
    ]
    assert Accuracy(rules=Rules(form="any"))(rows).correct == [False, False, True] * 2
    assert Accuracy()(rows).correct == [False, False, True] * 2


def test_rules_are_part_of_the_cached_verdict() -> None:
    rows = [response(r"\boxed{3+x+0}", "x+3"), response(r"\boxed{x=2+3}", "x=5")]
    assert Accuracy()(rows).correct == [True, False]
    assert Accuracy(rules=Rules(form="any"))(rows).correct == [True, True]


@pytest.mark.parametrize("gold", ["nan", "NaN", "", "$\\boxed{nan}$"])
def test_a_gold_that_nothing_can_equal_is_not_graded(gold: str) -> None:
    scores = Accuracy()([response("nan", gold), response(r"\boxed{}", gold), response("0", gold)])
    assert (list(scores), scores.correct) == ([None] * 3, [None] * 3)
    assert not verify("nan", gold)


@pytest.mark.parametrize(
    "piece", [r"$1$, ", r"\boxed{1} or ", r"\boxed{x+", "answer is x^2 ", "9", "{", " ", r"\frac"]
)
def test_long_responses_are_graded_within_the_deadline(piece: str) -> None:
    rows = [
        response(form % (piece * (100_000 // len(piece))), "x+5")
        for form in ("%s", r"\boxed{%s}", "The answer is %s because")
    ]
    start = time.monotonic()
    assert Accuracy(timeout_s=2.0)(rows).correct == [False] * len(rows)
    assert time.monotonic() - start < 15


CONF = Path(__file__).parents[2] / "conf" / "reward"


def reward(name: str, *overrides: str) -> Any:
    changes = [override.lstrip("+") for override in overrides]
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), OmegaConf.from_dotlist(changes))
    return instantiate(config, "reward")


def test_the_defaults_are_those_of_the_class() -> None:
    assert reward("accuracy") == Accuracy()
    assert Accuracy().rules == Rules()


def test_a_rule_is_set_by_its_name() -> None:
    assert reward("accuracy", "rules.form=any", "rules.irrational_digits=3").rules == Rules(
        form="any", irrational_digits=3
    )


@pytest.mark.parametrize("override", ["rules.form=words", "+rules.lenient=true"])
def test_wrong_rules_are_refused(override: str) -> None:
    with pytest.raises(UserError, match=override.rpartition(".")[2].partition("=")[0]):
        reward("accuracy", override)
