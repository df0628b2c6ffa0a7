"""Environments for tests."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from string import ascii_letters
from typing import Any

from rlmods.types import Prompt, Reply, Turn


@dataclass
class Talk:
    """An episode of `Echo`."""

    prompt: Prompt
    num_turns: int
    random: Random
    num_replies: int = 0
    tools: Sequence[Any] = field(default=())

    def reply(self, turn: Turn) -> Reply:
        self.num_replies += 1
        reward = float(len(turn.text) % 2)
        if self.num_replies == self.num_turns:
            return Reply(None, reward)
        return Reply([{"role": "user", "content": "ab" * self.random.randint(1, 3)}], reward)


@dataclass(frozen=True)
class Echo:
    """Says something random of 2 to 6 characters, and ends after 1 to `max_turns` turns. The reward
    of a turn is 1 if its text has an odd number of characters, else 0."""

    max_turns: int = 3
    max_tokens: int = 60
    least: int = 1
    """Smallest number of turns."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Talk:
        random = Random(repr(key))
        return Talk(prompt, random.randint(self.least, self.max_turns), random)


@dataclass
class Lines:
    """An episode of `Script`."""

    prompt: Prompt
    replies: list[Reply]
    seen: list[Turn]
    tools: Sequence[Any] = ()

    def reply(self, turn: Turn) -> Reply:
        self.seen.append(turn)
        return self.replies[len(self.seen) - 1]


@dataclass(frozen=True)
class Script:
    """Gives the same replies in every episode, and then ends it."""

    texts: Sequence[str] = ()
    max_turns: int = 9
    max_tokens: int = 200

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Lines:
        return Lines(
            prompt,
            [
                *(Reply([{"role": "user", "content": text}]) for text in self.texts),
                Reply(None, 1.0),
            ],
            [],
        )


FORGETFUL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}={{ m['content'] }};"
    "{% elif m['content'][:1] in '"
    + ascii_letters
    + "' %}{{ m['content'][1:] }};{% else %}{{ m['content'] }};{% endif %}{% endfor %}"
)
"""A chat template that leaves out the first character of earlier turns if it is a letter."""


@dataclass(frozen=True)
class Chat(Echo):
    """`Echo` with prompts as chat messages, for a policy with the template `FORGETFUL`."""

    max_turns: int = 4
    max_tokens: int = 200
    least: int = 2

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Talk:
        return super().start(
            replace(prompt, text=None, messages=[{"role": "user", "content": prompt.text or ""}]),
            key=key,
        )


def forgetful(policy: Any) -> Any:
    """Give a policy the template `FORGETFUL`."""
    policy.tokenizer.chat_template = FORGETFUL
    return policy
