"""Preference data from files: pairs, rankings, labelled responses and labelled steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from lightning.pytorch.utilities import rank_zero_warn

from rlmods.data.annotations import (
    ASSISTANT_MARK,
    ParsedResponse,
    RankedValue,
    check_number,
    parse_response,
    parse_transcript,
    preference_meta,
    ranked_values,
    step_meta,
)
from rlmods.data.jsonl import Jsonl, Row
from rlmods.data.schema import check_messages, check_text, get_column
from rlmods.errors import UserError
from rlmods.types import Prompt

COLUMNS = (
    "chosen",
    "rejected",
    "margin",
    "candidates",
    "ranks",
    "scores",
    "response",
    "label",
    "steps",
    "step_labels",
)
"""Fields that name a column of annotations."""


@dataclass(frozen=True)
class Preferences(Jsonl):
    """Rows with preferences between responses, in the layout of the first row's columns:

    ========
    =========================================================================================================
    pairs    `chosen` and `rejected`, optionally `margin` rankings `candidates`, best first; or with
    `ranks` (lower is better, equal: a tie, null: not ranked); or with `scores`
             (higher is better)
    labels   `response` and `label`: true or 1 desirable, false or 0 undesirable steps    `steps`
    and `step_labels`, with one of the above or alone ========
    =========================================================================================================

    A response is a string, an object with `text` and `finish` as written by `python -m
    rlmods.label`, or a list of chat messages that ends with the assistant's, the earlier ones being
    the prompt. Without a prompt column, strings are transcripts such as "\\n\\nHuman:
    ...\\n\\nAssistant: ...", where everything before the last reply is the prompt.

    `meta` holds `candidates`, `ranks` (0 best, equal: a tie), `finished`, `margin`, `steps`,
    `step_labels`, and as `response` the row's own or else the first of its best candidates that was
    not truncated. Rows without a preference between candidates are left out, and counted in a
    warning.

    Raises: UserError as `data=jsonl` does, and for an empty response, a text with two ranks, lists
    of different lengths, a prompt that differs within a row, annotation columns that differ from
    the first row's, and a missing column with a name other than the default."""

    answer: str | None = "answer"
    """Column with the gold answer, a string or a number; optional in each row."""
    response: str | None = "response"
    """Column with the response that `label` refers to; without `label`, a good response, the target
    of `algo=sft`."""
    chosen: str | None = "chosen"
    """Column with the better response."""
    rejected: str | None = "rejected"
    """Column with the worse response."""
    margin: str | None = "margin"
    """Column with the margin of the better response, a number in units of the score."""
    candidates: str | None = "candidates"
    """Column with a list of responses."""
    ranks: str | None = "ranks"
    """Column with a number for each candidate, lower is better."""
    scores: str | None = "scores"
    """Column with a number for each candidate, higher is better. Only read without `ranks`."""
    label: str | None = "label"
    """Column with the label of `response`."""
    steps: str | None = "steps"
    """Column with a list of strings, which joined are a response."""
    step_labels: str | None = "step_labels"
    """Column with a label for each step: a number from 0 to 1, true or false, "+" or "-"."""
    step_end: str = "\n"
    """Appended to every step but the last if it does not end in it. Empty: the steps are joined as
    they are."""
    skip_invalid: bool = False
    """Leave out rows with invalid annotations, and count them in a warning, instead of raising an
    error."""

    def _rows(self, source: str, split: str) -> Iterator[tuple[int, str, Row]]:
        """Yield the rows of the base class with annotations in the form that `meta` holds, and with
        the prompt in its own column."""
        layout: list[str] = []
        invalid: list[UserError] = []
        num_used = num_tied = 0
        for line, location, row in super()._rows(source, split):
            try:
                if not layout:
                    self._check_renamed(row, location)
                    layout = self._layout(row, location)
                converted = self._convert(row, layout, location)
            except UserError as error:
                if not self.skip_invalid:
                    raise
                invalid.append(error)
                continue
            if converted is None:
                num_tied += 1
                continue
            num_used += 1
            yield line, location, converted
        if not num_used and (num_tied or invalid):
            raise (
                invalid[0]
                if invalid
                else UserError(
                    f"{source}: no row prefers a candidate to another; there is nothing to learn"
                )
            )
        if num_tied:
            num_rows = num_used + num_tied + len(invalid)
            rank_zero_warn(
                f"{source}: {num_tied} of {num_rows} rows prefer no candidate to another and "
                "are left out"
            )
        if invalid:
            rank_zero_warn(
                f"{source}: {len(invalid)} rows cannot be used and are left out; the first: "
                f"{invalid[0]}"
            )

    def _prompt(self, row: Row, location: str, default_id: str) -> Prompt:
        base = replace(
            self, response=None, answer=None if row.get(self.answer or "") is None else self.answer
        )
        return super(Preferences, base)._prompt(row, location, default_id)

    def _check_renamed(self, row: Row, location: str) -> None:
        """Raise UserError if a column with a name other than the default is missing; columns with
        default names are optional."""
        defaults = {field.name: field.default for field in fields(self)}
        for field in COLUMNS:
            if getattr(self, field) not in (None, defaults[field]):
                get_column(row, str(getattr(self, field)), location, field, optional=True)

    def _layout(self, row: Row, location: str) -> list[str]:
        """Return the fields whose columns are read."""
        present = [field for field in COLUMNS if getattr(self, field) in row]
        layout = ["steps", "step_labels"] if {"steps", "step_labels"} & set(present) else []
        if {"chosen", "rejected"} & set(present):
            layout += ["chosen", "rejected"]
        elif "candidates" in present:
            layout += [
                "candidates",
                *[field for field in ("ranks", "scores") if field in present][:1],
            ]
        elif "label" in present:
            return [*layout, "label", "response"]
        candidates = row.get(str(self.candidates)) if layout == ["candidates"] else None
        if isinstance(candidates, list) and any(
            isinstance(candidate, dict) and "logprob" in candidate for candidate in candidates
        ):
            raise UserError(
                f"{location}: the candidates are not ranked: type python -m rlmods.label FILE "
                "out=OTHER, then data.train=OTHER"
            )
        if not layout:
            choices = ", ".join(
                f"data.{field}=COLUMN" for field in ("chosen", "candidates", "label", "steps")
            )
            raise UserError(
                f"{location}: no preferences in the columns {', '.join(row)}; type {choices}, "
                "or data=jsonl if there are none"
            )
        return [*layout, *(field for field in ("margin", "response") if field in present)]

    def _convert(self, row: Row, layout: list[str], location: str) -> Row | None:
        """Return the row with converted annotations, or None if it prefers no candidate to
        another."""
        if different := sorted(set(self._layout(row, location)) ^ set(layout)):
            raise UserError(
                f'{location}: column "{getattr(self, different[0])}" is in this row or in the '
                "first, but not in both"
            )
        columns = {field: str(getattr(self, field)) for field in layout}
        values = {field: get_column(row, name, location, field) for field, name in columns.items()}
        rest = {key: value for key, value in row.items() if key not in columns.values()}
        ranked: list[RankedValue] = []
        if {"chosen", "candidates", "label"} & set(values):
            ranked = ranked_values(values, columns, location)
            if "label" not in values and len({value.rank for value in ranked}) < 2:
                return None
        responses = [self._parse(value, row, location) for value in ranked]
        converted: Row = self._context_column(responses, ranked, row, location)
        if ranked:
            converted |= preference_meta(responses, ranked, location)
        if "steps" in values:
            converted |= step_meta(values, columns, location, self.step_end)
        if "margin" in values:
            converted["margin"] = float(check_number(values["margin"], location, columns["margin"]))
        if "response" in values and "label" not in values:
            converted["response"] = check_text(values["response"], location, columns["response"])
        return {**rest, **converted}

    def _parse(self, ranked: RankedValue, row: Row, location: str) -> ParsedResponse:
        name = self.messages or self.prompt
        if name in row or not isinstance(ranked.value, str):
            return parse_response(ranked.value, location, ranked.column)
        if ASSISTANT_MARK not in ranked.value:
            # raises: neither a prompt nor a transcript
            get_column(row, name, location, "messages" if self.messages else "prompt")
        return parse_transcript(ranked.value, location, ranked.column, chat=self.chat)

    def _context_column(
        self,
        responses: Sequence[ParsedResponse],
        ranked: Sequence[RankedValue],
        row: Row,
        location: str,
    ) -> Row:
        """Return the prompt that comes with the responses, by the name of the prompt's column;
        empty if they come without."""
        name = self.messages or self.prompt
        prompt = row.get(name)
        context = responses[0].context if responses else None
        for response, value in zip(responses, ranked, strict=True):
            if response.context != context:
                raise UserError(
                    f'{location}: column "{value.column}": the prompt differs from that of '
                    "the first response"
                )
        if (
            context is not None
            and isinstance(prompt, list)
            and check_messages(prompt, location, name) != context
        ):
            raise UserError(
                f'{location}: column "{name}" differs from the prompt in column '
                f'"{ranked[0].column}"'
            )
        turns = prompt if context is None else context
        if (
            isinstance(turns, list)
            and turns
            and check_messages(turns, location, name)[-1]["role"] == "assistant"
        ):
            raise UserError(
                f'{location}: column "{name if context is None else ranked[0].column}": the '
                "prompt must end with a user turn"
            )
        return {} if context is None else {name: context}
