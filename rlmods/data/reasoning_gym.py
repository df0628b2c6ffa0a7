"""Procedural tasks of the reasoning-gym package, graded by their own scorers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rlmods.data.schema import Splits, checked_splits, import_extra, prompt_fields
from rlmods.errors import UserError, suggest
from rlmods.settings.bounds import Count, NonNegativeInt, bounded
from rlmods.types import Prompt

MAX_DRAWS = 4
"""Maximum number of entries generated per requested prompt before a task counts as too small."""


@dataclass(frozen=True)
@bounded("data")
class ReasoningGym:
    """One reasoning-gym task. Entry i of a reasoning-gym data set with seed s is entry 0 of the one
    with seed s + i, so that nearby seeds share most of their entries. Both splits are therefore
    taken from one sequence of entries, without repeated questions.

    `meta` holds `task` and `entry`, the arguments of
    `reasoning_gym.get_score_answer_fn(task)(answer, entry)`. Raises: UserError for a missing
    package, an unknown task, invalid options, and a task with too few different questions."""

    task: str = "chain_sum"
    """Name of the task in the package."""
    num_train: Count = 2000
    """Number of train questions."""
    num_val: NonNegativeInt = 200
    """Number of val questions: the first of the sequence, so that `num_train` does not change
    them."""
    seed: NonNegativeInt = 0
    """Seed for the questions; independent of the run's seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the task, as in `+data.options.max_terms=3`."""
    instruction: str = "Give the final answer as <answer>ANSWER</answer>."
    """Text after the question. Empty: the question only."""
    chat: bool = True
    """Put the question in a user message, for models with a chat template."""
    max_prompt_tokens: Count | None = None
    """Prompts with more tokens are left out, and their number is shown. null: none are left out."""

    def __call__(self) -> Splits:
        total = self.num_train + self.num_val
        entries = list(islice(self._entries(MAX_DRAWS * total), total))
        if len(entries) < total:
            num_val = len(entries) // 10
            raise UserError(
                f"data.task={self.task}: only {len(entries)} different questions in "
                f"{MAX_DRAWS * total} draws, {total} needed; type data.num_val={num_val} "
                f"data.num_train={len(entries) - num_val}, or set data.options for a larger task"
            )
        val = [self._prompt(entry, f"val-{i}") for i, entry in enumerate(entries[: self.num_val])]
        train = [
            self._prompt(entry, f"train-{i}") for i, entry in enumerate(entries[self.num_val :])
        ]
        return checked_splits(train, val, f"data.task={self.task}")

    def _entries(self, num_draws: int) -> Iterator[dict[str, Any]]:
        """Yield entries with different questions."""
        tasks = import_extra("reasoning_gym.factory", "reasoning_gym")
        if self.task not in tasks.DATASETS:
            raise UserError(f"data.task={self.task}: {suggest(self.task, sorted(tasks.DATASETS))}")
        try:
            dataset = tasks.create_dataset(
                self.task, seed=self.seed * 10_000_019, size=num_draws, **self.options
            )
        except (TypeError, ValueError, KeyError, AssertionError) as e:
            raise UserError(
                f"data.options={dict(self.options)}: not valid for data.task={self.task}: {e}"
            ) from e
        seen = set()
        for i in range(num_draws):
            entry = dataset[i]
            if entry["question"] not in seen:
                seen.add(entry["question"])
                yield dict(entry)

    def _prompt(self, entry: dict[str, Any], name: str) -> Prompt:
        content = entry["question"]
        if self.instruction:
            content = f"{content}\n\n{self.instruction}"
        meta = {"task": self.task, "entry": entry}
        answer = entry["answer"] if isinstance(entry["answer"], str) else None
        if answer is not None:
            meta["response"] = f"<answer>{answer}</answer>"
        shown = prompt_fields(content, self.chat)
        return Prompt(id=f"{self.task}-{name}", answer=answer, meta=meta, **shown)
