"""Between text and token ids, the same for every kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlmods.types import Prompt, UserError


class TokenizerMixin:
    """What a model with a tokenizer can do with text."""

    tokenizer: Any
    eos_ids: frozenset[int]
    """Every id that ends a response."""

    @property
    def eos_id(self) -> int:
        """The one that ends a response which is to be imitated or scored."""
        eos = self.tokenizer.eos_token_id
        return min(self.eos_ids) if eos is None else int(eos)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return min(self.eos_ids) if pad is None else int(pad)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Chat turns go through the model's own template; beginning-of-text is added once, as the tokenizer does.

        Raises:
            UserError: chat turns for a tokenizer without a chat template.
        """
        if prompt.messages is None:
            return list(self.tokenizer(prompt.text)["input_ids"])
        if self.tokenizer.chat_template is None:
            hint = "give plain text (data.chat=false, where the data has it) or another policy="
            raise UserError(f"prompt {prompt.id}: chat messages, but this model has no chat template; {hint}")
        ids = self.tokenizer.apply_chat_template(list(prompt.messages), add_generation_prompt=True, tokenize=True, return_dict=False)
        return list(ids)

    def encode_response(self, text: str, *, finished: bool = True) -> list[int]:
        """Token ids of a response; where it is `finished`, the end-of-text token is one of them."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return [*ids, self.eos_id] if finished else ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a response, without the special tokens that only the machine reads."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a response: generation configs list several, and the tokenizer knows one.

    Raises:
        UserError: there is none.
    """
    sources = (tokenizer.eos_token_id, model.config.eos_token_id, getattr(model, "generation_config", None))
    sources = (*sources[:2], getattr(sources[2], "eos_token_id", None))
    lists = [source if isinstance(source, (list, tuple)) else [source] for source in sources]
    ids = {int(i) for source in lists for i in source if i is not None}
    if not ids:
        raise UserError("policy: the model has no end-of-text token, so a response could never end; set eos_token in its tokenizer")
    return frozenset(ids)
