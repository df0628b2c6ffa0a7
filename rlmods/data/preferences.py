"""Preference data from files: pairs, rankings, labelled responses and labelled steps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
LAYOUTS = {
    "chosen": ("chosen", "rejected"),
    "rejected": ("chosen", "rejected"),
    "candidates": ("candidates",),
    "label": ("label", "response"),
}
"""Fields that are read if a row has the column of one; the first counts."""
STEP_LABELS = {"+": 1.0, "-": 0.0}
ROLES = {"Human": "user", "Assistant": "assistant"}
HUMAN_MARK = "\n\nHuman:"
"""Beginning of a transcript."""


class TiedError(UserError):
    """A row prefers none of its candidates to another."""


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
        first: dict[str, str] = {}
        left_out: list[UserError] = []
        num_used = 0
        for row in rows:
            try:
                columns = self._columns(row)
                first = first or columns
                values = self._convert(row, columns, first)
            except UserError as error:
                if not self.skip_invalid and not isinstance(error, TiedError):
                    raise
                left_out.append(error)
            else:
                num_used += 1
                yield row._replace(values=values)
        if left_out:
            text = f"{counted(len(left_out), 'row')} left out, the first: {left_out[0]}"
            if not num_used:
                raise UserError(f"{source}: there is nothing to learn: {text}")
            rank_zero_warn(f"{source}: {text}")

    def _columns(self, row: NumberedRow) -> dict[str, str]:
        """Return the columns of a row's annotations, by field. A column with the name of its field
        is optional, any other is read."""
        present = {}
        for field in COLUMNS:
            column = getattr(self, field)
            if column not in (None, field):
                get_column(row.values, column, row.location, field, optional=True)
            if column in row.values:
                present[field] = column
        fields: list[str] = []
        if present.keys() & {"steps", "step_labels"}:
            fields += ["steps", "step_labels"]
        for field, read in LAYOUTS.items():
            if field in present:
                fields += read
                break
        if "candidates" in fields and present.keys() & {"ranks", "scores"}:
            fields.append("ranks" if "ranks" in present else "scores")
        if not fields:
            raise UserError(
                f"{row.location}: no preferences in the columns {', '.join(row.values)}; type "
                "data.chosen=COLUMN, data.candidates=COLUMN, data.label=COLUMN, "
                "data.steps=COLUMN, or data=jsonl if there are none"
            )
        if "label" not in fields:
            fields += [field for field in ("margin", "response") if field in present]
        return {field: str(getattr(self, field)) for field in fields}

    def _convert(self, row: NumberedRow, columns: dict[str, str], first: dict[str, str]) -> Row:
        """Return the row's values with converted annotations. `first`: the columns of the first
        row."""
        location = row.location
        different = sorted(columns.keys() ^ first.keys())
        if different:
            raise UserError(
                f'{location}: column "{getattr(self, different[0])}" is in this row or in the '
                "first, but not in both"
            )
        values = {}
        for field, name in columns.items():
            values[field] = get_column(row.values, name, location, field)
        responses = ranked_responses(values, columns, location)
        is_ranking = "chosen" in values or "candidates" in values
        if is_ranking and len({response.rank for response in responses}) < 2:
            raise TiedError(f"{location}: no candidate is preferred to another")
        read = set(columns.values())
        converted = {key: value for key, value in row.values.items() if key not in read}
        if self.answer is not None:
            converted.setdefault(self.answer, None)
        converted |= self._context_column(responses, row)
        if responses:
            converted |= preference_meta(responses, location)
        if "steps" in values:
            converted |= step_meta(values, columns, location, self.step_end)
        if "margin" in values:
            converted["margin"] = float(check_number(values["margin"], location, columns["margin"]))
        if "response" in values and "label" not in values:
            converted["response"] = check_text(values["response"], location, columns["response"])
        return converted

    def _context_column(self, responses: Sequence[RankedResponse], row: NumberedRow) -> Row:
        """Return the prompt that comes with the responses, by the name of the prompt's column;
        empty if they come without."""
        turns = row.values.get(self.prompt)
        context = responses[0].context if responses else None
        others = [response.context for response in responses[1:]]
        if context is not None and isinstance(turns, list):
            others.append(check_messages(turns, row.location, self.prompt))
        if any(other != context for other in others):
            raise UserError(f"{row.location}: the prompt is not the same in all columns")
        shown = turns if context is None else context
        if isinstance(shown, list):
            last = check_messages(shown, row.location, self.prompt)[-1]
            if last["role"] == "assistant":
                raise UserError(f"{row.location}: the prompt must end with a user turn")
        return {} if context is None else {self.prompt: context}


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
    field = next((name for name in ("ranks", "scores") if name in values), "candidates")
    if field != "candidates":
        ranks = values[field]
    elif any(isinstance(value, dict) and "logprob" in value for value in candidates):
        raise UserError(
            f"{location}: the candidates are not ranked: type python -m rlmods.label FILE "
            "out=OTHER, then data.train=OTHER"
        )
    else:
        ranks = list(range(len(candidates)))
    if ranks is None:
        return []
    check_list(ranks, location, columns[field], candidates, column)
    ranked = []
    for value, rank in zip(candidates, ranks, strict=True):
        if rank is not None:
            number = check_number(rank, location, columns[field])
            number = -number if field == "scores" else number
            ranked.append(parse_response(value, location, column, number))
    return ranked


def parse_response(value: object, location: str, column: str, rank: float) -> RankedResponse:
    """Parse a string, an object with `text` and `finish`, or chat messages that end with the
    assistant's. Raises: UserError."""
    if isinstance(value, Mapping):
        text = check_text(value.get("text"), location, column)
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
    best = {0.0} if len(responses) == 1 else set()
    order = sorted(best.union(response.rank for response in responses))
    ranks = [order.index(response.rank) for response in responses]
    meta: dict[str, Any] = {
        "candidates": tuple(response.text for response in responses),
        "ranks": tuple(ranks),
        "finished": tuple(response.finished for response in responses),
    }
    seen: dict[tuple[str, bool], int] = {}
    for response, rank in zip(responses, ranks, strict=True):
        if seen.setdefault((response.text, response.finished), rank) != rank:
            raise UserError(
                f'{location}: column "{response.column}" repeats a response at another rank: '
                "correct the row, or type data.skip_invalid=true to leave it out"
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
