"""Preference data from files: pairs, rankings, labelled responses and labelled steps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_warn

from rlmods.data.file_rows import NumberedRow
from rlmods.data.jsonl import Jsonl, Row
from rlmods.data.schema import (
    Splits,
    check_list,
    check_messages,
    check_number,
    check_text,
    get_column,
)
from rlmods.errors import UserError, counted

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
STEP_LABELS = {"+": 1.0, "-": 0.0}
ROLES = {"Human": "user", "Assistant": "assistant"}
HUMAN_MARK = "\n\nHuman:"
"""Beginning of a transcript."""


class RankedResponse(NamedTuple):
    """A response of a row."""

    text: str
    column: str
    rank: float
    """Lower is better."""
    finished: bool = True
    context: list[dict[str, str]] | None = None
    """Chat messages that precede it in its column, if any."""


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
    the prompt. So are the turns of a transcript, a string that begins with a blank line and
    `Human:`, as in HH-RLHF.

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
        first: list[str] = []
        invalid: list[UserError] = []
        num_used = 0
        num_tied = 0
        for row in rows:
            try:
                layout = self._layout(row)
                first = first or layout
                values = self._convert(row, layout, first)
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
            problems.append(f"{counted(num_tied, 'row')} without a preferred candidate")
        if invalid:
            problems.append(
                f"{counted(len(invalid), 'row')} cannot be used, the first: {invalid[0]}"
            )
        if problems and not num_used:
            raise UserError(f"{source}: there is nothing to learn: {'; '.join(problems)}")
        if problems:
            rank_zero_warn(f"{source}: rows are left out: {'; '.join(problems)}")

    def _layout(self, row: NumberedRow) -> list[str]:
        """Return the fields whose columns are read. Columns with default names are optional."""
        for field in fields(self):
            column = getattr(self, field.name)
            if field.name in COLUMNS and column not in (None, field.default):
                get_column(row.values, column, row.location, field.name, optional=True)
        present = [field for field in COLUMNS if getattr(self, field) in row.values]
        layout: list[str] = []
        if "steps" in present or "step_labels" in present:
            layout += ["steps", "step_labels"]
        if "chosen" in present or "rejected" in present:
            layout += ["chosen", "rejected"]
        elif "candidates" in present:
            order = [field for field in ("ranks", "scores") if field in present]
            layout += ["candidates", *order[:1]]
        elif "label" in present:
            return [*layout, "label", "response"]
        if not layout:
            raise UserError(
                f"{row.location}: no preferences in the columns {', '.join(row.values)}; type "
                "data.chosen=COLUMN, data.candidates=COLUMN, data.label=COLUMN, "
                "data.steps=COLUMN, or data=jsonl if there are none"
            )
        return [*layout, *(field for field in ("margin", "response") if field in present)]

    def _convert(self, row: NumberedRow, layout: list[str], first: list[str]) -> Row | None:
        """Return the row's values with converted annotations, or None if it prefers no candidate to
        another. `first`: the layout of the first row."""
        different = sorted(set(layout) ^ set(first))
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
        responses = ranked_responses(values, columns, location)
        is_ranking = "chosen" in layout or "candidates" in layout
        if is_ranking and len({response.rank for response in responses}) < 2:
            return None
        read = set(columns.values())
        converted = {key: value for key, value in row.values.items() if key not in read}
        if self.answer is not None:
            converted.setdefault(self.answer, None)
        converted |= self._context_column(responses, row)
        if responses:
            converted |= preference_meta(responses, location)
        if "steps" in layout:
            converted |= step_meta(values, columns, location, self.step_end)
        if "margin" in layout:
            converted["margin"] = float(check_number(values["margin"], location, columns["margin"]))
        if "response" in layout and "label" not in layout:
            converted["response"] = check_text(values["response"], location, columns["response"])
        return converted

    def _context_column(self, responses: Sequence[RankedResponse], row: NumberedRow) -> Row:
        """Return the prompt that comes with the responses, by the name of the prompt's column;
        empty if they come without."""
        name = self.prompt
        turns = row.values.get(name)
        contexts = [response.context for response in responses]
        context = contexts[0] if contexts else None
        if isinstance(turns, list) and context is not None:
            contexts.append(check_messages(turns, row.location, name))
        if any(other != context for other in contexts):
            raise UserError(f"{row.location}: the prompt is not the same in all columns")
        turns = turns if context is None else context
        if isinstance(turns, list):
            last = check_messages(turns, row.location, name)[-1]
            if last["role"] == "assistant":
                raise UserError(f"{row.location}: the prompt must end with a user turn")
        return {} if context is None else {name: context}


def ranked_responses(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str
) -> list[RankedResponse]:
    """Return the ranked responses of a row, given by field, without those whose rank is null.
    Raises: UserError."""
    if "chosen" in values:
        return [
            parse_response(values["chosen"], location, columns["chosen"], 0),
            parse_response(values["rejected"], location, columns["rejected"], 1),
        ]
    if "label" in values:
        label = values["label"]
        if label not in (0, 1):
            raise UserError(
                f'{location}: column "{columns["label"]}" must hold true or false, or 1 or 0; '
                f"found {label!r:.40}"
            )
        return [parse_response(values["response"], location, columns["response"], 1 - label)]
    if "candidates" not in values:
        return []
    column = columns["candidates"]
    candidates = check_list(values["candidates"], location, column)
    field = next((name for name in ("ranks", "scores") if name in values), None)
    if field is None:
        if candidates and isinstance(candidates[0], dict) and "logprob" in candidates[0]:
            raise UserError(
                f"{location}: the candidates are not ranked: type python -m rlmods.label FILE "
                "out=OTHER, then data.train=OTHER"
            )
        ranks: Sequence[Any] = range(len(candidates))
    else:
        ranks = values[field]
        if ranks is None:
            return []
        check_list(ranks, location, columns[field], candidates, column)
    ranked = []
    for value, rank in zip(candidates, ranks, strict=True):
        if rank is not None:
            number = check_number(rank, location, columns.get(field or "", column))
            number = -number if field == "scores" else number
            ranked.append(parse_response(value, location, column, number))
    return ranked


def parse_response(value: object, location: str, column: str, rank: float) -> RankedResponse:
    """Parse a string, an object with `text` and `finish`, or chat messages that end with the
    assistant's. Raises: UserError."""
    if isinstance(value, Mapping):
        if "text" not in value:
            raise UserError(
                f'{location}: column "{column}" must hold texts, or objects with "text"; found an '
                f"object with {', '.join(value)}"
            )
        text = check_text(value["text"], location, column)
        return RankedResponse(text, column, rank, value.get("finish") != "length")
    if not isinstance(value, list):
        text = check_text(value, location, column)
        value = parse_transcript(text) if text.startswith(HUMAN_MARK) else None
        if value is None:
            return RankedResponse(text, column, rank)
    *context, last = check_messages(value, location, column)
    if last["role"] != "assistant":
        raise UserError(
            f'{location}: column "{column}" must end with an assistant turn, found the role '
            f"{last['role']}"
        )
    return RankedResponse(last["content"], column, rank, context=context or None)


