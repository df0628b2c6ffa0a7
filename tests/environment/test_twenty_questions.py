"""The game of questions about a hidden thing."""

from __future__ import annotations

import copy
from math import ceil, log2

import pytest

from rlmods.data import HiddenThing
from rlmods.data.hidden_thing import ANIMALS
from rlmods.environment import TwentyQuestions
from rlmods.types import Prompt, Turn

PROMPT = Prompt(
    id="a", text="What?", answer="cat", meta={"things": {"cat": ["pet", "fur"], "cod": ["swim"]}}
)


def said(text: str) -> Turn:
    return Turn(0, len(text), text)


def test_properties_and_things_are_answered() -> None:
    episode = TwentyQuestions(turn_penalty=0.25).start(PROMPT, key=())
    texts = {
        "fur?": "yes",
        "Does it SWIM": "no",
        "cod": "no",
        "a cat, or fur": "yes",
        "furry?": "no question",
        "": "no question",
    }
    for text, answer in texts.items():
        reply = episode.reply(said(text))
        assert [m["content"] for m in reply.messages or ()] == [answer]
        assert reply.reward == -0.25
    end = episode.reply(said("no cod: a Cat."))
    assert (end.messages, end.reward) == (None, 1.0)


@pytest.mark.parametrize(
    "prompt", HiddenThing(num_train=16, num_val=0)().train, ids=lambda prompt: prompt.answer
)
def test_halving_finds_every_thing(prompt: Prompt) -> None:
    episode, left, num_turns = TwentyQuestions().start(prompt, key=()), set(ANIMALS), 0
    properties = {name for names in ANIMALS.values() for name in names}
    while True:
        num_turns += 1
        if len(left) == 1:
            assert episode.reply(said(left.pop())).reward == 1.0
            break
        asked = min(
            sorted(properties),
            key=lambda name: abs(2 * sum(name in ANIMALS[thing] for thing in left) - len(left)),
        )
        [message] = episode.reply(said(asked)).messages or ()
        left = {
            thing for thing in left if (asked in ANIMALS[thing]) == (message["content"] == "yes")
        }
    assert num_turns <= ceil(log2(len(ANIMALS))) + 2


def test_a_copy_is_a_game_of_its_own() -> None:
    episode = TwentyQuestions().start(PROMPT, key=())
    assert copy.deepcopy(episode) == episode


def test_the_answer_must_be_a_thing() -> None:
    for answer, meta in (
        ("cat", {}),
        ("hen", PROMPT.meta),
        (None, {}),
        ("cat", {"things": "a cat"}),
        ("cat", {"things": {"cat": 3}}),
    ):
        with pytest.raises(ValueError, match=r"is no thing of a game: type data=hidden_thing"):
            TwentyQuestions().check_prompt(Prompt(id="a", text="x", answer=answer, meta=meta))


@pytest.mark.parametrize(
    ("field", "bad"), [("max_turns", 0), ("max_tokens", 0), ("turn_penalty", -1.0)]
)
def test_fields_are_checked(field: str, bad: float) -> None:
    with pytest.raises(ValueError, match=rf"environment\.{field}={bad}: must be"):
        TwentyQuestions(**{field: bad})  # type: ignore[arg-type]
