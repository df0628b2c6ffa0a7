"""Grade-school word problems (GSM8K), from the Hugging Face Hub or from local files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rlmods.data.hub import Rows, call_loader
from rlmods.data.jsonl import hold_out, read_jsonl
from rlmods.data.schema import (
    Splits,
    check_count,
    check_text,
    checked_splits,
    import_extra,
    prompt_fields,
)
from rlmods.errors import UserError
from rlmods.run.hub import check_hub
from rlmods.types import Prompt


@dataclass(frozen=True)
class GSM8K:
    """GSM8K: the train split to train on, the test split to validate on. The gold answer is the
    number after `####`, without commas.

    Raises: UserError for a missing package, an unreachable Hub, a path without files, and for rows
    in another format."""

    path: str | None = None
    """A local .jsonl or .parquet file, of which `num_val` rows are held out, or a folder with
    train* and test* files. null: the Hub."""
    name: str = "openai/gsm8k"
    """Name on the Hub."""
    config: str = "main"
    """Configuration of the data set; a subfolder of `path`, if it exists."""
    num_train: int | None = None
    """Number of train rows, from the first on. null: all."""
    num_val: int = 200
    """Maximum number of test rows, sampled with `seed`."""
    seed: int = 0
    """Seed for the val rows; independent of the run's seed."""
    instruction: str = "Think step by step, then give the final number as <answer>NUMBER</answer>."
    """Text after the question. Empty: the question only."""
    chat: bool = True
    """Put the question in a user message, for models with a chat template."""
    max_prompt_tokens: int | None = None
    """Prompts with more tokens are left out, and their number is shown. null: none are left out."""

    def __call__(self) -> Splits:
        if self.max_prompt_tokens is not None:
            check_count("max_prompt_tokens", self.max_prompt_tokens, 1)
        check_count("num_val", self.num_val, 0)
        if self.num_train is not None:
            check_count("num_train", self.num_train, 1)
        files = self._files() if self.path is not None else {}
        source = self.path or self.name
        train = self._prompts(
            _load(files["train"]) if files else self._hub("train"), source, "train"
        )
        if files and not files["test"]:
            train, val = hold_out(train, self.num_val, self.seed, source)
        else:
            val = self._prompts(
                _load(files["test"]) if files else self._hub("test"), source, "test"
            )
            val = [
                val[i]
                for i in sorted(
                    Random(self.seed).sample(range(len(val)), min(self.num_val, len(val)))
                )
            ]
        return checked_splits(train[: self.num_train], val, source)

    def _files(self) -> dict[str, list[Path]]:
        root = Path(self.path or "").expanduser()
        if root.is_file():
            return {"train": [root], "test": []}
        folder = root / self.config if (root / self.config).is_dir() else root
        files = {
            split: sorted(p for p in folder.glob(f"{split}*") if p.suffix in (".jsonl", ".parquet"))
            for split in ("train", "test")
        }
        for split, paths in files.items():
            if not paths:
                raise UserError(
                    f"{folder}: no {split}*.jsonl or {split}*.parquet there; type "
                    "data.path=FILE_OR_FOLDER"
                )
        return files

    def _hub(self, split: str) -> Rows:
        datasets = import_extra("datasets", "gsm8k")
        advice = "data.path=FILE_OR_FOLDER to read local files"
        check_hub(self.name)
        return call_loader(
            self.name, advice, datasets.load_dataset, self.name, self.config, split=split
        )

    def _prompts(self, rows: Iterable[Mapping[str, Any]], source: str, split: str) -> list[Prompt]:
        prompts = []
        for number, row in enumerate(rows, 1):
            location = f"{source} ({split} row {number})"
            question, solution = (_get_text(row, name, location) for name in ("question", "answer"))
            steps, mark, gold = solution.rpartition("####")
            gold = gold.strip().replace(",", "")
            if not mark or not gold:
                advice = "type data=jsonl data.train=FILE for data in another format"
                raise UserError(f'{location}: column "answer" has no "#### NUMBER"; {advice}')
            response = f"{re.sub('<<.*?>>', '', steps).strip()}\n<answer>{gold}</answer>"
            meta = {
                **{k: v for k, v in row.items() if k not in ("question", "answer")},
                "solution": solution,
                "response": response,
            }
            content = f"{question}\n\n{self.instruction}" if self.instruction else question
            prompts.append(
                Prompt(
                    id=f"gsm8k-{split}-{number}",
                    answer=gold,
                    meta=meta,
                    **prompt_fields(content, self.chat),
                )
            )
        return prompts


def _get_text(row: Mapping[str, Any], name: str, location: str) -> str:
    if name not in row:
        columns = ", ".join(row)
        raise UserError(
            f'{location}: no column "{name}"; columns: {columns}; type data=jsonl '
            "data.train=FILE to name the columns"
        )
    return check_text(row[name], location, name)


def _load(files: Iterable[Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in files:
        if path.suffix == ".parquet":
            parquet = import_extra("pyarrow.parquet", "gsm8k")
            try:
                rows += parquet.read_table(path).to_pylist()
            except (OSError, ValueError) as e:
                reason = str(e).split("\n")[0]
                raise UserError(
                    f"{path}: cannot be read as parquet ({reason}); type data.path=FILE_OR_FOLDER"
                ) from e
        else:
            rows += [row for _, row in read_jsonl(str(path))]
    return rows
