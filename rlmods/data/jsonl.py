"""Prompts from JSON Lines files, other files and folders, and data sets on the Hugging Face Hub."""

import json
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rlmods.data.file_rows import FileRows, NumberedRow, Source, question_of, scan, select
from rlmods.data.schema import (
    Splits,
    check_messages,
    check_number,
    check_text,
    checked_splits,
    get_column,
    import_extra,
    prompt_fields,
    render,
    type_name,
    warn_of_shared_prompts,
)
from rlmods.errors import UserError
from rlmods.run.hub import check_hub
from rlmods.settings.bounds import Count, NonNegativeInt, bounded
from rlmods.types import Prompt

Row = dict[str, Any]
"""Values by column."""
LOADERS = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
"""Loader of the `datasets` package by file suffix."""
ROWS_AT_ONCE = 1000
"""Rows of a table that are read in one piece."""
ADVICE = "data.train=FILE, data.train=FOLDER or data.train=NAME:SPLIT"


LARGE = 500_000
"""A file of more rows is not read into memory."""


Convert = Callable[[Iterator[NumberedRow], str, str], Iterator[NumberedRow]]
"""Maps rows, their source and split to rows with other columns."""


@dataclass(frozen=True)
@bounded("data")
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
    num_val: NonNegativeInt = 200
    """Maximum number of rows to hold out (with all rows of the same question), or to take from
    `val`. 0: none."""
    prompt: str = "prompt"
    """Column with the question: a string, or a list of chat messages. A last assistant message
    becomes `meta["response"]`."""
    answer: str | None = "answer"
    """Column with the gold answer, a string or a number; a row may hold null if its reward needs
    none. null: the data has none."""
    response: str | None = None
    """Column with a good response, kept as `meta["response"]`: the target of `algo=sft`."""
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
    max_prompt_tokens: Count | None = None
    """Prompts with more tokens are left out, and their number is shown. null: none are left out."""

    def __call__(self) -> Splits:
        return self.read()

    def read(self, convert: Convert | None = None, advice: str = ADVICE) -> Splits:
        """Read the splits.

        Args:
            convert: makes the columns that the fields name out of those in the files.
            advice: what to type if a source cannot be read.
        """
        if self.train is None:
            raise UserError("data.train=null: the data needs a file; type data.train=FILE")
        train = self._prompts(self.train, "train", convert, advice)
        if self.val is None:
            train, held_out = hold_out(train, self.num_val, self.seed, self.train)
            return checked_splits(train, held_out, self.train)
        val = self._prompts(self.val, "val", convert, advice)
        is_own = convert is None
        if is_own and 0 < self.num_val < len(val):
            warnings.warn(
                f"data.val: {self.num_val} of its {len(val)} rows are used: type "
                f"data.num_val={len(val)} for all of them",
                stacklevel=2,
            )
        if len(val) > self.num_val:
            chosen = Random(self.seed).sample(range(len(val)), self.num_val)
            val = [val[i] for i in sorted(chosen)]
        if is_own:
            warn_of_shared_prompts(val, train)
        return checked_splits(train, val, self.train)

    def _prompts(
        self, source: str, split: str, convert: Convert | None, advice: str
    ) -> Sequence[Prompt]:
        rows = open_rows(source, split, advice)
        if convert is None and len(rows) > LARGE:
            return scan(rows, partial(self._prompt, split=split))
        numbered = iter(rows) if convert is None else convert(iter(rows), source, split)
        prompts = [self._prompt(row, split) for row in numbered]
        if not prompts:
            raise UserError(f"{source}: the file has no rows; type {advice}")
        return prompts

    def _prompt(self, row: NumberedRow, split: str) -> Prompt:
        _, location, values = row
        used = {self.prompt, self.response, self.id, self.source}
        if self.answer == "answer":  # of another name it is kept, for reward functions that name it
            used.add(self.answer)
        meta = {key: value for key, value in values.items() if key not in used}
        if self.response is not None:
            response = get_column(values, self.response, location, "response", optional=True)
            meta["response"] = check_text(response, location, self.response)
        question = get_column(values, self.prompt, location, "prompt")
        if isinstance(question, list):
            turns = check_messages(question, location, self.prompt)
            if turns[-1]["role"] == "assistant":
                meta.setdefault("response", turns.pop()["content"])
            if not turns or turns[-1]["role"] == "assistant":
                raise UserError(
                    f'{location}: column "{self.prompt}" must end with a user turn, or with a user '
                    "and an assistant turn"
                )
            turns[-1]["content"] = self._render(turns[-1]["content"], values)
            if self.system is not None and turns[0]["role"] != "system":
                turns.insert(0, {"role": "system", "content": self.system})
            shown: dict[str, Any] = {"messages": turns}
        else:
            content = self._render(check_text(question, location, self.prompt), values)
            shown = prompt_fields(content, self.chat, self.system)
        has_answer = values.get(self.answer or "", "") is not None
        return Prompt(
            id=self._text(row, self.id, "id") or f"{split}-{row.number}",
            answer=self._text(row, self.answer, "answer") if has_answer else None,
            meta=meta,
            source=self._text(row, self.source, "source"),
            location=location,
            **shown,
        )

    def _render(self, text: str, values: Row) -> str:
        return render(self.template, {**values, "prompt": text}, "template")

    @staticmethod
    def _text(row: NumberedRow, column: str | None, field: str) -> str | None:
        """Return a column's text, or its number as text; None without a column."""
        if column is None:
            return None
        value = get_column(row.values, column, row.location, field, optional=True)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(check_number(value, row.location, column))
        return check_text(value, row.location, column).strip()


