"""Grade-school word problems, GSM8K: from the hub, or from files that were downloaded before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rlmods.data.hub import Rows, attempt
from rlmods.data.jsonl import hold_out, read
from rlmods.data.schema import Splits, ask, checked, count, extra, text
from rlmods.types import Prompt, UserError


@dataclass(frozen=True)
class GSM8K:
    """The train split to train on, the test split to validate on. The gold answer is what follows `####`, without thousands commas.

    Raises: UserError for a missing package, an unreachable hub, a path without files, and for rows of another shape."""

    path: str | None = None
    """A local .jsonl or .parquet file, of which `num_val` rows are held out, or a folder with train* and test* files. null: the hub."""
    name: str = "openai/gsm8k"
    """Name on the hub."""
    config: str = "main"
    """Which of its configurations; a subfolder of `path`, where there is one."""
    num_train: int | None = None
    """The first so many train rows. null: all."""
    num_val: int = 200
    """So many test rows, at most, drawn by `seed`."""
    seed: int = 0
    """Which rows are validated on. Not the run's seed."""
    instruction: str = "Think step by step, then give the final number as <answer>NUMBER</answer>."
    """Follows the question. Empty: the bare question."""
    chat: bool = True
    """Ask in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        count("num_val", self.num_val, 0)
        if self.num_train is not None:
            count("num_train", self.num_train, 1)
        files = self._files() if self.path is not None else {}
        source = self.path or self.name
        train = self._prompts(_load(files["train"]) if files else self._hub("train"), source, "train")
        if files and not files["test"]:
            train, val = hold_out(train, self.num_val, self.seed, source)
        else:
            val = self._prompts(_load(files["test"]) if files else self._hub("test"), source, "test")
            val = [val[i] for i in sorted(Random(self.seed).sample(range(len(val)), min(self.num_val, len(val))))]
        return checked(train[: self.num_train], val, source)

    def _files(self) -> dict[str, list[Path]]:
        root = Path(self.path or "").expanduser()
        if root.is_file():
            return {"train": [root], "test": []}
        folder = root / self.config if (root / self.config).is_dir() else root
        files = {split: sorted(p for p in folder.glob(f"{split}*") if p.suffix in (".jsonl", ".parquet")) for split in ("train", "test")}
        for split, found in files.items():
            if not found:
                raise UserError(f"{folder}: no {split}*.jsonl or {split}*.parquet there; type data.path=FILE_OR_FOLDER")
        return files

    def _hub(self, split: str) -> Rows:
        datasets = extra("datasets", "gsm8k")
        advice = "data.path=FILE_OR_FOLDER to read local files"
        return attempt(self.name, advice, datasets.load_dataset, self.name, self.config, split=split)

    def _prompts(self, rows: Iterable[Mapping[str, Any]], source: str, split: str) -> list[Prompt]:
        prompts = []
        for number, row in enumerate(rows, 1):
            where = f"{source} ({split} row {number})"
            question = text(_field(row, "question", where), where, "question")
            solution = text(_field(row, "answer", where), where, "answer")
            steps, mark, gold = solution.rpartition("####")
            gold = gold.strip().replace(",", "")
            if not mark or not gold:
                raise UserError(f'{where}: column "answer" has no "#### NUMBER"; type data=jsonl data.train=FILE for data of another shape')
            response = f"{re.sub('<<.*?>>', '', steps).strip()}\n<answer>{gold}</answer>"
            meta = {**{k: v for k, v in row.items() if k not in ("question", "answer")}, "solution": solution, "response": response}
            asked = ask(f"{question}\n\n{self.instruction}" if self.instruction else question, self.chat)
            prompts.append(Prompt(id=f"gsm8k-{split}-{number}", answer=gold, meta=meta, **asked))
        return prompts


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        columns = ", ".join(row)
        raise UserError(f'{where}: no column "{name}"; columns: {columns}; type data=jsonl data.train=FILE to name the columns')
    return row[name]


def _load(files: Iterable[Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in files:
        if path.suffix == ".parquet":
            parquet = extra("pyarrow.parquet", "gsm8k")
            try:
                rows += parquet.read_table(path).to_pylist()
            except (OSError, ValueError) as e:
                reason = str(e).split("\n")[0]
                raise UserError(f"{path}: cannot be read as parquet ({reason}); type data.path=FILE_OR_FOLDER") from e
        else:
            rows += [row for _, row in read(str(path))]
    return rows
