"""The procedural tasks of the reasoning-gym package, graded by their own scorers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rlmods.data.schema import Splits, ask, checked, count, extra, refuse
from rlmods.types import Prompt, UserError

DRAWS = 4
"""Entries generated per prompt asked for, at most, before a task counts as too small."""


@dataclass(frozen=True)
class ReasoningGym:
    """One task by name. Entry i of a reasoning-gym data set with seed s is entry 0 of the one with seed s + i, so two seeds that lie close
    share most of their entries: here both splits are cut from one run of entries, and a question is taken once.

    `meta` holds `task` and `entry`, which is what `reasoning_gym.get_score_answer_fn(task)(answer, entry)` grades by.
    Raises: UserError for a missing package, an unknown task, options the task refuses, and a task with too few different questions."""

    task: str = "chain_sum"
    """One of the package's tasks."""
    num_train: int = 2000
    """Train questions."""
    num_val: int = 200
    """Val questions: the first of the run, so that `num_train` does not change them."""
    seed: int = 0
    """Which questions are generated. Not the run's seed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The task's own settings, as in `+data.options.max_terms=3`."""
    instruction: str = "Give the final answer as <answer>ANSWER</answer>."
    """Follows the question. Empty: the bare question."""
    chat: bool = True
    """Ask in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        count("num_train", self.num_train, 1)
        count("num_val", self.num_val, 0)
        count("seed", self.seed, 0)
        total = self.num_train + self.num_val
        entries = list(islice(self._entries(DRAWS * total), total))
        if len(entries) < total:
            found = f"only {len(entries)} different questions in {DRAWS * total} draws"
            fits = f"data.num_val={len(entries) // 10} data.num_train={len(entries) - len(entries) // 10}"
            raise UserError(f"data.task={self.task}: {found}, {total} were asked for; type {fits}, or set data.options for a larger task")
        val = [self._prompt(entry, f"val-{i}") for i, entry in enumerate(entries[: self.num_val])]
        train = [self._prompt(entry, f"train-{i}") for i, entry in enumerate(entries[self.num_val :])]
        return checked(train, val, f"data.task={self.task}")

    def _entries(self, draws: int) -> Iterator[dict[str, Any]]:
        """Entries with a question not seen before."""
        tasks = extra("reasoning_gym.factory", "reasoning_gym")
        if self.task not in tasks.DATASETS:
            refuse("task", self.task, sorted(tasks.DATASETS))
        try:
            dataset = tasks.create_dataset(self.task, seed=self.seed * 10_000_019, size=draws, **self.options)
        except (TypeError, ValueError, KeyError, AssertionError) as e:
            given = dict(self.options)
            raise UserError(f"data.task={self.task} refuses data.options={given}: {e}") from e
        seen = set()
        for i in range(draws):
            entry = dataset[i]
            if entry["question"] not in seen:
                seen.add(entry["question"])
                yield dict(entry)

    def _prompt(self, entry: dict[str, Any], name: str) -> Prompt:
        question, answer = entry["question"], entry["answer"]
        asked = ask(f"{question}\n\n{self.instruction}" if self.instruction else question, self.chat)
        meta = {"task": self.task, "entry": entry}
        if isinstance(answer, str):
            meta["response"] = f"<answer>{answer}</answer>"
        return Prompt(id=f"{self.task}-{name}", answer=answer if isinstance(answer, str) else None, meta=meta, **asked)
