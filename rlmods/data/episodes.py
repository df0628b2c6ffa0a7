"""Numbered episodes of an environment."""

from __future__ import annotations

from dataclasses import dataclass

from rlmods.data.schema import Splits, check_count, checked_splits, prompt_fields
from rlmods.types import Prompt


@dataclass(frozen=True)
class Episodes:
    """Prompts that are the seeds of episodes, for `environment=textarena`, `gymnasium` and
    `openenv`, which show their first observation in place of the text. Val has the seeds from
    `seed` on, and train those that follow.

    Raises: UserError for a field out of range."""

    num_train: int = 1000
    """Number of train episodes."""
    num_val: int = 100
    """Number of val episodes."""
    seed: int = 0
    """Seed of the first episode."""
    chat: bool = False
    """Put the observation in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        check_count("num_train", self.num_train, 1)
        check_count("num_val", self.num_val, 0)
        check_count("seed", self.seed, 0)

        def prompts(split: str, first: int, count: int) -> list[Prompt]:
            seeds = range(first, first + count)
            return [
                Prompt(
                    id=f"episode-{split}-{n}", meta={"seed": n}, **prompt_fields(str(n), self.chat)
                )
                for n in seeds
            ]

        val, train = (
            prompts("val", self.seed, self.num_val),
            prompts("train", self.seed + self.num_val, self.num_train),
        )
        return checked_splits(train, val, "data=episodes")
