"""Token ids of a conversation that grows by turns. Each observation appends the ids of what the
chat template writes for the new messages, and the ids so far are not encoded again. Only if the
template writes earlier turns in another way once an observation follows, as those do that leave out
the thoughts of earlier turns, does the policy go on from the ids of the conversation as it is
written then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

from rlmods.policy.chat_template import render
from rlmods.policy.text import TokenizerMixin, texts_of
from rlmods.types import Prompt

Source = Literal["data", "policy", "environment"]


class Observation(NamedTuple):
    """What the policy reads before its next turn."""

    tokens: list[int]
    """Token ids of the new messages, up to where the next turn begins."""
    context: list[int] | None = None
    """Token ids of the whole conversation, from which the next turn is sampled, if the template
    writes earlier turns in another way now; None if `tokens` follow the ids so far."""


@dataclass
class Conversation:
    """A conversation as the policy has read it. Everything in it is plain data, so that it can be
    copied at any turn."""

    messages: list[dict[str, Any]] | None
    """Chat messages so far; None for a prompt of plain text."""
    text: str
    """Rendered text so far."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that the chat template shows."""
    sources: list[Source] = field(default_factory=list)
    """The source of each message."""

    @staticmethod
    def begin(
        model: TokenizerMixin, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Conversation:
        """Return the conversation that begins with a prompt, whose ids are `model.encode(prompt,
        tools)`."""
        if prompt.messages is None:
            return Conversation(None, prompt.text or "")
        messages = [dict(message) for message in prompt.messages]
        text = render(model.tokenizer, messages, f"prompt {prompt.id}", tools=tools)
        return Conversation(messages, text, tools, ["data" for _ in messages])

    def observe(
        self, model: TokenizerMixin, reply: str, ended: bool, messages: Sequence[Mapping[str, str]]
    ) -> Observation:
        """Append a turn of the policy and the messages that answer it, and return what the policy
        reads before its next turn. The contents of the messages never become special or other added
        tokens, and those of turns, if they are encoded again, no control tokens.

        Args:
            reply: text of the turn, with special tokens and without the one that ended it.
            ended: True if a token that ends turns was sampled. If not, its id is the first one
            returned.

        Raises:
            UserError: the template refuses the messages.
        """
        if self.messages is None:
            lines = [f"\n{message['content']}\n" for message in messages]
            self.text += reply + "".join(lines)
            parts = chain.from_iterable(map(model.without_added_tokens, lines))
            return Observation(model.ids_of_parts(parts))
        mark, end = model.unused_characters(
            [reply, self.text, *texts_of(self.messages), *texts_of(messages)], 2
        )
        marked = [_marked(model, message, mark) for message in messages]
        for turn in self._turns(reply):
            before = [*self.messages, {**turn, "content": turn["content"] + end}]
            rendered = render(
                model.tokenizer,
                [*before, *marked],
                "the reply of the environment",
                tools=self.tools,
            )
            head, found, tail = rendered.partition(end)
            if extends := found and "".join(head.split()) == "".join((self.text + reply).split()):
                break
        ids = model.ids_of_parts(tail.split(mark))
        if ended and ids and ids[0] in model.eos_ids:
            ids = ids[1:]
        self.messages += [turn, *(dict(message) for message in messages)]
        self.sources.append("policy")
        self.sources.extend("environment" for _ in messages)
        if extends:
            self.text += reply + tail.replace(mark, "")
            return Observation(ids)
        text = self._render(model, mark)
        self.text = text.replace(mark, "")
        context = model.ids_of_parts(text.split(mark))
        return Observation(ids if found else context, context)

    def _turns(self, reply: str) -> list[dict[str, str]]:
        """Return the messages by which a template may write a turn of the policy as it was, the
        usual one last: with thoughts in a field of their own, with the beginning of the thoughts
        that the template wrote before the turn, and with the turn as its content."""
        opening = next((text for text in ("<think>\n", "<think>") if self.text.endswith(text)), "")
        thoughts, end, rest = reply.removeprefix("<think>").partition("</think>")
        fields = [{"content": reply}]
        if opening:
            fields.insert(0, {"content": opening + reply})
        if end and (opening or reply.startswith("<think>")):
            fields.insert(
                0, {"reasoning_content": thoughts.strip("\n"), "content": rest.lstrip("\n")}
            )
        return [{"role": "assistant", **own} for own in fields]

    def _render(self, model: TokenizerMixin, mark: str) -> str:
        """Return the text of the whole conversation as the template writes it, with a `mark` where
        tokens must not extend over it."""

        def marked(message: Mapping[str, Any], source: Source) -> dict[str, Any]:
            if source == "environment":
                return _marked(model, message, mark)
            spells_any = (
                source == "data" and model.control_tokens_in_data and message["role"] == "assistant"
            )
            return dict(message) if spells_any else model.cut_control_tokens(message, mark)

        assert self.messages is not None
        messages = [
            marked(message, source)
            for message, source in zip(self.messages, self.sources, strict=True)
        ]
        return render(model.tokenizer, messages, "the reply of the environment", tools=self.tools)


def _marked(model: TokenizerMixin, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """Return a message of the environment with a `mark` around its content and within each added
    token that it spells."""
    return {
        **message,
        "content": mark + mark.join(model.without_added_tokens(message["content"])) + mark,
    }
