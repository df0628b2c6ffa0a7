"""Prompts from JSON Lines files, and from Hugging Face data sets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from rlmods.data.hub import SUFFIXES, load_rows
from rlmods.data.schema import (
    Splits,
    check_count,
    check_messages,
    check_text,
    checked_splits,
    get_column,
    prompt_fields,
    render,
    type_name,
)
from rlmods.errors import UserError
from rlmods.types import Prompt

Row = dict[str, Any]


@dataclass(frozen=True)
class Jsonl:
    """Prompts from the rows of a JSON Lines file or a Hugging Face data set. Columns that no field
    names are kept in `meta`.

    Raises: UserError with file, line and column for a file that cannot be read, broken JSON, a
    missing column, an empty or mistyped value, an id that occurs twice, and too few rows."""

    train: str | None = None
    """Required: a JSON Lines, .json, .csv or .parquet file, a folder of such, or NAME, NAME:SPLIT
    or NAME:CONFIG:SPLIT on the Hub."""
    val: str | None = None
    """The same, to validate on (of a folder or NAME, the split "test"). null: rows of `train` are
    held out."""
    num_val: int = 200
    """Number of rows to hold out (with all rows of the same question), or the maximum to take from
    `val`. 0: none."""
    prompt: str = "prompt"
    """Column with the question: a string, or a list of chat messages."""
    answer: str | None = "answer"
    """Column with the gold answer, a string or a number; a row may hold null if its reward needs
    none. null: the data has none."""
    response: str | None = None
    """Column with a good response, kept as `meta["response"]`: the target of `algo=sft`."""
    messages: str | None = None
    """Column with chat messages, read instead of `prompt`. A last assistant message becomes
    `meta["response"]`."""
    id: str | None = None
    """Column with a unique id. null: the line number."""
    source: str | None = None
    """Column with the name of the data set that a row comes from: metrics are also logged by it,
    and `reward=by_source` grades by it."""
    template: str = "{prompt}"
    """Text of the prompt. `{prompt}` and every column are filled in; of chat messages it rewrites
    the last. Double literal braces."""
    system: str | None = None
    """System message for rows without one."""
    chat: bool = False
    """Put a prompt string in a user message, for models with a chat template."""
    seed: int = 0
    """Seed for the held-out rows; independent of the run's seed."""
    max_prompt_tokens: int | None = None
    """Prompts with more tokens are left out, and their number is shown. null: none are left out."""

    def __call__(self) -> Splits:
        if self.max_prompt_tokens is not None:
            check_count("max_prompt_tokens", self.max_prompt_tokens, 1)
        check_count("num_val", self.num_val, 0)
        if self.train is None:
            raise UserError(
                f"data={type(self).__name__.lower()} needs a file; type data.train=FILE"
            )
        train = self._prompts(self.train, "train")
        if self.val is not None:
            val = self._prompts(self.val, "val")
            if len(val) > self.num_val:
                val = [
                    val[i] for i in sorted(Random(self.seed).sample(range(len(val)), self.num_val))
                ]
            return checked_splits(train, val, self.train)
        return checked_splits(*hold_out(train, self.num_val, self.seed, self.train), self.train)

    def _prompts(self, path: str, split: str) -> list[Prompt]:
        prompts: dict[str, Prompt] = {}
        for number, location, row in self._rows(path, split):
            prompt = self._prompt(row, location, f"{split}-{number}")
            if prompt.id in prompts:
                hint = "type data.id=COLUMN with unique values, or data.id=null for line numbers"
                raise UserError(
                    f'{location}: column "{self.id}": "{prompt.id}" is the id of an earlier '
                    f"line too; {hint}"
                )
            prompts[prompt.id] = prompt
        if not prompts:
            raise UserError(f"{path}: the file has no rows; type data.{split}=FILE")
        return list(prompts.values())

    def _rows(self, source: str, split: str) -> Iterator[tuple[int, str, Row]]:
        """Yield the number, location (for messages) and columns of each row."""
        path = Path(source).expanduser()
        if path.suffix not in SUFFIXES and (path.is_file() or path.suffix == ".jsonl"):
            yield from ((number, f"{source}:{number}", row) for number, row in read_jsonl(source))
        else:
            rows = load_rows(source, "test" if split == "val" else split)
            yield from (
                (number, f"{source} ({split} row {number})", dict(row))
                for number, row in enumerate(rows, 1)
            )

    def _prompt(self, row: Row, location: str, default_id: str) -> Prompt:
        name, field = (
            (self.prompt, "prompt") if self.messages is None else (self.messages, "messages")
        )
        question = get_column(row, name, location, field)
        used = {name, self.answer, self.response, self.id, self.source}
        meta = {k: v for k, v in row.items() if k not in used}
        if self.response is not None:
            response = get_column(row, self.response, location, "response", optional=True)
            meta["response"] = check_text(response, location, self.response)
        question_fields: dict[str, Any]
        if isinstance(question, list):
            turns = check_messages(question, location, name)
            if turns[-1]["role"] == "assistant":
                meta.setdefault("response", turns.pop()["content"])
            if not turns or turns[-1]["role"] == "assistant":
                raise UserError(
                    f'{location}: column "{name}" must end with a user turn, or with a user '
                    "and an assistant turn"
                )
            turns[-1]["content"] = render(
                self.template, {**row, "prompt": turns[-1]["content"]}, "template"
            )
            if self.system is not None and turns[0]["role"] != "system":
                turns.insert(0, {"role": "system", "content": self.system})
            question_fields = {"messages": turns}
        elif field == "messages":
            kind = type_name(question)
            raise UserError(
                f'{location}: column "{name}" must hold a list of messages, found {kind}; '
                f"type data.prompt={name}"
            )
        else:
            content = render(
                self.template, {**row, "prompt": check_text(question, location, name)}, "template"
            )
            question_fields = prompt_fields(content, self.chat, self.system)
        has_answer = self.answer is not None and row.get(self.answer, "") is not None
        answer = (
            self._text_or_number(row, str(self.answer), location, "answer") if has_answer else None
        )
        row_id = (
            default_id if self.id is None else self._text_or_number(row, self.id, location, "id")
        )
        source = (
            None
            if self.source is None
            else self._text_or_number(row, self.source, location, "source")
        )
        return Prompt(
            id=row_id, answer=answer, meta=meta, source=source, location=location, **question_fields
        )

    @staticmethod
    def _text_or_number(row: Row, column: str, location: str, field: str) -> str:
        value = get_column(row, column, location, field, optional=True)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not math.isfinite(value):
            raise UserError(
                f'{location}: column "{column}" must hold finite numbers, found {value}'
            )
        return str(value) if is_number else check_text(value, location, column).strip()


