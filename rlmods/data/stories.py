"""Generated word problems."""

from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal

from rlmods.data.schema import Splits, checked_splits, prompt_fields, render
from rlmods.data.solutions import MAX_CANDIDATES, ranked_candidates, split_of
from rlmods.settings.bounds import Count, NonNegativeInt, between, bounded
from rlmods.types import Prompt

NAMES = (
    "Ana",
    "Ben",
    "Chloe",
    "David",
    "Emma",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mia",
    "Noah",
    "Olga",
    "Priya",
)
THINGS = (
    "apples",
    "books",
    "marbles",
    "pencils",
    "stickers",
    "coins",
    "shells",
    "cards",
    "eggs",
    "flowers",
    "stamps",
    "cookies",
)
MORE = (
    "{name} finds {n} more.",
    "{name} buys {n} more.",
    "A friend gives {name} {n} more.",
    "{name} gets {n} more from {other}.",
)
LESS = (
    "{name} gives {n} to {other}.",
    "{name} loses {n} of them.",
    "{name} sells {n} of them.",
    "{other} takes {n} of them.",
)
BOXES = (
    "{name} has {k} boxes with {n} {things} in each.",
    "{name} has {k} bags, and there are {n} {things} in every bag.",
)
ENDS = (
    "How many {things} does {name} have now?",
    "How many {things} are left with {name}?",
    "How many {things} has {name} in the end?",
)


@dataclass(frozen=True)
@bounded("data")
class Stories:
    """Word problems such as "Mia has 12 shells. She gives 5 to Ben. How many shells does Mia have
    now?". The answer is a whole number.

    ===== ======================================= ==================
    level events                                  numbers
    ===== ======================================= ==================
    1     one gain or loss                        up to 20
    2     two gains or losses                     up to 50
    3     boxes of equally many, then one change  up to 9 boxes of 12
    ===== ======================================= ==================

    A hash of the story assigns it to train or val, independent of seed and level. Raises: UserError
    for a field out of range."""

    level: Literal[1, 2, 3] = 1
    """Difficulty, 1 to 3."""
    num_train: Count = 2000
    """Number of train stories."""
    num_val: NonNegativeInt = 200
    """Number of held-out stories."""
    seed: int = 0
    """Seed for the stories; independent of the run's seed, so that runs with different seeds share
    a data set."""
    template: str = "{story} Answer with just the number."
    """Text of the prompt."""
    system: str | None = None
    """System message, for models with a chat template."""
    chat: bool = True
    """Put the story in a user message, for models with a chat template."""
    num_candidates: Annotated[int, between(1, MAX_CANDIDATES)] = 2
    """Number of responses to compare, 1 to 9: `meta["candidates"]`, exactly one of them correct,
    and `ranks`: 0 for that one, then by distance from the answer. 1: a single response, correct
    half of the time."""

    def __call__(self) -> Splits:
        sizes = {"train": self.num_train, "val": self.num_val}
        found: dict[str, dict[str, Prompt]] = {"train": {}, "val": {}}
        rng = Random(f"stories-{self.level}-{self.seed}")
        while any(len(found[split]) < size for split, size in sizes.items()):
            story, answer = _story(self.level, rng)
            split = split_of(story)
            own = found[split]
            if story not in own and len(own) < sizes[split]:
                own[story] = self._prompt(split, len(own), story, answer)
        train, val = found.values()
        return checked_splits(list(train.values()), list(val.values()), "data=stories")

    def _prompt(self, split: str, number: int, story: str, answer: int) -> Prompt:
        content = render(self.template, {"story": story}, "template")
        rng = Random(f"candidates-{self.seed}-{story}")
        answers, ranks = ranked_candidates(answer, self.num_candidates, rng)
        meta = {
            "level": self.level,
            "response": str(answer),
            "candidates": tuple(map(str, answers)),
            "ranks": tuple(ranks),
        }
        return Prompt(
            id=f"stories-{self.level}-{self.seed}-{split}-{number}",
            answer=str(answer),
            meta=meta,
            **prompt_fields(content, self.chat, self.system),
        )


def _story(level: int, rng: Random) -> tuple[str, int]:
    """Return a story with its question, and the answer."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    if level == 3:
        k = rng.randint(2, 9)
        n = rng.randint(2, 12)
        num_things = k * n
        opening = rng.choice(BOXES).format(name=name, k=k, n=n, things=things)
    else:
        num_things = rng.randint(2, 20 if level == 1 else 50)
        opening = f"{name} has {num_things} {things}."
    sentences = [opening]
    for _ in range(2 if level == 2 else 1):
        if num_things > 2 and rng.random() < 0.5:
            n = rng.randint(1, num_things - 1)
            sentences.append(rng.choice(LESS).format(name=name, other=other, n=n))
            num_things -= n
        else:
            n = rng.randint(1, 20 if level == 1 else 50)
            sentences.append(rng.choice(MORE).format(name=name, other=other, n=n))
            num_things += n
    sentences.append(rng.choice(ENDS).format(name=name, things=things))
    return " ".join(sentences), num_things
