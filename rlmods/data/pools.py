"""Pools of prompts by difficulty: those that are always or never solved are retired for a while."""

import math
from collections.abc import Mapping, Set
from random import Random
from typing import Any


class DifficultyPools:
    """Retire prompts whose responses are all correct, or all wrong, for several occurrences in a
    row: their groups have no advantage, and sampling them is wasted. Each pass over the data begins
    by bringing back a fraction of the retired prompts. They are retired again after one more such
    occurrence.

    The state is a function of the solve rates, so it is equal on all ranks, which share them."""

    def __init__(
        self, solved_after: int | None, unsolved_after: int | None, bring_back: float
    ) -> None:
        """
        Args:
            solved_after: occurrences in a row with only correct responses after which a prompt is
            retired; None: never.
            unsolved_after: the same for only wrong responses.
            bring_back: fraction of the retired prompts that each pass brings back, rounded up.
        """
        self.solved_after = solved_after
        self.unsolved_after = unsolved_after
        self.bring_back = bring_back
        self.streaks: dict[str, int] = {}
        """Occurrences in a row by prompt id: positive if all responses were correct, negative if
        all were wrong."""
        self.retired: dict[str, None] = {}
        """Ids of retired prompts, the earliest first."""
        self.num_brought_back = 0
        """Prompts brought back since the run began."""

    def update(self, prompt_id: str, num_correct: int, num_scored: int) -> None:
        """Add one occurrence of a prompt. An occurrence without a scored response changes
        nothing."""
        if not num_scored:
            return
        before = self.streaks.pop(prompt_id, 0)
        streak = 0
        if num_correct == num_scored:
            streak = max(before, 0) + 1
        elif not num_correct:
            streak = min(before, 0) - 1
        if streak:
            self.streaks[prompt_id] = streak
        limit = self.solved_after if streak > 0 else self.unsolved_after
        if limit is not None and abs(streak) >= limit:
            self.retired.setdefault(prompt_id)
        else:
            self.retired.pop(prompt_id, None)

    def begin_pass(self, ids: Set[str], seed: str, min_prompts: int) -> frozenset[str]:
        """Bring back a fraction of the retired prompts among `ids`, drawn by `seed`, and the
        earliest ones if otherwise fewer than `min_prompts` would remain. Return the others, which
        the pass leaves out."""
        retired = [x for x in self.retired if x in ids]
        num_back = min(len(retired), math.ceil(self.bring_back * len(retired)))
        back = Random(f"back-{seed}").sample(retired, num_back)
        drawn = set(back)
        rest = [x for x in retired if x not in drawn]
        back += rest[: max(0, min_prompts - (len(ids) - len(rest)))]
        for prompt_id in back:
            del self.retired[prompt_id]
        self.num_brought_back += len(back)
        return frozenset(retired).difference(back)

    def state_dict(self) -> dict[str, Any]:
        return {
            "streaks": dict(self.streaks),
            "retired": list(self.retired),
            "num_brought_back": self.num_brought_back,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.streaks = dict(state["streaks"])
        self.retired = dict.fromkeys(state["retired"])
        self.num_brought_back = state["num_brought_back"]
