"""Whether a response keeps to one script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import regex

from rlmods.types import Response, Scores, UserError

_NAME = regex.compile(r"[A-Za-z][A-Za-z_ ]*")


@dataclass(frozen=True)
class Language:
    r"""letters of the script / letters, 1.0 without any: language consistency by script (DeepSeek-R1, arXiv:2501.12948, has it by word).

    Letters are Unicode's (`\p{L}`), and their script is the one Unicode gives them. Those that all scripts share (`Common`: the 𝑥 of
    formulas, µ) do not count, and digits, signs and accents that stand alone are no letters. Two languages in one script look the same.
    Raises: UserError for a script that Unicode does not have.
    """

    script: str | Sequence[str] = "Latin"
    """Unicode's name of it: Latin, Cyrillic, Han, Arabic, ...; or a list of them: [Han,Hiragana,Katakana]."""

    needs_answer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.scripts:
            raise UserError("Language: script is empty: type reward.script=Latin, or reward.script=[Latin,Greek]")
        for name in self.scripts:
            try:
                known = isinstance(name, str) and _NAME.fullmatch(name) and regex.compile(rf"\p{{Script={name}}}")
            except regex.error:
                known = None
            if not known:
                raise UserError(f"Language: script={name!r} is none of Unicode's: type reward.script=Latin, Cyrillic, Han, Arabic, ...")

    @property
    def scripts(self) -> Sequence[str]:
        return [self.script] if isinstance(self.script, str) else self.script

    @cached_property
    def letters(self) -> tuple[regex.Pattern[str], regex.Pattern[str]]:
        """Runs of letters of the scripts, and of all others that have a script."""
        own = "".join(rf"\p{{Script={name}}}" for name in self.scripts)
        no_other = rf"{own}\p{{Script=Common}}\p{{Script=Inherited}}"
        return regex.compile(rf"(?V1)[\p{{L}}&&[{own}]]+"), regex.compile(rf"(?V1)[\p{{L}}--[{no_other}]]+")

    def __call__(self, responses: Sequence[Response]) -> Scores:
        return Scores([self._share(response.text) for response in responses])

    def _share(self, text: str) -> float:
        own, other = (sum(map(len, runs.findall(text))) for runs in self.letters)
        return own / (own + other) if own + other else 1.0
