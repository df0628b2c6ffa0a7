"""Grade-school word problems (GSM8K), from the Hugging Face Hub or from local files: `data=jsonl`
with the gold answer cut out of the solution."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rlmods.data.file_rows import NumberedRow
from rlmods.data.jsonl import Jsonl
from rlmods.data.schema import Splits, check_text
from rlmods.errors import UserError
from rlmods.settings.bounds import Count, bounded

OTHER_FORMAT = "type data=jsonl data.train=FILE for data in another format"


@dataclass(frozen=True)
@bounded("data")
class GSM8K:
    """GSM8K: the train split to train on, the test split to validate on. The gold answer is the
    number after `####`, without commas.

    Raises: UserError for a missing package, an unreachable Hub, a path without files, and for rows
    in another format."""

    path: str | None = None
    """A local .jsonl or .parquet file (`num_val` rows are held out), or a folder with train* and
    test* files. null: the Hub."""
    name: str = "openai/gsm8k"
    """Name on the Hub."""
    config: str = "main"
    """Configuration of the data set; a subfolder of `path`, if it exists."""
    num_train: Count | None = None
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
        train, val = self._sources()
        instruction = self.instruction.replace("{", "{{").replace("}", "}}")
        rows = Jsonl(
            train,
            val,
            self.num_val,
            prompt="question",
            answer="answer",
            response="response",
            id="id",
            template=f"{{prompt}}\n\n{instruction}" if instruction else "{prompt}",
            chat=self.chat,
            seed=self.seed,
            max_prompt_tokens=self.max_prompt_tokens,
        )
        splits = rows.read(_with_gold, "data.path=FILE_OR_FOLDER")
        return replace(splits, train=splits.train[: self.num_train])

    def _sources(self) -> tuple[str, str | None]:
        """Return where train and val are read; None: rows of train are held out."""
        if self.path is None:
            source = f"{self.name}:{self.config}"
            return f"{source}:train", f"{source}:test"
        root = Path(self.path).expanduser()
        if not root.is_dir():
            return self.path, None
        folder = str(root / self.config if (root / self.config).is_dir() else root)
        return folder, folder


def _with_gold(rows: Iterator[NumberedRow], source: str, split: str) -> Iterator[NumberedRow]:
    """Yield rows with the column `answer` divided into gold answer, `solution`, `response`."""
    name = "test" if split == "val" else split
    for row in rows:
        if not row.values.keys() >= {"question", "answer"}:
            raise UserError(
                f"{row.location}: no columns question and answer, but {', '.join(row.values)}; "
                f"{OTHER_FORMAT}"
            )
        values = dict(row.values)
        solution = check_text(values.pop("answer"), row.location, "answer")
        steps, mark, gold = solution.rpartition("####")
        gold = gold.strip().replace(",", "")
        if not mark or not gold:
            raise UserError(f'{row.location}: column "answer" has no "#### NUMBER"; {OTHER_FORMAT}')
        values |= {
            "id": f"gsm8k-{name}-{row.number}",
            "answer": gold,
            "solution": solution,
            "response": f"{re.sub('<<.*?>>', '', steps).strip()}\n<answer>{gold}</answer>",
        }
        yield row._replace(values=values)
