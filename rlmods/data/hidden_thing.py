"""Prompts of a game in which a thing is found by asking about its properties."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rlmods.data.schema import Splits, check_count, checked_splits, prompt_fields, render
from rlmods.errors import UserError
from rlmods.types import Prompt

ANIMALS = {
    "ant": ["legs", "egg"],
    "bat": ["fly", "fur", "legs", "night"],
    "bee": ["fly", "legs", "egg"],
    "cat": ["pet", "fur", "legs", "night"],
    "cod": ["swim", "egg"],
    "cow": ["farm", "fur", "legs", "big"],
    "dog": ["pet", "fur", "legs"],
    "duck": ["fly", "swim", "farm", "legs", "egg"],
    "eel": ["swim", "egg", "night"],
    "hen": ["farm", "legs", "egg"],
    "owl": ["fly", "legs", "egg", "night"],
    "pig": ["farm", "legs"],
    "rat": ["fur", "legs", "night"],
    "seal": ["swim", "fur", "big"],
    "whale": ["swim", "big"],
    "yak": ["fur", "legs", "big"],
}
"""The default things and their properties."""


@dataclass(frozen=True)
class HiddenThing:
    """Prompts that list things and properties. One of the things is the gold answer, to be found by
    asking about properties, with `environment=twenty_questions`. Every thing occurs equally often,
    up to one, in train and in val.

    Raises: UserError for a field out of range, a template with unknown names, and a file that is no
    table of things."""

    file: str | None = None
    """JSON file of the things, `{"cat": ["pet", "fur"], ...}`: names and properties are single
    words, and no two things have the same properties. null: 16 animals with 9 properties."""
    num_train: int = 1000
    """Number of train prompts."""
    num_val: int = 96
    """Number of val prompts."""
    seed: int = 0
    """Seed of the order of the things."""
    template: str = "One of {things}. Ask: {properties}\n"
    """Text of the prompt."""
    chat: bool = False
    """Put the text in a user message, for models with a chat template."""

    def __call__(self) -> Splits:
        check_count("num_train", self.num_train, 1)
        check_count("num_val", self.num_val, 0)
        things = ANIMALS if self.file is None else _read(self.file)
        properties = list(dict.fromkeys(name for names in things.values() for name in names))
        content = render(
            self.template,
            {"things": " ".join(things), "properties": " ".join(properties)},
            "template",
        )

        def prompts(split: str, count: int) -> list[Prompt]:
            names = [list(things)[i % len(things)] for i in range(count)]
            Random(f"{split}-{self.seed}").shuffle(names)
            fields = prompt_fields(content, self.chat)
            return [
                Prompt(
                    id=f"hidden-thing-{split}-{i}", answer=name, meta={"things": things}, **fields
                )
                for i, name in enumerate(names)
            ]

        return checked_splits(
            prompts("train", self.num_train), prompts("val", self.num_val), "data=hidden_thing"
        )


def _read(file: str) -> Mapping[str, list[str]]:
    """Return the things of a file and their properties.

    Raises:
        UserError: it is no table of at least two things that can be told apart.
    """
    try:
        table = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"data.file={file}: {' '.join(str(error).split())}: type the path of a JSON file"
        ) from error
    if (
        not isinstance(table, dict)
        or len(table) < 2
        or not all(isinstance(names, list) for names in table.values())
    ):
        raise UserError(
            f'data.file={file}: is no table of things: write {{"cat": ["pet", "fur"], "eel": '
            f'["swim"]}}'
        )
    names: list[Any] = [*table, *(name for names in table.values() for name in names)]
    if wrong := [
        name for name in names if not isinstance(name, str) or not re.fullmatch(r"[a-z]+", name)
    ]:
        raise UserError(
            f"data.file={file}: {str(wrong[0])[:40]!r} is not a word of the letters a to z: "
            "write another name"
        )
    if both := sorted(set(table) & {name for names in table.values() for name in names}):
        raise UserError(f"data.file={file}: {both[0]!r} is both a thing and a property: rename one")
    seen: dict[frozenset[str], str] = {}
    for thing, owned in table.items():
        if (other := seen.setdefault(frozenset(owned), thing)) != thing:
            raise UserError(
                f"data.file={file}: {other!r} and {thing!r} have the same properties: add a "
                "property to one"
            )
    return table
