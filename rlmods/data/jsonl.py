"""Your own data: JSON Lines files, and what `datasets` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rlmods.data.hub import SUFFIXES, load
from rlmods.data.schema import Splits, ask, checked, column, count, kind, messages, render, text
from rlmods.types import Prompt, UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class Jsonl:
    """A JSON object a line, or a row of a Hugging Face data set; every column that no field names is kept in `meta`.

    Raises: UserError with file, line and column for a file that cannot be read, broken JSON, a missing column, an empty or mistyped value,
    an id that occurs twice, and too few rows."""

    train: str | None = None
    """Required: a JSON Lines, .json, .csv or .parquet file, a folder of such, or NAME, NAME:SPLIT or NAME:CONFIG:SPLIT on the hub."""
    val: str | None = None
    """The same, to validate on (of a folder or NAME, the split "test"). null: rows of `train` are held out."""
    num_val: int = 200
    """How many rows to hold out (only questions that occur once in `train`), or the most to take from `val`. 0: none."""
    prompt: str = "prompt"
    """Column with the question: a text, or a list of chat messages."""
    answer: str | None = "answer"
    """Column with the gold answer, a text or a number. null: the data has none."""
    response: str | None = None
    """Column with a good response, kept as `meta["response"]`: what `algo=sft` imitates."""
    messages: str | None = None
    """Column with chat messages, read instead of `prompt`. A last turn of the assistant's becomes `meta["response"]`."""
    id: str | None = None
    """Column with a unique id. null: the line number."""
    template: str = "{prompt}"
    """What is asked. `{prompt}` and every column fill in; of chat messages it rewrites the last. Literal braces are written twice."""
    system: str | None = None
    """A system message, for rows that bring none."""
    chat: bool = False
    """Ask texts in a user message, for models with a chat template."""
    seed: int = 0
    """Which rows are held out. Not the run's seed."""

    def __call__(self) -> Splits:
        count("num_val", self.num_val, 0)
        if self.train is None:
            raise UserError(f"data={type(self).__name__.lower()} needs a file; type data.train=FILE")
        train = self._prompts(self.train, "train")
        if self.val is not None:
            val = self._prompts(self.val, "val")
            if len(val) > self.num_val:
                val = [val[i] for i in sorted(Random(self.seed).sample(range(len(val)), self.num_val))]
            return checked(train, val, self.train)
        return checked(*hold_out(train, self.num_val, self.seed, self.train), self.train)

    def _prompts(self, path: str, split: str) -> list[Prompt]:
        prompts: dict[str, Prompt] = {}
        for number, where, row in self._rows(path, split):
            prompt = self._prompt(row, where, f"{split}-{number}")
            if prompt.id in prompts:
                hint = "type data.id=COLUMN with unique values, or data.id=null for line numbers"
                raise UserError(f'{where}: column "{self.id}": "{prompt.id}" is the id of an earlier line too; {hint}')
            prompts[prompt.id] = prompt
        if not prompts:
            raise UserError(f"{path}: the file has no rows; type data.{split}=FILE")
        return list(prompts.values())

    def _rows(self, source: str, split: str) -> Iterator[tuple[int, str, Row]]:
        """Number, whereabouts and columns."""
        path = Path(source).expanduser()
        if path.suffix not in SUFFIXES and (path.is_file() or path.suffix == ".jsonl"):
            yield from ((number, f"{source}:{number}", row) for number, row in read(source))
        else:
            rows = load(source, "test" if split == "val" else split)
            yield from ((number, f"{source} ({split} row {number})", dict(row)) for number, row in enumerate(rows, 1))

    def _prompt(self, row: Row, where: str, default_id: str) -> Prompt:
        name, field = (self.prompt, "prompt") if self.messages is None else (self.messages, "messages")
        question = column(row, name, where, field)
        used = {name, self.answer, self.response, self.id}
        meta = {k: v for k, v in row.items() if k not in used}
        if self.response is not None:
            meta["response"] = text(column(row, self.response, where, "response", optional=True), where, self.response)
        asked: dict[str, Any]
        if isinstance(question, list):
            turns = messages(question, where, name)
            if turns[-1]["role"] == "assistant":
                meta.setdefault("response", turns.pop()["content"])
            if not turns or turns[-1]["role"] == "assistant":
                raise UserError(f'{where}: column "{name}" must end with a user turn, or with a user and an assistant turn')
            turns[-1]["content"] = render(self.template, {**row, "prompt": turns[-1]["content"]}, "template")
            if self.system is not None and turns[0]["role"] != "system":
                turns.insert(0, {"role": "system", "content": self.system})
            asked = {"messages": turns}
        elif field == "messages":
            raise UserError(f'{where}: column "{name}" must hold a list of messages, found {kind(question)}; type data.prompt={name}')
        else:
            written = render(self.template, {**row, "prompt": text(question, where, name)}, "template")
            asked = ask(written, self.chat, self.system)
        answer = None if self.answer is None else _answer(column(row, self.answer, where, "answer", optional=True), where, self.answer)
        known = default_id if self.id is None else _answer(column(row, self.id, where, "id", optional=True), where, self.id)
        return Prompt(id=known, answer=answer, meta=meta, **asked)


def read(path: str) -> list[tuple[int, Row]]:
    """The file's rows with their line numbers; blank lines are passed over. Raises: UserError, naming the line."""
    try:
        lines = Path(path).expanduser().read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror}); type data.train=FILE or data.val=FILE") from e
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError as e:
            raise UserError(f"{path}:{number}: not UTF-8 text ({e.reason})") from e
        except (ValueError, RecursionError) as e:
            raise UserError(f"{path}:{number}: broken JSON ({e}); the file needs one whole object a line") from e
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: must be an object with named columns, found {kind(row)}; the file needs one object a line")
        rows.append((number, row))
    return rows


def hold_out(prompts: Sequence[Prompt], num_val: int, seed: int, source: str) -> tuple[list[Prompt], list[Prompt]]:
    """Train and val, sharing no question. Raises: UserError if that leaves nothing to train on."""
    asked = [json.dumps([p.text, None if p.messages is None else [dict(m) for m in p.messages]]) for p in prompts]
    rows: dict[str, list[int]] = {}
    for i, question in enumerate(asked):
        rows.setdefault(question, []).append(i)
    chosen = _whole(list(rows.values()), num_val, seed)
    if len(chosen) < num_val or len(chosen) == len(prompts):
        most = len(_whole(list(rows.values()), max(1, len(prompts) // 10), seed)) if len(rows) > 1 else 0
        found = f"{len(prompts)} rows with {len(rows)} different questions"
        raise UserError(f"{source}: cannot hold out data.num_val={num_val} of {found}; type data.num_val={most}")
    return [p for i, p in enumerate(prompts) if i not in chosen], [p for i, p in enumerate(prompts) if i in chosen]


def _whole(groups: list[list[int]], count: int, seed: int) -> set[int]:
    """Rows of groups in random order, each whole or not at all, as long as they are `count` at most."""
    chosen: set[int] = set()
    for group in Random(seed).sample(groups, len(groups)):
        if len(chosen) + len(group) <= count:
            chosen.update(group)
    return chosen


def _answer(value: Any, where: str, name: str) -> str:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else text(value, where, name).strip()
