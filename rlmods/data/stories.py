"""Generated word problems: arithmetic as people tell it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from rlmods.data.mistakes import MOST, ranked
from rlmods.data.schema import Splits, ask, checked, count, refuse, render
from rlmods.types import Prompt

NAMES = ("Ana", "Ben", "Chloe", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kofi", "Lena", "Mia", "Noah", "Olga", "Priya")
THINGS = ("apples", "books", "marbles", "pencils", "stickers", "coins", "shells", "cards", "eggs", "flowers", "stamps", "cookies")
MORE = ("{name} finds {n} more.", "{name} buys {n} more.", "A friend gives {name} {n} more.", "{name} gets {n} more from {other}.")
LESS = ("{name} gives {n} to {other}.", "{name} loses {n} of them.", "{name} sells {n} of them.", "{other} takes {n} of them.")
BOXES = ("{name} has {k} boxes with {n} {things} in each.", "{name} has {k} bags, and there are {n} {things} in every bag.")
ASK = ("How many {things} does {name} have now?", "How many {things} are left with {name}?", "How many {things} has {name} in the end?")
VAL_SHARE = 5
"""One story in so many belongs to val."""


@dataclass(frozen=True)
class Stories:
    """Questions such as "Mia has 12 shells. She gives 5 to Ben. How many shells does Mia have now?", with one whole number as the answer.

    ===== ======================================= ==================
    level what happens                            numbers
    ===== ======================================= ==================
    1     one gain or loss                        up to 20
    2     two gains or losses                     up to 50
    3     boxes of equally many, then one change  up to 9 boxes of 12
    ===== ======================================= ==================

    A story belongs to train or to val by its own hash, at every seed and level. Raises: UserError for a field out of range."""

    level: int = 1
    """Difficulty, 1 to 3."""
    num_train: int = 2000
    """Stories to train on."""
    num_val: int = 200
    """Held-out stories."""
    seed: int = 0
    """Which stories are drawn. Not the run's seed: runs that differ in that share one data set."""
    template: str = "{story} Answer with just the number."
    """The prompt."""
    system: str | None = None
    """System message, for models with a chat template."""
    chat: bool = True
    """Tell the story in a user message."""
    num_candidates: int = 2
    """Responses to compare, 1 to 9: `meta["candidates"]`, exactly one of them right, with its `ranks`: 0 for that one, then by distance
    from the answer. 1: a single response, half of them right."""

    def __call__(self) -> Splits:
        count("num_train", self.num_train, 1)
        count("num_val", self.num_val, 0)
        count("num_candidates", self.num_candidates, 1, MOST)
        if self.level not in (1, 2, 3):
            refuse("level", self.level, (1, 2, 3))
        splits: dict[str, dict[str, Prompt]] = {"train": {}, "val": {}}
        most = {"train": self.num_train, "val": self.num_val}
        rng = Random(f"stories-{self.level}-{self.seed}")
        while any(len(splits[name]) < most[name] for name in splits):
            story, answer = _story(self.level, rng)
            split = "train" if hashlib.sha256(story.encode()).digest()[0] % VAL_SHARE else "val"
            if story not in splits[split] and len(splits[split]) < most[split]:
                splits[split][story] = self._prompt(split, len(splits[split]), story, answer)
        return checked(list(splits["train"].values()), list(splits["val"].values()), "data=stories")

    def _prompt(self, split: str, number: int, story: str, answer: int) -> Prompt:
        asked = ask(render(self.template, {"story": story}, "template"), self.chat, self.system)
        stated, ranks = ranked(answer, self.num_candidates, Random(f"candidates-{self.seed}-{story}"))
        candidates = tuple(map(str, stated))
        meta = {"level": self.level, "response": str(answer), "candidates": candidates, "ranks": tuple(ranks)}
        return Prompt(id=f"stories-{self.level}-{self.seed}-{split}-{number}", answer=str(answer), meta=meta, **asked)


def _story(level: int, rng: Random) -> tuple[str, int]:
    """A story and how many things there are in the end."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    if level == 3:
        k, n = rng.randint(2, 9), rng.randint(2, 12)
        sentences, have = [rng.choice(BOXES).format(name=name, k=k, n=n, things=things)], k * n
    else:
        have = rng.randint(2, 20 if level == 1 else 50)
        sentences = [f"{name} has {have} {things}."]
    for _ in range(2 if level == 2 else 1):
        if have > 2 and rng.random() < 0.5:
            n = rng.randint(1, have - 1)
            sentences.append(rng.choice(LESS).format(name=name, other=other, n=n))
            have -= n
        else:
            n = rng.randint(1, 20 if level == 1 else 50)
            sentences.append(rng.choice(MORE).format(name=name, other=other, n=n))
            have += n
    return " ".join([*sentences, rng.choice(ASK).format(name=name, things=things)]), have
