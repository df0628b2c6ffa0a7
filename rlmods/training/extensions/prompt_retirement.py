"""Retirement of prompts that are always or never solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlmods.data.pools import DifficultyPools
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError
from rlmods.training.extensions.base import Extension
from rlmods.training.response_ranking import group_by_prompt
from rlmods.types import Response, Scores


class PromptRetirement(Extension):
    """Leave prompts that are always or never solved out of the passes over the data that begin
    later, and bring some of them back (`DifficultyPools`).

    Logs `train/num_retired`, the prompts that are retired, and `train/num_brought_back` in this
    iteration."""

    def __init__(
        self, solved_after: int | None, unsolved_after: int | None, bring_back: float
    ) -> None:
        self.pools = DifficultyPools(solved_after, unsolved_after, bring_back)
        self._num_logged = 0
        self._reports_correctness = False

    def on_fit_start(self) -> None:
        self.loop.trainer.datamodule.pools = self.pools

    def on_scores(self, responses: Sequence[Response], scores: Scores) -> None:
        """Count the solved prompts of all ranks. Prompts whose reward does not report correctness
        are not retired.

        Raises:
            UserError: the reward scored responses, and has not reported the correctness of any
            since the run began.
        """
        correct = (
            [None] * len(responses)
            if scores.correct is None or scores.monitored
            else scores.correct
        )
        groups = group_by_prompt(
            list(zip(responses, correct, strict=True)), self.loop.batch.samples
        )
        occurrences = [
            (
                group[0][0].prompt.id,
                sum(bool(correct) for _, correct in group),
                sum(correct is not None for _, correct in group),
            )
            for group in groups
        ]
        ranks = all_gather((occurrences, any(value is not None for value in scores)))
        counts = [occurrence for own, _ in ranks for occurrence in own]
        self._reports_correctness |= any(num_known for *_, num_known in counts)
        if any(scored for _, scored in ranks) and not self._reports_correctness:
            advice = "type reward=math, or drop algo.retire_solved and algo.retire_unsolved"
            raise UserError(
                "prompts are retired by the correctness of responses, which this reward does "
                f"not report: {advice}"
            )
        for occurrence in counts:
            self.pools.update(*occurrence)

    def before_iteration_end(self) -> None:
        self.loop.meter.mean("train/num_retired", float(len(self.pools.retired)))
        self.loop.meter.mean(
            "train/num_brought_back", float(self.pools.num_brought_back - self._num_logged)
        )
        self._num_logged = self.pools.num_brought_back

    def state_dict(self) -> dict[str, Any]:
        return {"pools": self.pools.state_dict(), "reports_correctness": self._reports_correctness}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pools.load_state_dict(state["pools"])
        self._reports_correctness = state["reports_correctness"]
        self._num_logged = self.pools.num_brought_back
