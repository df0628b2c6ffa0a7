"""Reward for matching a regular expression."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import regex

from rlmods.errors import UserError
from rlmods.grading.turns import first_turn
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Response, Scores


@dataclass(frozen=True)
@bounded("reward")
class Regex:
    """1.0 if `pattern` matches anywhere in the response, or with `full` the whole response; else
    0.0.

    The text is the first turn (`first_turn`), with its thoughts. A match that takes longer than
    `timeout_s` scores 0.0 and is counted under `timeouts`.

    Raises: UserError without a pattern, and for an invalid one.
    """

    pattern: str | None = None
    """Regular expression of the `regex` package, a superset of `re`; flags are written inline:
    `(?is)...`."""
    full: bool = False
    """Require a match of the whole text."""
    timeout_s: Positive = 1.0
    """Time limit for one response."""
    batch_timeout_s: Positive = 60.0
    """Time limit for all responses of one call. Those not matched by then score 0.0 and count as
    `timeouts`."""

    def __post_init__(self) -> None:
        if not self.pattern:
            raise UserError(
                "reward=regex needs a pattern: type 'reward.pattern=\"TEXT\"', with both quotes"
            )
        try:
            _ = self.compiled
        except regex.error as error:
            raise UserError(
                f"Regex: pattern={self.pattern!r} is not a valid pattern ({error}): type "
                "'reward.pattern=\"TEXT\"'"
            ) from None

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        return regex.compile(str(self.pattern))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        match = self.compiled.fullmatch if self.full else self.compiled.search
        deadline = time.monotonic() + self.batch_timeout_s
        values: list[float | None] = []
        num_timeouts = 0
        for response in responses:
            timeout_s = min(self.timeout_s, deadline - time.monotonic())
            found = None
            try:
                found = match(first_turn(response.text), timeout=max(timeout_s, 1e-6))
            except TimeoutError:
                num_timeouts += 1
            values.append(float(found is not None))
        return Scores(values, counts={"timeouts": num_timeouts})
