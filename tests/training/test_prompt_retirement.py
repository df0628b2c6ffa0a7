"""Retirement of prompts by the correctness that a reward reports."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.training.extensions import PromptRetirement
from rlmods.types import Prompt, Response, Scores

RESPONSES = [
    Response(Prompt(id=key, text="?"), text=str(i)) for key in ("sum", "story") for i in range(2)
]


def retired(
    correct: Sequence[bool | None] | None,
    values: Sequence[float | None] = (1.0, 1.0, 0.5, 0.5),
    **fields: Any,
) -> list[str]:
    extension = PromptRetirement(solved_after=1, unsolved_after=1, bring_back=0.0)
    extension.loop = SimpleNamespace(batch=SimpleNamespace(samples=2))
    extension.on_responses(RESPONSES, Scores(values, correct=correct, **fields))
    return list(extension.pools.retired)


def test_counts_correct_responses() -> None:
    assert retired([True, True, True, False]) == ["sum"]
    assert retired([False, False, None, True]) == ["sum", "story"]


def test_prompts_without_correctness_stay() -> None:
    assert retired([True, True, None, None]) == ["sum"]


@pytest.mark.parametrize(
    "scores",
    [{"correct": None}, {"correct": [None] * 4}, {"correct": [True] * 4, "monitored": True}],
    ids=["none", "rows", "monitored"],
)
def test_a_reward_without_correctness_is_refused(scores: dict[str, Any]) -> None:
    with pytest.raises(
        UserError,
        match=r"which this reward does not report: type reward=math, or drop algo.retire_solved",
    ):
        retired(**scores)


def test_a_draw_without_correctness_is_no_error_after_one_with_it() -> None:
    """A draw of a mixture may hold no prompt of the source whose reward reports correctness."""
    extension = PromptRetirement(solved_after=1, unsolved_after=1, bring_back=0.0)
    extension.loop = SimpleNamespace(batch=SimpleNamespace(samples=2))
    extension.on_responses(RESPONSES, Scores([1.0] * 4, correct=[True, True, None, None]))
    resumed = PromptRetirement(solved_after=1, unsolved_after=1, bring_back=0.0)
    resumed.loop = extension.loop
    resumed.load_state_dict(extension.state_dict())
    for part in (extension, resumed):
        part.on_responses(RESPONSES[2:], Scores([1.0] * 2, correct=[None, None]))
        assert list(part.pools.retired) == ["sum"]
