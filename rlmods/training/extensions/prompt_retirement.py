"""Retirement of prompts that are always or never solved."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlmods.data.pools import DifficultyPools
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError
from rlmods.training.extensions.base import Extension
from rlmods.training.metrics import reported_correctness
from rlmods.types import Response, Scores


class PromptRetirement(Extension):
    """Leave prompts that are always or never solved out of the passes over the data that begin
    later, and bring some of them back (`DifficultyPools`).

    Logs `train/num_retired`, the prompts that are retired, and `train/num_brought_back` in this
    iteration."""

    depends_on_grading = "rewards"

    def __init__(
        self, solved_after: int | None, unsolved_after: int | None, bring_back: float
    ) -> None:
        self.pools = DifficultyPools(solved_after, unsolved_after, bring_back)
        self._num_logged = 0
        self._reports_correctness = False

    def on_fit_start(self) -> None:
        self.loop.trainer.datamodule.pools = self.pools

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        """Count the solved prompts of all ranks. Prompts whose reward does not report correctness
        are not retired.

        Raises:
            UserError: the reward scored responses, and has not reported the correctness of any
            since the run began.
        """
        correct = reported_correctness(scores)
        samples = self.loop.batch.samples
        occurrences: list[tuple[str, int, int]] = []
        for start in range(0, len(responses), samples):
            known = [x for x in correct[start : start + samples] if x is not None]
            occurrences.append((responses[start].prompt.id, sum(map(bool, known)), len(known)))
        any_scored = False
        for own, own_scored in all_gather((occurrences, any(x is not None for x in scores))):
            any_scored |= own_scored
            for prompt_id, num_solved, num_known in own:
                self._reports_correctness |= num_known > 0
                self.pools.update(prompt_id, num_solved, num_known)
        if any_scored and not self._reports_correctness:
            raise UserError(
                "prompts are retired by the correctness of responses, which this reward does not "
                "report: type reward=math, or drop algo.retire_solved and algo.retire_unsolved"
            )

    def before_iteration_end(self) -> None:
        num_brought_back = self.pools.num_brought_back - self._num_logged
        self.loop.meter.mean("train/num_retired", float(len(self.pools.retired)))
        self.loop.meter.mean("train/num_brought_back", float(num_brought_back))
        self._num_logged = self.pools.num_brought_back

    def state_dict(self) -> dict[str, Any]:
        return {"pools": self.pools.state_dict(), "reports_correctness": self._reports_correctness}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pools.load_state_dict(state["pools"])
        self._reports_correctness = state["reports_correctness"]
        self._num_logged = self.pools.num_brought_back
