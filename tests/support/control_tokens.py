"""A tokenizer of bytes with special and other added tokens."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlmods.policy.text import TokenizerMixin

SPECIAL = ("<pad>", "<|end|>", "<|im_start|>", "<|im_end|>", "<unk>")
ADDED = ("<start_of_turn>", "<think>", "</think>", "<tool_call>", "</tool_call>", "\n\n")
TOOL_TOKENS = ("<｜tool▁outputs▁begin｜>", "<｜tool▁sep｜>", "[TOOL_RESULTS]")
"""Added tokens that are not special and stand only in the branches of a template for tools."""
TOOLS = (
    "{# <tool_call> #}{% for m in messages %}{% if m['role'] == 'tool' "
    "%}<｜tool▁outputs▁begin｜>{{ '[TOOL_RESULTS]' + m['content'] }}"
    "{% else %}<|im_start|>{{ m['content'] }}{{ '<think></think>' if m['role'] == "
    "'assistant' and m['x'] }}{% endif %}{% endfor %}"
)
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim "
    "}}<|im_end|>\n\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}{{ "
    "eos_token }}{% endfor %}"
)
"""Turns start with an added token that is not special; replies have an empty span for reasoning."""


class Model(TokenizerMixin):
    """A tokenizer of bytes with special and other added tokens."""

    def __init__(
        self, template: str | None = CHAT, normalizer: Any = None, added: tuple[str, ...] = ADDED
    ) -> None:
        inner = Tokenizer(
            models.BPE(
                vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
                merges=[],
            )
        )
        inner.pre_tokenizer, inner.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        if normalizer is not None:
            inner.normalizer = normalizer
        inner.add_special_tokens(list(SPECIAL))
        inner.add_tokens([AddedToken(token, normalized=normalizer is not None) for token in added])
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<|end|>", unk_token="<unk>"
        )
        self.tokenizer.chat_template = template
        self.eos_ids = frozenset({self.id("<|end|>")})

    def id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def text(self, ids: list[int]) -> str:
        return str(
            self.tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def controls(self, ids: list[int]) -> list[str]:
        return [self.text([i]) for i in ids if i in self.control_tokens.values()]
