"""Reward for matching a regular expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import regex

from rlmods.types import Response, Scores, UserError


@dataclass(frozen=True)
class Regex:
    """1.0 if `pattern` matches anywhere in the response, or with `full` the whole response; else 0.0.

    The text includes the thoughts. A match that takes longer than `timeout_s` scores 0.0 and is counted under `timeouts`.

    Raises: UserError without a pattern, for an invalid one, and for a timeout that is not positive.
    """

    pattern: str | None = None
    """Regular expression of the `regex` package, a superset of `re`; flags are written inline: `(?is)...`."""
    full: bool = False
    """Require a match of the whole text."""
    timeout_s: float = 1.0
    """Time limit for one response."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise UserError("reward=regex needs a pattern: type 'reward.pattern=\"TEXT\"', with both quotes")
        if not self.timeout_s > 0:
            raise UserError(f"Regex: timeout_s={self.timeout_s} is not positive: type reward.timeout_s=1")
        try:
            _ = self.compiled
        except regex.error as error:
            raise UserError(f"Regex: pattern={self.pattern!r} is not a valid pattern ({error}): type 'reward.pattern=\"TEXT\"'") from None

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        return regex.compile(str(self.pattern))

    def __call__(self, responses: Sequence[Response]) -> Scores:
        matches = [self._matches(response.text) for response in responses]
        return Scores([float(bool(match)) for match in matches], counts={"timeouts": matches.count(None)})

    def _matches(self, text: str) -> bool | None:
        """Return None on a timeout."""
        match = self.compiled.fullmatch if self.full else self.compiled.search
        try:
            return match(text, timeout=self.timeout_s) is not None
        except TimeoutError:
            return None
