"""Token ids of a conversation that grows by turns. The ids so far are never rendered or encoded again: each observation appends the ids
of what the chat template writes for the new messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlmods.policy.text import TokenizerMixin, render
from rlmods.types import Prompt


@dataclass
class Conversation:
    """A conversation as the policy has read it. Everything in it is plain data, so that it can be copied at any turn."""

    messages: list[dict[str, Any]] | None
    """Chat messages so far; None for a prompt of plain text."""
    text: str
    """Rendered text so far."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that the chat template shows."""

    @staticmethod
    def begin(model: TokenizerMixin, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> Conversation:
        """Return the conversation that begins with a prompt, whose ids are `model.encode(prompt, tools)`."""
        if prompt.messages is None:
            return Conversation(None, prompt.text or "")
        messages = [dict(message) for message in prompt.messages]
        return Conversation(messages, render(model.tokenizer, messages, f"prompt {prompt.id}", tools=tools), tools)

    def observe(self, model: TokenizerMixin, reply: str, ended: bool, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Append a turn of the policy and the messages that answer it, and return the token ids of the messages, up to where the next turn
        begins. Their contents never become special or other added tokens.

        Args:
            reply: text of the turn, with special tokens and without the one that ended it.
            ended: True if a token that ends turns was sampled. If not, its id is the first one returned.

        Returns None, and appends nothing, if the template writes the conversation so far in another way once the messages follow, as those
        do that leave out the thoughts of earlier turns.

        Raises:
            UserError: the template refuses the messages.
        """
        if self.messages is None:
            lines = [f"\n{message['content']}\n" for message in messages]
            self.text += reply + "".join(lines)
            return [i for line in lines for i in model.ids_without_added_tokens(line)]
        turn = {"role": "assistant", "content": reply}
        mark, end = model.unused_characters([reply, self.text, *(message["content"] for message in messages)], 2)
        marked = [{**message, "content": mark + mark.join(model.without_added_tokens(message["content"])) + mark} for message in messages]
        before = [*self.messages, {**turn, "content": reply + end}]
        rendered = render(model.tokenizer, [*before, *marked], "the reply of the environment", tools=self.tools)
        head, found, tail = rendered.partition(end)
        if not found or "".join(head.split()) != "".join((self.text + reply).split()):
            return None
        ids = model.ids_of_rendered(tail, mark)
        if ended and ids and ids[0] in model.eos_ids:
            ids = ids[1:]
        self.messages += [turn, *(dict(message) for message in messages)]
        self.text += reply + tail.replace(mark, "")
        return ids
