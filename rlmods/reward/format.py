"""Rewards for the form of a response: an output format, a regular expression, a script."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import regex

from rlmods.errors import UserError
from rlmods.grading.grader.extract import boxes
from rlmods.grading.turns import after_thoughts, first_turn
from rlmods.settings.bounds import Positive, bounded
from rlmods.types import Response, Scores

_PATTERNS = {
    "think_answer": re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL),
    "answer": re.compile(r".*<answer>(.*)</answer>.*", re.DOTALL),
}
_TAGS = {"think_answer": ("think", "answer"), "answer": ("answer",)}


@dataclass(frozen=True)
class Format:
    r"""1.0 if the first turn of the response (`first_turn`) has the format `style`, else 0.0. Every
    part must contain more than whitespace.

    - think_answer: one `<think>...</think>` at the start, then one `<answer>...</answer>`, and
      nothing else (arXiv:2501.12948)
    - answer: exactly one `<answer>...</answer>` after the thoughts
    - boxed: exactly one `\boxed{...}` after the thoughts
    """

    style: Literal["think_answer", "answer", "boxed"] = "answer"
    """think_answer, answer or boxed."""

    def __call__(self, responses: Sequence[Response]) -> Scores:
        scores: list[float | None] = []
        for response in responses:
            parts = self._parts(response.text)
            scores.append(float(bool(parts) and all(part.strip() for part in parts)))
        return Scores(scores)

    def _parts(self, response: str) -> Sequence[str]:
        """Return the parts of a response, none if it has another format."""
        text = first_turn(response) if self.style == "think_answer" else after_thoughts(response)
        if self.style == "boxed":
            found = boxes(text)
            return [found[0][2] or ""] if len(found) == 1 else []
        for tag in _TAGS[self.style]:
            if text.count(f"<{tag}>") != 1 or text.count(f"</{tag}>") != 1:
                return []
        match = _PATTERNS[self.style].fullmatch(text)
        return match.groups() if match else []


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


@dataclass(frozen=True)
class Language:
    r"""Language consistency: letters of the script / all letters, 1.0 without letters (DeepSeek-R1,
    arXiv:2501.12948, by words).

    Letters are Unicode letters (`\p{L}`), with their Unicode script. Letters shared by all scripts
    (`Common`: the 𝑥 of formulas, µ) are ignored, as are digits, symbols and standalone accents.
    Languages with the same script cannot be told apart.

    Raises: UserError for an unknown script.
    """

    script: str | Sequence[str] = "Latin"
    """Unicode script name: Latin, Cyrillic, Han, Arabic, ...; or a list of names:
    [Han,Hiragana,Katakana]."""

    def __post_init__(self) -> None:
        try:
            self.letters  # noqa: B018 - fail now for an unknown script
        except regex.error:
            raise UserError(
                f"Language: script={self.script!r} is not a Unicode script: type "
                "reward.script=Latin, Cyrillic, Han, Arabic, ..., or a list of them"
            ) from None

    @cached_property
    def letters(self) -> tuple[regex.Pattern[str], regex.Pattern[str]]:
        """Patterns of runs of letters of the given scripts, and of other scripts."""
        scripts = [self.script] if isinstance(self.script, str) else self.script
        own = "".join(rf"\p{{Script={name}}}" for name in scripts)
        excluded = rf"{own}\p{{Script=Common}}\p{{Script=Inherited}}"
        return regex.compile(rf"(?V1)[\p{{L}}&&[{own}]]+"), regex.compile(
            rf"(?V1)[\p{{L}}--[{excluded}]]+"
        )

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([self._fraction(response.text) for response in responses])

    def _fraction(self, text: str) -> float:
        own, other = (sum(map(len, runs.findall(text))) for runs in self.letters)
        return own / (own + other) if own + other else 1.0
