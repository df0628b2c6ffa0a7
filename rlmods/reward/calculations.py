"""Reward for each written calculation, checked by a program."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlmods.data.solutions import OPERATIONS
from rlmods.errors import UserError
from rlmods.needs import RewardNeeds
from rlmods.policy.tiny import character_tokenizer
from rlmods.reward.process import Aggregate, scores_by_step
from rlmods.settings.bounds import bounded
from rlmods.types import Response, Scores

CALCULATION = re.compile(r"(-?\d{1,12})([-+*])(-?\d{1,12})=(-?\d{1,24})")


def is_right(line: str) -> bool:
    """Return True for a calculation such as `30+40=70` that is right."""
    match = CALCULATION.fullmatch(line)
    if match is None:
        return False
    x, operator, y, value = match.groups()
    return bool(OPERATIONS[operator](int(x), int(y)) == int(value))


@dataclass(frozen=True)
@bounded("reward")
class Calculations:
    """1 for each line that is a right calculation, such as `30+40=70`, else 0: a process reward
    without a model. A step is a line that ends in a line break, so the answer behind the last one
    is not scored. A right step may follow from a wrong one, or may not help.

    Without `aggregate` these are rewards of tokens, as those of `Process`: type advantage=process.
    The scores are logged as the column `steps`. A response without steps abstains.

    Raises:
        UserError: the tokens of a response are not those of policy=tiny, one per character.
    """

    aggregate: Aggregate | None = None
    """min, mean, last or product: one score per response. null: one reward per step."""

    @property
    def needs(self) -> RewardNeeds:
        by_step = self.aggregate is None
        return RewardNeeds(gives_steps=by_step, gives_outcomes=not by_step)

    def __call__(self, responses: Sequence[Response]) -> Scores:
        lines = [response.text.split("\n")[:-1] for response in responses]
        steps = [[float(is_right(line)) for line in own] for own in lines]
        ends = [self._ends(response) for response in responses] if self.aggregate is None else []
        return scores_by_step(responses, ends, steps, self.aggregate)

    @cached_property
    def _tokenizer(self) -> Any:
        return character_tokenizer()

    def _ends(self, response: Response) -> list[int]:
        """Return the index of each token that is a line break.

        Raises:
            UserError: the tokens are not those of policy=tiny.
        """
        tokens = self._tokenizer.convert_ids_to_tokens(response.tokens)
        # a policy may sample special tokens anywhere, and the text has none
        no_text = {None, *self._tokenizer.all_special_tokens}
        pieces = ["" if token in no_text else token for token in tokens]
        if not "".join(pieces).startswith(response.text):
            raise UserError(
                "reward=calculations assigns its scores to the characters of policy=tiny: type "
                "policy=tiny, or aggregate=min beside _target_: rlmods.reward.Calculations"
            )
        return [i for i, piece in enumerate(pieces) if piece == "\n"]
