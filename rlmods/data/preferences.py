"""Preference data from files: pairs, rankings, labelled responses and labelled steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from lightning.pytorch.utilities import rank_zero_warn

from rlmods.data.annotations import (
    ASSISTANT_MARK,
    ParsedResponse,
    RankedValue,
    parse_response,
    parse_transcript,
    preference_meta,
    ranked_values,
    step_meta,
)
from rlmods.data.jsonl import Jsonl
from rlmods.data.rows import NumberedRow, Row
from rlmods.data.schema import Splits, check_messages, check_number, check_text, get_column
from rlmods.errors import UserError

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

    - pairs: `chosen` and `rejected`, optionally `margin`
    - rankings: `candidates`, best first; or with `ranks` (lower is better, equal: a tie, null: not
      ranked); or with `scores` (higher is better)
    - labels: `response` and `label`: true or 1 desirable, false or 0 undesirable
    - steps: `steps` and `step_labels`, with one of the above or alone

    A response is a string, an object with `text` and `finish` as written by `python -m
    rlmods.label`, or a list of chat messages that ends with the assistant's, the earlier ones being
    the prompt. Without a prompt column, strings are transcripts such as "\\n\\nHuman:
    ...\\n\\nAssistant: ...", where everything before the last reply is the prompt.

    `meta` holds `candidates`, `ranks` (0 best, equal: a tie), `finished`, `margin`, `steps`,
    `step_labels`, and as `response` the row's own, or else the first of its best candidates that
    was not truncated. Rows without a preference between candidates are left out, and counted in a
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

    def __call__(self) -> Splits:
        # the annotations of a row include its response
        return replace(self, response=None).read(self._convert_all)

    def _convert_all(
        self, rows: Iterator[NumberedRow], source: str, split: str
    ) -> Iterator[NumberedRow]:
        """Yield the rows with annotations in the form that `meta` holds, and with the prompt in its
        own column."""
        layout: list[str] = []
        invalid: list[UserError] = []
        num_used = 0
        num_tied = 0
        for row in rows:
            try:
                if not layout:
                    self._check_renamed(row)
                    layout = self._layout(row)
                values = self._convert(row, layout)
            except UserError as error:
                if not self.skip_invalid:
                    raise
                invalid.append(error)
                continue
            if values is None:
                num_tied += 1
                continue
            num_used += 1
            yield row._replace(values=values)
        problems = []
        if num_tied:
            problems.append(f"{num_tied} rows prefer no candidate to another")
        if invalid:
            problems.append(f"{len(invalid)} rows cannot be used, the first: {invalid[0]}")
        if problems and not num_used:
            raise UserError(f"{source}: there is nothing to learn: {'; '.join(problems)}")
        if problems:
            rank_zero_warn(f"{source}: rows are left out: {'; '.join(problems)}")

    def _check_renamed(self, row: NumberedRow) -> None:
        """Raise UserError if a column with a name other than the default is missing; columns with
        default names are optional."""
        for field in fields(self):
            column = getattr(self, field.name)
            if field.name in COLUMNS and column not in (None, field.default):
                get_column(row.values, column, row.location, field.name, optional=True)

    def _layout(self, row: NumberedRow) -> list[str]:
        """Return the fields whose columns are read."""
        present = [field for field in COLUMNS if getattr(self, field) in row.values]
        layout: list[str] = []
        if "steps" in present or "step_labels" in present:
            layout += ["steps", "step_labels"]
        if "chosen" in present or "rejected" in present:
            layout += ["chosen", "rejected"]
        elif "candidates" in present:
            order = [field for field in ("ranks", "scores") if field in present]
            layout += ["candidates", *order[:1]]
            if not order:
                self._check_order(row)
        elif "label" in present:
            return [*layout, "label", "response"]
        if not layout:
            raise UserError(
                f"{row.location}: no preferences in the columns {', '.join(row.values)}; type "
                "data.chosen=COLUMN, data.candidates=COLUMN, data.label=COLUMN, "
                "data.steps=COLUMN, or data=jsonl if there are none"
            )
        return [*layout, *(field for field in ("margin", "response") if field in present)]

    def _check_order(self, row: NumberedRow) -> None:
        """Raise UserError for candidates without ranks that were sampled, as their order is not a
        ranking."""
        candidates = row.values[str(self.candidates)]
        first = candidates[0] if isinstance(candidates, list) and candidates else None
        if isinstance(first, dict) and "logprob" in first:
            raise UserError(
                f"{row.location}: the candidates are not ranked: type python -m rlmods.label FILE "
                "out=OTHER, then data.train=OTHER"
            )

    def _convert(self, row: NumberedRow, layout: list[str]) -> Row | None:
        """Return the row's values with converted annotations, or None if it prefers no candidate to
        another."""
        different = sorted(set(self._layout(row)) ^ set(layout))
        if different:
            raise UserError(
                f'{row.location}: column "{getattr(self, different[0])}" is in this row or in '
                "the first, but not in both"
            )
        location = row.location
        columns = {field: str(getattr(self, field)) for field in layout}
        values = {}
        for field, name in columns.items():
            values[field] = get_column(row.values, name, location, field)
        ranked: list[RankedValue] = []
        if {"chosen", "candidates", "label"} & set(layout):
            ranked = ranked_values(values, columns, location)
            if "label" not in layout and len({value.rank for value in ranked}) < 2:
                return None
        responses = [self._parse(value, row) for value in ranked]
        read = set(columns.values())
        converted = {key: value for key, value in row.values.items() if key not in read}
        if self.answer is not None:
            converted.setdefault(self.answer, None)
        converted |= self._context_column(responses, row)
        if ranked:
            converted |= preference_meta(responses, ranked, location)
        if "steps" in layout:
            converted |= step_meta(values, columns, location, self.step_end)
        if "margin" in layout:
            converted["margin"] = float(check_number(values["margin"], location, columns["margin"]))
        if "response" in layout and "label" not in layout:
            converted["response"] = check_text(values["response"], location, columns["response"])
        return converted

    def _parse(self, ranked: RankedValue, row: NumberedRow) -> ParsedResponse:
        value, column, _ = ranked
        name = self.messages or self.prompt
        if name in row.values or not isinstance(value, str):
            return parse_response(value, row.location, column)
        if ASSISTANT_MARK not in value:
            # raises: neither a prompt nor a transcript
            field = "messages" if self.messages else "prompt"
            get_column(row.values, name, row.location, field)
        return parse_transcript(value, row.location, column, chat=self.chat)

    def _context_column(self, responses: Sequence[ParsedResponse], row: NumberedRow) -> Row:
        """Return the prompt that comes with the responses, by the name of the prompt's column;
        empty if they come without."""
        name = self.messages or self.prompt
        turns = row.values.get(name)
        contexts = [response.context for response in responses]
        if isinstance(turns, list) and contexts and contexts[0] is not None:
            contexts.append(check_messages(turns, row.location, name))
        for context in contexts:
            if context != contexts[0]:
                raise UserError(f"{row.location}: the prompt is not the same in all columns")
        context = contexts[0] if contexts else None
        if context is not None:
            turns = context
        if isinstance(turns, list):
            last = check_messages(turns, row.location, name)[-1]
            if last["role"] == "assistant":
                raise UserError(f"{row.location}: the prompt must end with a user turn")
        return {} if context is None else {name: context}
