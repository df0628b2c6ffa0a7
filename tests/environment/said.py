"""What tools reply to the text of a turn."""

from typing import Any

from rlmods.environment import Tools
from rlmods.types import Prompt, Reply, Turn
from tests.environment import hostile

PLAIN = Prompt(id="a", text="1+1=")
CHAT = Prompt(id="a", messages=[{"role": "user", "content": "1+1?"}])
HOSTILE = f"{hostile.__name__}."


def said(text: str, finish: Any = "stop") -> Turn:
    return Turn(0, 1, text, text, finish)


def reply(text: str, tools: Tools | None = None, prompt: Prompt = PLAIN) -> Reply:
    return (tools or Tools()).start(prompt, key=()).reply(said(text))


def contents(found: Reply) -> list[str]:
    return [message["content"] for message in found.messages or ()]
