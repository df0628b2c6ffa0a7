"""Custom environment: `python train.py environment=name reward=environment`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlmods.types import Prompt, Reply, Turn


@dataclass
class Episode:
    """One response to a prompt, over its turns."""

    prompt: Prompt
    """The prompt that begins the episode. You may replace it, for instance to add instructions."""
    hint: str
    tools: Sequence[Any] = field(default=())
    """Tools that the policy may call; none here."""

    def reply(self, turn: Turn) -> Reply:
        """Return what follows a turn of the policy, whose text is `turn.text`: the messages of the
        environment, None to end the episode, and the reward of the turn."""
        if str(self.prompt.answer) in turn.text:
            return Reply(None, 1.0)
        return Reply([{"role": "user", "content": self.hint}], 0.0)


@dataclass(frozen=True)
class Name:
    """The policy tries until its turn contains the gold answer of the prompt. The reward is 1 for
    that turn."""

    max_turns: int = 3
    """Number of turns of the policy."""
    max_tokens: int = 64
    """Maximum number of tokens of all turns and replies."""
    hint: str = "Try again."
    """Reply to a wrong answer."""

    def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Episode:
        """Begin an episode. `key` is the seed of whatever is random in it: equal keys must give
        equal episodes, so that runs resume."""
        return Episode(prompt, self.hint)
