"""Run with `make test ARGS=plugins/name`."""

from rlmods.cli.templates.environment import Name
from rlmods.types import Prompt, Turn

PROMPT = Prompt(id="sum", text="2+2=", answer="4")


def test_the_right_answer_ends_the_episode() -> None:
    reply = Name().start(PROMPT, key=()).reply(Turn(0, 3, text="It is 4."))
    assert (reply.messages, reply.reward) == (None, 1.0)


def test_a_wrong_answer_gets_the_hint() -> None:
    reply = Name(hint="No.").start(PROMPT, key=()).reply(Turn(0, 3, text="It is 5."))
    assert (reply.messages, reply.reward) == ([{"role": "user", "content": "No."}], 0.0)