def hold_out(
    prompts: Sequence[Prompt], num_val: int, seed: int, source: str
) -> tuple[Sequence[Prompt], list[Prompt]]:
    """Split prompts into train and val, which share no question: draw rows with their repetitions,
    and take those that are not too many. Raises: UserError if there are not `num_val` of these, or
    nothing is left to train on."""
    num_rows = len(prompts)
    if isinstance(prompts, FileRows):
        questions = prompts.facts.questions[prompts.positions]
        draws = Random(seed).sample(range(num_rows), min(num_rows, 100 * num_val))
    else:
        questions = np.array([hash(question_of(prompt)) for prompt in prompts])
        firsts = np.sort(np.unique(questions, return_index=True)[1]).tolist()
        draws = Random(seed).sample(firsts, len(firsts))
    _, group_of, sizes = np.unique(questions, return_inverse=True, return_counts=True)
    held_out: set[int] = set()
    num_held_out = 0
    for group in group_of[draws].tolist():
        if group not in held_out and num_held_out + sizes[group] <= num_val:
            held_out.add(group)
            num_held_out += int(sizes[group])
    if num_held_out < num_val or num_held_out == num_rows:
        smallest = sizes.min() if len(sizes) < num_rows else max(1, num_rows // 10)
        possible = num_held_out % num_rows or smallest
        advice = f"data.num_val={possible}" if possible < num_rows else "a smaller data.num_val"
        raise UserError(
            f"{source}: cannot hold out data.num_val={num_val} of {num_rows} rows with "
            f"{len(sizes)} different questions; type {advice}"
        )
    is_val = np.isin(group_of, list(held_out))
    val = [prompts[i] for i in np.flatnonzero(is_val).tolist()]
    return select(prompts, np.flatnonzero(~is_val)), val


def open_rows(source: str, split: str, advice: str = ADVICE) -> Source:
    """Return the rows of a source: a file, a folder of files, a folder written by `save_to_disk`,
    or a data set on the Hub. The name of a folder or data set may end in `:SPLIT` or
    `:CONFIG:SPLIT`; without it, `split` is read, and "test" for "val".

    Args:
        advice: what to type if the source cannot be read.

    Raises: UserError for a missing package, a source that cannot be read and, from the rows, broken
    JSON."""
    suffix = Path(source).suffix
    if suffix == ".jsonl" or (Path(source).expanduser().is_file() and suffix not in LOADERS):
        return JsonLines(source, advice)
    rows = _load(source, "test" if split == "val" else split, advice)
    return Table(rows, source, split)


class JsonLines:
    """Rows of a JSON Lines file. Blank lines are skipped."""

    def __init__(self, source: str, advice: str) -> None:
        self.source = source
        self.path = Path(source).expanduser()
        self._numbers = array("q")
        self._starts = array("q")
        start = 0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        self._numbers.append(number)
                        self._starts.append(start)
                    start += len(line)
        except OSError as error:
            raise UserError(
                f"{source}: cannot be read ({error.strerror}); type {advice}"
            ) from error

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> NumberedRow:
        with self.path.open("rb") as file:
            file.seek(self._starts[index])
            return self._row(self._numbers[index], file.readline())

    def __iter__(self) -> Iterator[NumberedRow]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield self._row(number, line)

    def _row(self, number: int, line: bytes) -> NumberedRow:
        location = f"{self.source}:{number}"
        try:
            # a file may begin with a mark of its encoding
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise UserError(f"{location}: not UTF-8 text ({error.reason})") from error
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{location}: broken JSON ({error}); the file needs one whole object per line"
            ) from error
        if not isinstance(row, dict):
            raise UserError(
                f"{location}: must be one object with named columns per line, found "
                f"{type_name(row)}"
            )
        return NumberedRow(number, location, row)


@dataclass(frozen=True)
class Table:
    """Rows of a data set of the `datasets` package, which maps its files into memory."""

    rows: Any
    source: str
    split: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> NumberedRow:
        return self._row(index + 1, self.rows[index])

    def __iter__(self) -> Iterator[NumberedRow]:
        number = 0
        for batch in self.rows.iter(ROWS_AT_ONCE):
            for values in zip(*batch.values(), strict=True):
                number += 1
                yield self._row(number, dict(zip(batch, values, strict=True)))

    def _row(self, number: int, values: Row) -> NumberedRow:
        return NumberedRow(number, f"{self.source} ({self.split} row {number})", values)


def _load(source: str, split: str, advice: str) -> Any:
    """Load rows with the `datasets` package."""
    datasets = import_extra("datasets", "datasets", source)
    path = Path(source).expanduser()
    name, *config = [source] if path.exists() else source.split(":")
    if config:
        split = config.pop()
    folder = Path(name).expanduser()
    place = str(folder.resolve()) if folder.is_dir() else name
    try:
        if path.suffix in LOADERS:
            return datasets.load_dataset(LOADERS[path.suffix], data_files=str(path), split="train")
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(place)
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(place)[split]
        check_hub(name)
        return datasets.load_dataset(place, *config, split=split)
    except UserError:
        raise
    except Exception as error:
        # the Hub client raises its own exceptions, network errors and built-in ones
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{source}: cannot be loaded ({reason}); type {advice}") from error
