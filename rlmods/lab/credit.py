"""Credit of a response in the sample log: the advantages of its tokens, the terms of a sum, and the
tokens that the group `tokens` selected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

from rlmods.errors import counted

Row: TypeAlias = Mapping[str, Any]


def credit(row: Row) -> list[list[Any]]:
    """Return [begin, end, advantage, advantage of each term...] of the runs of tokens with a loss
    and equal advantages; [] for a response without a loss."""
    if row.get("credit"):
        return list(row["credit"])
    advantage = row.get("advantage")
    length = max(1, len(row["tokens"]))  # another trainer may log none
    return [] if advantage is None else [[0, length, advantage]]


def turns(row: Row) -> list[Mapping[str, Any]]:
    """Return the turns of a response; one without turns is one turn."""
    whole = {"start": 0, "stop": len(row["tokens"]), "text": row["response"]}
    return list(row.get("turns") or [whole])


def overlap(runs: Iterable[Sequence[Any]], begin: int, end: int) -> list[list[Any]]:
    """Return the runs [first, last, ...] that have tokens in [begin, end), cut to it."""
    found = []
    for first, last, *values in runs:
        if first < end and last > begin:
            found.append([max(first, begin), min(last, end), *values])
    return found


def advantage_text(row: Row, begin: int, end: int) -> str:
    """Return the advantage of tokens [begin, end) and its terms, each with its weight:
    `advantage +1.061 = 1 x +0.707 outcome + 0.5 x +0.707 turns`."""
    runs = overlap(credit(row), begin, end)
    if not runs:
        return "not trained"
    total, *columns = zip(*[values for _, _, *values in runs], strict=True)
    text = f"advantage {_range(total)}"
    weights: Mapping[str, float] = row.get("credit_terms") or {}
    terms = []
    for (name, weight), column in zip(weights.items(), columns, strict=True):
        terms.append(f"{weight:g} x {_range(column)} {name}")
    return f"{text} = {' + '.join(terms)}" if terms else text


def _range(values: Sequence[float | None]) -> str:
    """Return a number, or the smallest and the largest of several. None is a term that abstains."""
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    lowest, highest = f"{min(known):+.3f}", f"{max(known):+.3f}"
    return lowest if lowest == highest else f"{lowest}..{highest}"


def trained_text(row: Row, begin: int, end: int, decode: TokenTexts) -> str:
    """Return how many of the tokens [begin, end) with a loss the group `tokens` selected, and which
    it selected or left out, whichever are fewer; "" without a selection."""
    if row.get("trained") is None:
        return ""
    known = _tokens(credit(row), begin, end)
    trained = _tokens(row["trained"], begin, end)
    others = [t for t in known if t not in trained]
    listed = trained if len(trained) <= len(others) else others
    texts = decode([row["tokens"][t] for t in listed]) or [""] * len(listed)
    names = []
    for t, piece in zip(listed, texts, strict=True):
        names.append(f"{t} {piece!r}" if piece else str(t))
    separator = ", not " if listed is others else ": "
    shown = separator + ", ".join(names) if names else ""
    return f"trained {len(trained)} of {counted(len(known), 'token')}{shown}"


def _tokens(runs: Iterable[Sequence[Any]], begin: int, end: int) -> list[int]:
    """Return the tokens of the runs in [begin, end)."""
    found: list[int] = []
    for first, last, *_ in overlap(runs, begin, end):
        found += range(first, last)
    return found


class TokenTexts:
    """Texts of single tokens, by the exported tokenizer of a run. There are none if the run has not
    exported one."""

    def __init__(self, run: Path) -> None:
        self._file = run / "export" / "tokenizer.json"
        self._texts: dict[int, str] = {}

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_file(str(self._file)) if self._file.is_file() else None

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return the texts, [] without a tokenizer."""
        if self._tokenizer is None:
            return []
        for token in set(tokens) - self._texts.keys():
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            self._texts[token] = text or f"<{token}>"
        return [self._texts[token] for token in tokens]
