"""What a judge prefers among the responses to one prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from rlmods.types import Prompt, Response, Scores, UserError


@dataclass(frozen=True)
class Preference:
    """The share of comparisons that a response wins against the other responses to its prompt, a tie being half a win:
    (wins + ties / 2) / verdicts, from 0 to 1, with mean 1/2 over a prompt's responses.

    A reward of the whole group: it needs no scale that holds across prompts, as in reinforcement learning from AI feedback (arXiv
    2309.00267). Each pair of different texts is judged once; equal texts are a tie. A response without any verdict abstains; pairs that the
    judge could not settle are counted, `without_verdict`, beside what the judge itself counts.

    Raises: UserError without a judge.
    """

    judge: Any = None
    """Compares two responses: +judge@reward.judge=llm"""

    needs_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.judge):
            raise UserError("reward=preference needs a judge: type +judge@reward.judge=llm, or =neural, or =rule")

    @property
    def needs_answer(self) -> bool:
        """Whether the judge reads the gold answer."""
        return bool(getattr(self.judge, "needs_answer", False))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        from rlmods.judge import compare  # judges use rewards

        before = Counter(getattr(self.judge, "counts", {}))
        groups: dict[str, list[int]] = {}
        for row, response in enumerate(responses):
            groups.setdefault(response.prompt.id, []).append(row)
        pairs: dict[tuple[str, str, str], tuple[Prompt, str, str]] = {}
        for name, rows in groups.items():
            for first, second in combinations(dict.fromkeys(responses[row].text for row in rows), 2):
                pairs[name, first, second] = (responses[rows[0]].prompt, first, second)
        verdicts = dict(zip(pairs, compare(self.judge, list(pairs.values())), strict=True))
        points: list[list[float]] = [[] for _ in responses]
        for name, rows in groups.items():
            for i, j in combinations(rows, 2):
                found = _verdict(verdicts, name, responses[i].text, responses[j].text)
                if found is not None:
                    points[i].append(found)
                    points[j].append(1 - found)
        counts = {event: count - before[event] for event, count in getattr(self.judge, "counts", {}).items()}
        values = [sum(won) / len(won) if won else None for won in points]
        return Scores(values, counts=counts | {"without_verdict": sum(found is None for found in verdicts.values())})


def _verdict(verdicts: dict[tuple[str, str, str], float | None], name: str, first: str, second: str) -> float | None:
    if first == second:
        return 0.5
    if (name, first, second) in verdicts:
        return verdicts[name, first, second]
    found = verdicts[name, second, first]
    return None if found is None else 1 - found
