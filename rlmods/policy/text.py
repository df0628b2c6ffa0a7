"""Conversion between text and token ids, shared by policies and scalar models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlmods.types import Prompt, UserError

CONTENT = "content of the reply"
"""Content of the message by which the token after it is found."""
TEMPLATE_KWARGS = "chat_template_kwargs"
"""Entry of the tokenizer's configuration with the variables of its chat template."""


class TokenizerMixin:
    """Text methods of a model with a tokenizer."""

    tokenizer: Any
    eos_ids: frozenset[int]
    """Every id that ends a response."""

    @property
    def eos_id(self) -> int:
        """The end-of-text id appended to responses that are given as text, for supervised training or scoring."""
        eos = self.tokenizer.eos_token_id
        return min(self.eos_ids) if eos is None else int(eos)

    @cached_property
    def turn_end_id(self) -> int:
        """The id appended to replies to chat messages: that of the chat template (`end_of_turn`), or else `eos_id`."""
        end = end_of_turn(self.tokenizer)
        return self.eos_id if end is None else end

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return min(self.eos_ids) if pad is None else int(pad)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt. Chat messages use the model's own template; a beginning-of-text token is added at most once.

        An end-of-text token that the tokenizer appends to plain text is left out, because the response continues the prompt.

        Raises:
            UserError: chat messages for a tokenizer without a chat template.
        """
        if prompt.messages is None:
            return self._without_appended_eos(prompt.text or "")
        if self.tokenizer.chat_template is None:
            hint = "type data.chat=false if the data has plain text, or choose another policy="
            raise UserError(f"prompt {prompt.id}: chat messages, but this model has no chat template; {hint}")
        options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False, **template_kwargs(self.tokenizer)}
        return list(self.tokenizer.apply_chat_template(list(prompt.messages), **options))

    def _without_appended_eos(self, text: str) -> list[int]:
        ids = list(self.tokenizer(text)["input_ids"])
        if ids and ids[-1] in self.eos_ids:
            plain = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            while ids and ids[-1] in self.eos_ids and (not plain or ids[-len(plain) :] != plain):
                ids.pop()
        return ids

    def encode_response(self, text: str, prompt: Prompt | None = None, *, finished: bool = True) -> list[int]:
        """Return the token ids of a response. A `finished` one ends with the end-of-text token, or after chat messages with the token that
        ends a turn."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        end = self.eos_id if prompt is None or prompt.messages is None else self.turn_end_id
        return [*ids, end] if finished else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a response, without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a response: those of the tokenizer, of the model's configurations, and of the chat template.

    Raises:
        UserError: there is none.
    """
    generation = getattr(model, "generation_config", None)
    sources = (tokenizer.eos_token_id, model.config.eos_token_id, getattr(generation, "eos_token_id", None), end_of_turn(tokenizer))
    lists = [source if isinstance(source, (list, tuple)) else [source] for source in sources]
    ids = {int(i) for source in lists for i in source if i is not None}
    if not ids:
        raise UserError("policy: the model has no end-of-text token, so responses would never end: set eos_token in its tokenizer")
    return frozenset(ids)


def end_of_turn(tokenizer: Any) -> int | None:
    """Return the token by which the chat template ends a reply, which may differ from `eos_token` (Gemma: `<end_of_turn>`): the special
    token after the content of an assistant message. None without a template, or if no special token follows."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": "request"}, {"role": "assistant", "content": CONTENT}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **template_kwargs(tokenizer))
    except TemplateError:  # the template accepts no reply
        return None
    _, content, rest = text.rpartition(CONTENT)
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if content else []
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return int(ids[0]) if ids and ids[0] in special else None


def template_kwargs(tokenizer: Any) -> dict[str, Any]:
    """Return the variables of the chat template. They are saved with the tokenizer, so that exports and reward models use the same."""
    return dict(tokenizer.init_kwargs.get(TEMPLATE_KWARGS) or {})


def set_template_kwargs(tokenizer: Any, values: Mapping[str, Any]) -> None:
    """Set variables of the chat template, beside those that the tokenizer was saved with.

    Raises:
        UserError: the template does not use a variable, or there is no template.
    """
    template = str(tokenizer.chat_template or "")
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters} - {"tools", "documents"}
    for name in values:
        if name in reserved or not re.search(rf"\b{re.escape(name)}\b", template):
            raise UserError(f"policy.chat_template_kwargs: the chat template of this model does not use {name}: drop it")
    if values:
        tokenizer.init_kwargs[TEMPLATE_KWARGS] = {**template_kwargs(tokenizer), **values}
