"""Prompts whose answer is one of the things that they list."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rlmods.data import HiddenThing
from rlmods.data.hidden_thing import ANIMALS
from rlmods.errors import UserError


def test_every_thing_occurs_equally_often_and_is_listed() -> None:
    splits = HiddenThing(num_train=48, num_val=16)()
    assert Counter(prompt.answer for prompt in splits.train) == dict.fromkeys(ANIMALS, 3)
    assert Counter(prompt.answer for prompt in splits.val) == dict.fromkeys(ANIMALS, 1)
    [text] = {prompt.text for prompt in (*splits.train, *splits.val)}
    assert text is not None
    assert set(text.replace(".", "").split()) >= {*ANIMALS, "swim", "night"}
    assert len({prompt.id for prompt in (*splits.train, *splits.val)}) == 64


def test_animals_can_be_told_apart() -> None:
    assert len({frozenset(names) for names in ANIMALS.values()}) == len(ANIMALS) == 16


def test_the_seed_changes_the_order() -> None:
    first, again, other = (HiddenThing(num_train=50, seed=seed)().train for seed in (0, 0, 1))
    assert [p.answer for p in first] == [p.answer for p in again] != [p.answer for p in other]


def test_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "things.json").write_text('{"tea": ["hot"], "ice": []}')
    [prompt] = HiddenThing(
        file=str(tmp_path / "things.json"), num_train=1, num_val=0, chat=True
    )().train
    assert prompt.messages == [{"role": "user", "content": "One of tea ice. Ask: hot\n"}]
    assert prompt.meta["things"] == {"tea": ["hot"], "ice": []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "type the path of a JSON file"),
        ("[" * 100_000, "type the path of a JSON file"),
        ('["cat"]', "is no table of things"),
        ('{"cat": []}', "is no table of things"),
        ('{"cat": "pet", "eel": []}', "is no table of things"),
        ('{"cat": ["a pet"], "eel": []}', "'a pet' is not a word"),
        ('{"cat": [3], "eel": []}', "'3' is not a word"),
        ('{"cat": ["eel"], "eel": []}', "'eel' is both a thing and a property"),
        ('{"cat": ["pet"], "dog": ["pet", "pet"]}', "'cat' and 'dog' have the same properties"),
    ],
)
def test_other_files_are_errors(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "things.json").write_text(text)
    with pytest.raises(UserError, match=message):
        HiddenThing(file=str(tmp_path / "things.json"))()
