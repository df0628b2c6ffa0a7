from __future__ import annotations

import pytest

from rlmods.reward import TaskScore
from rlmods.types import UserError
from tests.reward.samples import response


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.task_score.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'rlmods\[reasoning_gym\]'"):
        TaskScore()


def test_uses_the_scorer_of_the_task() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = {"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum", "expression": "4 - 1 - 7"}}
    texts = ["<answer>-4</answer>", "<answer>4</answer>", "<think>-4", "-4"]
    rows = [response(text, task="chain_sum", entry=entry) for text in texts]
    scores = TaskScore(workers=1)([*rows, response("-4"), response("5", task="no such task", entry={})])
    assert scores.correct == [True, False, False, True, None, False]
    assert [scores[row] for row in (0, 2, 4, 5)] == [1.0, 0.0, None, 0.0]
    assert scores.counts == {"timeouts": 0, "errors": 1}