def parse_transcript(text: str) -> list[dict[str, str]]:
    """Return the messages of a dialogue in one text, as in HH-RLHF."""
    _, *parts = re.split(r"\n\n(Human|Assistant):", text)
    turns = []
    for speaker, content in zip(parts[::2], parts[1::2], strict=True):
        turns.append({"role": ROLES[speaker], "content": content.strip()})
    return turns


def preference_meta(responses: Sequence[RankedResponse], location: str) -> dict[str, Any]:
    """Return candidates and their ranks, 0 best; a single response keeps its rank. Raises:
    UserError for a text with two ranks."""
    order = {response.rank for response in responses}
    if len(responses) == 1:
        order.add(0.0)
    position = {rank: i for i, rank in enumerate(sorted(order))}
    ranks = tuple(position[response.rank] for response in responses)
    meta: dict[str, Any] = {
        "candidates": tuple(response.text for response in responses),
        "ranks": ranks,
        "finished": tuple(response.finished for response in responses),
    }
    seen: dict[tuple[str, bool], int] = {}
    for response, rank in zip(responses, ranks, strict=True):
        if seen.setdefault((response.text, response.finished), rank) != rank:
            advice = "correct the row, or type data.skip_invalid=true to leave it out"
            raise UserError(
                f'{location}: column "{response.column}" repeats a response at another rank: '
                f"{advice}"
            )
        if rank == 0 and response.finished:
            meta.setdefault("response", response.text)
    return meta


def step_meta(
    values: Mapping[str, Any], columns: Mapping[str, str], location: str, step_end: str
) -> dict[str, Any]:
    """Return the steps, each but the last ending in `step_end`, and their labels from 0 to 1.
    Raises: UserError."""
    column = columns["steps"]
    steps = list(check_list(values["steps"], location, column))
    if not steps:
        raise UserError(f'{location}: column "{column}" is empty')
    for i, step in enumerate(steps):
        check_text(step, location, column)
        if i + 1 < len(steps) and not step.endswith(step_end):
            steps[i] = step + step_end
    label_column = columns["step_labels"]
    labels = []
    for value in check_list(values["step_labels"], location, label_column, steps, column):
        label = STEP_LABELS.get(value, value) if isinstance(value, str) else value
        if not isinstance(label, int | float) or not 0 <= label <= 1:
            raise UserError(
                f'{location}: column "{label_column}" must hold numbers from 0 to 1, true or '
                f'false, "+" or "-"; found {value!r:.40}'
            )
        labels.append(float(label))
    return {"steps": tuple(steps), "step_labels": tuple(labels)}
