"""The guessing game."""

import copy

import pytest

from rlmods.environment import GuessNumber
from rlmods.environment.guess_number import last_number
from rlmods.types import Prompt, Turn

PROMPT = Prompt(id="a", text="Guess:", answer="4")


def said(text: str) -> Turn:
    return Turn(0, len(text), text)


def test_a_wrong_guess_is_compared_and_the_right_one_ends_the_game() -> None:
    episode = GuessNumber(turn_penalty=0.25).start(PROMPT, key=())
    texts = {
        "9": "lower",
        "I guess 2.": "higher",
        "<answer>10</answer>": "lower",
        "-4": "higher",
        "what?": "no number",
        "4 or 5": "lower",
    }
    for text, answer in texts.items():
        reply = episode.reply(said(text))
        assert [m["content"] for m in reply.messages or ()] == [answer]
        assert reply.reward == -0.25
    end = episode.reply(said("5? no, 4"))
    assert (end.messages, end.reward) == (None, 1.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12345678942", None),
        ("5.42", None),
        ("1-42", 42),
        ("-42.", -42),
        ("no... 42", 42),
        ("42 of 12345678942", 42),
        ("x", None),
    ],
)
def test_digits_within_another_number_are_no_number(text: str, number: int | None) -> None:
    assert last_number(text) == number


def test_a_copy_is_a_game_of_its_own() -> None:
    episode = GuessNumber().start(PROMPT, key=())
    assert copy.deepcopy(episode) == episode


def test_the_answer_must_be_a_number() -> None:
    for answer in (None, "four", "4.5"):
        with pytest.raises(ValueError, match=r"is not a whole number: type data=hidden_number"):
            GuessNumber().check_prompt(Prompt(id="a", text="x", answer=answer))
