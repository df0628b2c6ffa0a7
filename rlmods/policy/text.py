"""Conversion between text and token ids, shared by policies and scalar models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlmods.types import Prompt, UserError


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

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return min(self.eos_ids) if pad is None else int(pad)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt. Chat messages use the model's own template; a beginning-of-text token is added at most once.

        Raises:
            UserError: chat messages for a tokenizer without a chat template.
        """
        if prompt.messages is None:
            return list(self.tokenizer(prompt.text)["input_ids"])
        if self.tokenizer.chat_template is None:
            hint = "type data.chat=false if the data has plain text, or choose another policy="
            raise UserError(f"prompt {prompt.id}: chat messages, but this model has no chat template; {hint}")
        ids = self.tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False)
        return list(ids)

    def encode_response(self, text: str, *, finished: bool = True) -> list[int]:
        """Return the token ids of a response, with the end-of-text token if it is `finished`."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return [*ids, self.eos_id] if finished else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a response, without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a response: generation configs may list several, the tokenizer has at most one.

    Raises:
        UserError: there is none.
    """
    sources = (tokenizer.eos_token_id, model.config.eos_token_id, getattr(model, "generation_config", None))
    sources = (*sources[:2], getattr(sources[2], "eos_token_id", None))
    lists = [source if isinstance(source, (list, tuple)) else [source] for source in sources]
    ids = {int(i) for source in lists for i in source if i is not None}
    if not ids:
        raise UserError("policy: the model has no end-of-text token, so responses would never end: set eos_token in its tokenizer")
    return frozenset(ids)
