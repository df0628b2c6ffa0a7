"""Your own preferences: pairs, rankings, verdicts on single responses, and labelled steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from lightning.pytorch.utilities import rank_zero_warn

from rlmods.data.jsonl import Jsonl, Row
from rlmods.data.judgements import REPLY, Judged, Said, compared, number, ranking, said, steps, transcript
from rlmods.data.schema import column, messages, text
from rlmods.types import Prompt, UserError

COLUMNS = ("chosen", "rejected", "margin", "candidates", "ranks", "scores", "response", "label", "steps", "step_labels")
"""Fields that name a column of judgements."""


@dataclass(frozen=True)
class Preferences(Jsonl):
    """Rows that say which response is better, in the layout that the first row's columns show:

    ======== =========================================================================================================
    pairs    `chosen` and `rejected`, with or without `margin`
    rankings `candidates`, best first; or with `ranks` (lower is better, equal: a tie, null: not ranked); or with `scores`
             (higher is better)
    verdicts `response` and `label`: true or 1 desirable, false or 0 undesirable
    steps    `steps` and `step_labels`, beside one of these or alone
    ======== =========================================================================================================

    A response is a text, an object with `text` and `finish` as `python -m rlmods.label` writes it, or a list of chat messages whose last
    turn is the assistant's and whose earlier ones are the prompt. Without a prompt column, texts are transcripts such as
    "\\n\\nHuman: ...\\n\\nAssistant: ...", and all but the last reply is the prompt.

    In `meta`: `candidates`, `ranks` (0 best, equal: a tie), `finished`, `margin`, `steps`, `step_labels`, and as `response` the row's own,
    else the first of its best candidates that was not cut off. Rows that prefer no candidate to another are left out, and counted in a
    warning.

    Raises: UserError as `data=jsonl` does, and for an empty response, a text with two ranks, lists of different lengths, a prompt that
    differs within a row, a row with other columns of judgements than the first, and a column that was given another name than the usual
    and is not there."""

    answer: str | None = "answer"
    """Column with the gold answer, a text or a number; a row may lack it."""
    response: str | None = "response"
    """Column with the one response that `label` judges; where there is no `label`, with a good one, which `algo=sft` imitates."""
    chosen: str | None = "chosen"
    """Column with the better response."""
    rejected: str | None = "rejected"
    """Column with the worse response."""
    margin: str | None = "margin"
    """Column with the number by which the better one should win, in units of the score."""
    candidates: str | None = "candidates"
    """Column with a list of responses."""
    ranks: str | None = "ranks"
    """Column with a number for each candidate, lower is better."""
    scores: str | None = "scores"
    """Column with a number for each candidate, higher is better. Read where there are no `ranks`."""
    label: str | None = "label"
    """Column with the verdict on `response`."""
    steps: str | None = "steps"
    """Column with a list of texts, which joined are a response."""
    step_labels: str | None = "step_labels"
    """Column with the verdict on each step: a number from 0 to 1, true or false, "+" or "-"."""
    step_end: str = "\n"
    """Ends every step but the last, where it does not yet. Empty: the steps are joined as they are."""
    skip_invalid: bool = False
    """Leave out rows whose judgements cannot be used, with a warning that counts them, where the data cannot be corrected."""

    def _rows(self, source: str, split: str) -> Iterator[tuple[int, str, Row]]:
        """With the judgements in the form that `meta` holds, and the prompt in a column of its own."""
        layout: list[str] = []
        invalid: list[UserError] = []
        used = flat = 0
        for line, where, row in super()._rows(source, split):
            try:
                if not layout:
                    self._check_named(row, where)
                    layout = self._layout(row, where)
                judged = self._judged(row, layout, where)
            except UserError as error:
                if not self.skip_invalid:
                    raise
                invalid.append(error)
                continue
            if judged is None:
                flat += 1
                continue
            used += 1
            yield line, where, judged
        if not used and (flat or invalid):
            raise invalid[0] if invalid else UserError(f"{source}: no row prefers a candidate to another; nothing to learn from")
        if flat:
            rank_zero_warn(f"{source}: {flat} of {used + flat + len(invalid)} rows prefer no candidate to another and are left out")
        if invalid:
            rank_zero_warn(f"{source}: {len(invalid)} rows cannot be used and are left out; the first: {invalid[0]}")

    def _prompt(self, row: Row, where: str, default_id: str) -> Prompt:
        plain = replace(self, response=None, answer=None if row.get(self.answer or "") is None else self.answer)
        return super(Preferences, plain)._prompt(row, where, default_id)

    def _check_named(self, row: Row, where: str) -> None:
        """Raises: UserError where a column that was named is not there; the usual names are looked for only."""
        usual = {field.name: field.default for field in fields(self)}
        for field in COLUMNS:
            if getattr(self, field) not in (None, usual[field]):
                column(row, str(getattr(self, field)), where, field, optional=True)

    def _layout(self, row: Row, where: str) -> list[str]:
        """The fields whose columns are read."""
        has = [field for field in COLUMNS if getattr(self, field) in row]
        read = ["steps", "step_labels"] if {"steps", "step_labels"} & set(has) else []
        if {"chosen", "rejected"} & set(has):
            read += ["chosen", "rejected"]
        elif "candidates" in has:
            read += ["candidates", *[field for field in ("ranks", "scores") if field in has][:1]]
        elif "label" in has:
            return [*read, "label", "response"]
        listed = row.get(str(self.candidates)) if read == ["candidates"] else None
        if isinstance(listed, list) and any(isinstance(candidate, dict) and "logprob" in candidate for candidate in listed):
            raise UserError(f"{where}: candidates that nobody has ranked: type python -m rlmods.label FILE out=OTHER and read that one")
        if not read:
            choices = ", ".join(f"data.{field}=COLUMN" for field in ("chosen", "candidates", "label", "steps"))
            raise UserError(f"{where}: no preferences in the columns {', '.join(row)}; type {choices}, or data=jsonl if there are none")
        return [*read, *(field for field in ("margin", "response") if field in has)]

    def _judged(self, row: Row, layout: list[str], where: str) -> Row | None:
        """The row, None where it prefers nothing."""
        if differ := sorted(set(self._layout(row, where)) ^ set(layout)):
            raise UserError(f'{where}: column "{getattr(self, differ[0])}" is in this row or in the first, but not in both')
        names = {field: str(getattr(self, field)) for field in layout}
        found = {field: column(row, name, where, field) for field, name in names.items()}
        rest = {key: value for key, value in row.items() if key not in names.values()}
        ranked: list[Judged] = []
        if {"chosen", "candidates", "label"} & set(found):
            ranked = ranking(found, names, where)
            if "label" not in found and len({judged.rank for judged in ranked}) < 2:
                return None
        responses = [self._said(judged, row, where) for judged in ranked]
        judged: Row = {**self._asked_by(responses, ranked, row, where), **(compared(responses, ranked, where) if ranked else {})}
        if "steps" in found:
            judged |= steps(found, names, where, self.step_end)
        if "margin" in found:
            judged["margin"] = float(number(found["margin"], where, names["margin"]))
        if "response" in found and "label" not in found:
            judged["response"] = text(found["response"], where, names["response"])
        return {**rest, **judged}

    def _said(self, judged: Judged, row: Row, where: str) -> Said:
        name = self.messages or self.prompt
        if name in row or not isinstance(judged.value, str):
            return said(judged.value, where, judged.name)
        if REPLY not in judged.value:
            column(row, name, where, "messages" if self.messages else "prompt")  # which raises
        return transcript(judged.value, where, judged.name, chat=self.chat)

    def _asked_by(self, responses: Sequence[Said], ranked: Sequence[Judged], row: Row, where: str) -> Row:
        """The prompt that the responses bring along, in its column."""
        name = self.messages or self.prompt
        asked = row.get(name)
        before = responses[0].before if responses else None
        for response, judged in zip(responses, ranked, strict=True):
            if response.before != before:
                raise UserError(f'{where}: column "{judged.name}": what comes before the response differs from the first response\'s')
        if before is not None and isinstance(asked, list) and messages(asked, where, name) != before:
            raise UserError(f'{where}: column "{name}" differs from what comes before the response in column "{ranked[0].name}"')
        turns = asked if before is None else before
        if isinstance(turns, list) and turns and messages(turns, where, name)[-1]["role"] == "assistant":
            raise UserError(f'{where}: column "{name if before is None else ranked[0].name}": the prompt must end with a user turn')
        return {} if before is None else {name: before}
