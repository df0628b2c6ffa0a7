"""Reward from a judge's comparisons among the responses to one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlmods.errors import UserError
from rlmods.needs import JudgeNeeds, RewardNeeds, needs_of
from rlmods.protocols import compare, counts_of
from rlmods.types import Prompt, Response, Scores

Key = tuple[str, str]
"""Text and finish of a response."""


@dataclass(frozen=True)
class Preference:
    """Win rate of a response against the other responses to its prompt, a tie counting half:
    (wins + ties / 2) / verdicts, from 0 to 1, with mean 1/2 over a prompt's responses.

    The reward compares responses within a group, so it needs no scale that is comparable across
    prompts, as in reinforcement learning from AI feedback (arXiv 2309.00267). Each pair of
    different responses is judged once; equal ones are a tie. A response without any verdict
    abstains; pairs without a verdict are counted as `without_verdict`, next to the judge's own
    counts.

    Raises: UserError without a judge.
    """

    judge: Any = None
    """Judge that compares two responses: +judge@reward.judge=llm"""

    def __post_init__(self) -> None:
        if not callable(self.judge):
            raise UserError(
                "reward=preference needs a judge: type +judge@reward.judge=llm, or =neural, "
                "or =rule"
            )

    @property
    def needs(self) -> RewardNeeds:
        return RewardNeeds(group=True, answer=needs_of(self.judge, JudgeNeeds).answer)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        counts_before = counts_of(self.judge)
        groups: dict[str, list[int]] = {}
        for row, response in enumerate(responses):
            groups.setdefault(response.prompt.id, []).append(row)
        keys = [(response.text, response.finish) for response in responses]
        pairs: dict[tuple[str, Key, Key], tuple[Prompt, Response, Response]] = {}
        for prompt_id, rows in groups.items():
            # the first response with a key
            distinct = {keys[row]: responses[row] for row in reversed(rows)}
            for first, second in combinations(dict.fromkeys(keys[row] for row in rows), 2):
                pairs[prompt_id, first, second] = (
                    responses[rows[0]].prompt,
                    distinct[first],
                    distinct[second],
                )
        verdicts = dict(zip(pairs, compare(self.judge, list(pairs.values())), strict=True))
        points: list[list[float]] = [[] for _ in responses]
        for prompt_id, rows in groups.items():
            for i, j in combinations(rows, 2):
                verdict = _look_up(verdicts, prompt_id, keys[i], keys[j])
                if verdict is not None:
                    points[i].append(verdict)
                    points[j].append(1 - verdict)
        counts = counts_of(self.judge)
        counts.subtract(counts_before)
        counts["without_verdict"] = list(verdicts.values()).count(None)
        return Scores([sum(p) / len(p) if p else None for p in points], counts=counts)


def _look_up(
    verdicts: dict[tuple[str, Key, Key], float | None], prompt_id: str, first: Key, second: Key
) -> float | None:
    if first == second:
        return 0.5
    if (prompt_id, first, second) in verdicts:
        return verdicts[prompt_id, first, second]
    swapped = verdicts[prompt_id, second, first]
    return None if swapped is None else 1 - swapped
