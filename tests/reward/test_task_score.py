from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.grading.pool import NOT_STARTED, Outcome
from rlmods.reward import TaskScore
from tests.reward.samples import response


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.task_score.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'rlmods\[reasoning-gym\]'"):
        TaskScore()


def test_uses_the_scorer_of_the_task() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = {
        "question": "4 - 1 - 7 =",
        "answer": "-4",
        "metadata": {"source_dataset": "chain_sum", "expression": "4 - 1 - 7"},
    }
    texts = ["<answer>-4</answer>", "<answer>4</answer>", "<think>-4", "-4"]
    rows = [response(text, task="chain_sum", entry=entry) for text in texts]
    scores = TaskScore(workers=1)(
        [*rows, response("-4"), response("5", task="no such task", entry={})]
    )
    assert scores.correct == [True, False, False, True, None, False]
    assert [scores[row] for row in (0, 2, 4, 5)] == [1.0, 0.0, None, 0.0]
    assert scores.counts == {"timeouts": 0, "errors": 1, "not_started": 0}


def test_partial_scores_are_paid_on_request() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = {
        "question": "50 + 5 =",
        "answer": "55",
        "metadata": {"source_dataset": "chain_sum", "expression": "50 + 5"},
    }
    rows = [
        response(f"<answer>{text}</answer>", task="chain_sum", entry=entry)
        for text in ("55", "not 55", "54, 55", "7", "55")
    ]
    strict, partial = (
        TaskScore(workers=1)(rows),
        TaskScore(workers=1, partial=True, strict=False)(rows),
    )
    assert strict.values == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert all(0 < partial[row] < 0.99 for row in (1, 2))
    assert strict.correct == partial.correct == [True, False, False, False, True]


def test_a_nearly_right_answer_is_not_paid() -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = next(
        e for e in gym.create_dataset("game_of_life", size=20, seed=3) if "1" in e["answer"]
    )
    wrong = entry["answer"].replace("1", "0", 1)
    rows = [
        response(f"<answer>{text}</answer>", task="game_of_life", entry=entry)
        for text in (entry["answer"], wrong)
    ]
    assert TaskScore(workers=1)(rows).values == [1.0, 0.0]
    assert TaskScore(workers=1, threshold=0.9)(rows).correct == [True, True]
    assert 0.9 < TaskScore(workers=1, partial=True)(rows)[1] < 1.0


@pytest.mark.parametrize("task", ["n_queens", "tower_of_hanoi", "palindrome_partitioning"])
def test_boards_and_long_answers_are_paid(task: str) -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = max(gym.create_dataset(task, size=10, seed=31), key=lambda entry: len(entry["answer"]))
    assert TaskScore(workers=1)(
        [response(f"<answer>{entry['answer']}</answer>", task=task, entry=entry)]
    ).values == [1.0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>_ _ Q _\n_ Q _ _</answer>", "_ _ Q _\n_ Q _ _"),
        ("_ _ Q _", "_ _ Q _"),
        ("<answer>\n__Q\n</answer>", "__Q"),
        ("<answer>```text\n_ Q\nQ _\n```</answer>", "_ Q\nQ _"),
        ("<answer>```\n" + "_ " * 20_000 + "```</answer>", None),
        ("<answer>**5**</answer>", "5"),
        ("<answer>`a b`</answer>", "a b"),
        ("The answer is **5**", "5"),
        ("\\boxed{5}", "5"),
        ("<answer>\\boxed{5}</answer>", "5"),
        ("<answer>5</answer> or 6", "5, 6"),
        ("<answer>4</answer> <answer>5</answer>", "5"),
        ("<answer>" + "x " * 600 + "</answer>", ("x " * 600).strip()),
        ("<answer>" + "x " * 20_000 + "</answer>", None),
        ("x " * 600, None),
        ("<think><answer>_ 5</answer>", None),
        ("<think>4</think><answer>_ 5</answer>", "_ 5"),
        ("", None),
    ],
)
def test_answers_are_taken_as_they_are_written(
    text: str, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    monkeypatch.setattr(TaskScore, "_score", lambda _, calls: [Outcome("ok", 0.0) for _ in calls])
    assert TaskScore()([response(text, task="n_queens", entry={})]).columns["extracted"] == [answer]


def test_equal_answers_to_a_prompt_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    asked: list[Any] = []

    def outcomes(_: object, calls: list[Any]) -> list[Outcome]:
        asked.extend((task, answer) for task, answer, _ in calls)
        late = Outcome("timeout")
        return [late if answer == "3" else Outcome("ok", 1.0) for _, answer, _ in calls]

    monkeypatch.setattr(TaskScore, "_score", outcomes)
    one, other = {"answer": "1"}, {"answer": "1"}
    rows = [response(text, task="gcd", entry=one) for text in "11233"]
    scores = TaskScore(strict=False)(rows)
    assert scores.values == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert scores.counts == {"timeouts": 2, "errors": 0, "not_started": 0}
    assert asked == [("gcd", "1"), ("gcd", "2"), ("gcd", "3")]
    TaskScore()([response("1", task="gcd", entry=entry) for entry in (one, other)])
    assert asked[3:] == [("gcd", "1")] * 2


def test_answers_that_were_not_begun_abstain(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    monkeypatch.setattr(
        TaskScore, "_score", lambda *_: [Outcome("ok", 1.0), Outcome("timeout"), NOT_STARTED]
    )
    rows = [response(text, task="gcd", entry={"answer": "1"}) for text in "123"]
    scores = TaskScore(strict=False)(rows)
    assert scores.values == [1.0, 0.0, None]
    assert scores.correct == [True, False, None]
    assert scores.counts == {"timeouts": 1, "errors": 0, "not_started": 1}


def test_refused_forms_are_not_scored() -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = gym.create_dataset("puzzle24", size=1, seed=1)[0]
    rows = [
        response(f"<answer>{text}</answer>", task="puzzle24", entry=entry)
        for text in (entry["answer"], "1*1*6*4")
    ]
    assert TaskScore(workers=1)(rows).values == [1.0, 0.0]
    assert TaskScore(workers=1, strict=False)(rows).values == [1.0, 1.0]
