"""Reward for writing in a given script."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import regex

from rlmods.errors import UserError
from rlmods.types import Response, Scores


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