def read_jsonl(path: str) -> list[tuple[int, Row]]:
    """Read the rows of a file with their line numbers, skipping blank lines. Raises: UserError,
    naming the line."""
    try:
        lines = Path(path).expanduser().read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as e:
        raise UserError(
            f"{path}: cannot be read ({e.strerror}); type data.train=FILE or data.val=FILE"
        ) from e
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), parse_constant=_reject_constant, parse_float=_finite)
        except UnicodeDecodeError as e:
            raise UserError(f"{path}:{number}: not UTF-8 text ({e.reason})") from e
        except (ValueError, RecursionError) as e:
            raise UserError(
                f"{path}:{number}: broken JSON ({e}); the file needs one whole object per line"
            ) from e
        if not isinstance(row, dict):
            raise UserError(
                f"{path}:{number}: must be one object with named columns per line, found "
                f"{type_name(row)}"
            )
        rows.append((number, row))
    return rows


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError(f"{number[:40]} is too large for a number")
    return value


def hold_out(
    prompts: Sequence[Prompt], num_val: int, seed: int, source: str
) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into train and val, which share no question. Raises: UserError if that leaves
    nothing to train on."""
    questions = [
        json.dumps([p.text, None if p.messages is None else [dict(m) for m in p.messages]])
        for p in prompts
    ]
    rows: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        rows.setdefault(question, []).append(i)
    val_rows = _sample_groups(list(rows.values()), num_val, seed)
    if len(val_rows) < num_val or len(val_rows) == len(prompts):
        possible = (
            len(_sample_groups(list(rows.values()), max(1, len(prompts) // 10), seed))
            if len(rows) > 1
            else 0
        )
        available = f"{len(prompts)} rows with {len(rows)} different questions"
        raise UserError(
            f"{source}: cannot hold out data.num_val={num_val} of {available}; type "
            f"data.num_val={possible}"
        )
    return [p for i, p in enumerate(prompts) if i not in val_rows], [
        p for i, p in enumerate(prompts) if i in val_rows
    ]


def _sample_groups(groups: list[list[int]], max_rows: int, seed: int) -> set[int]:
    """Return the rows of random whole groups, at most `max_rows` rows in total."""
    rows: set[int] = set()
    for group in Random(seed).sample(groups, len(groups)):
        if len(rows) + len(group) <= max_rows:
            rows.update(group)
    return rows
