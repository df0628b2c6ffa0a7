"""Conversion between text and token ids, shared by policies and scalar models.

Text never becomes a control token: contents of messages, plain prompts and responses that spell
one, such as `<|im_end|>`, are encoded as the characters they consist of. Only chat templates and
tokenizers write control tokens (`control_tokens`)."""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlmods.errors import UserError, counted
from rlmods.policy.chat_template import control_tokens, end_of_turn, probe, render
from rlmods.types import ROLES, Prompt, describe_unknown_role

REMOVED = "[removed]"
"""Replacement for untrusted text that still encodes to added tokens after it is cut."""


VERBATIM = frozenset({"ByteLevel", "Split", "Digits"})
"""Pre-tokenizers that only divide a text."""
EXPANSION = {"": 1, "NFC": 3}
"""Largest number of bytes that a normalizer makes of a byte (Unicode Standard Annex 15)."""


class TokenizerMixin:
    """Text methods of a model with a tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]
    """Every id that ends a response."""
    control_tokens_in_data: bool = False
    """Responses of the data and assistant messages may spell control tokens, such as those around
    tool calls."""

    @property
    def eos_id(self) -> int:
        """The end-of-text id appended to responses that are given as text, for supervised training
        or scoring."""
        eos = self.tokenizer.eos_token_id
        return min(self.eos_ids) if eos is None else int(eos)

    @cached_property
    def turn_end_id(self) -> int:
        """The id appended to replies to chat messages: that of the chat template (`end_of_turn`),
        or else `eos_id`."""
        end = end_of_turn(self.tokenizer)
        return self.eos_id if end is None else end

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return min(self.eos_ids) if pad is None else int(pad)

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Ids of the control tokens by their text (`control_tokens`)."""
        return control_tokens(self.tokenizer)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self.control_tokens.values())

    def encode(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return the token ids of a prompt. Chat messages use the model's own template; a
        beginning-of-text token is added at most once. `tools`: JSON schemas of tools, for the
        template.

        An end-of-text token that the tokenizer appends to plain text is left out, because the
        response continues the prompt.

        Raises:
            UserError: chat messages for a tokenizer without a chat template, an unknown role, text
            that the tokenizer's normalizer turns into a control token, a chat template that fails.
        """
        if prompt.messages is None:
            first, *rest = self._without_control_tokens(prompt.text or "")
            return [*self._without_appended_eos(first), *self._without_control_ids(rest)]
        name = f"prompt {prompt.id}"
        if self.tokenizer.chat_template is None:
            raise UserError(
                f"{name}: chat messages, but this model has no chat template; type "
                "data.chat=false if the data has plain text, or choose another policy="
            )
        for message in prompt.messages:
            if message["role"] not in ROLES:
                raise UserError(f"{name}: {describe_unknown_role(message['role'])}")
        messages = [dict(message) for message in prompt.messages]
        checked = [message for message in messages if not self._is_trusted(message)]
        parts = chain.from_iterable(map(self._without_control_tokens, texts_of(checked)))
        if not self._control_ids.isdisjoint(self.ids_of_parts(parts)):
            raise UserError(
                f"{name}: the tokenizer makes a control token of text that spells none: leave the "
                "row out"
            )
        [mark] = self.unused_characters(texts_of(messages), 1)
        cut = [m if self._is_trusted(m) else self.cut_control_tokens(m, mark) for m in messages]
        return self.ids_of_parts(render(self.tokenizer, cut, name, tools=tools).split(mark))

    def _is_trusted(self, message: Mapping[str, Any]) -> bool:
        """Return True for a message of the data that may spell control tokens."""
        return self.control_tokens_in_data and message["role"] == "assistant"

    def cut_control_tokens(self, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
        """Return a chat message with a `mark` within each control token that its texts spell, so
        that they are encoded without one."""
        return dict(_map_texts(message, lambda text: mark.join(self._without_control_tokens(text))))

    def ids_of_parts(self, parts: Iterable[str]) -> list[int]:
        """Return the token ids of parts of a text. A token does not extend over two of them."""
        return [i for part in parts for i in self._ids(part)]

    @staticmethod
    def unused_characters(texts: Iterable[str], count: int) -> list[str]:
        """Return private-use characters that are in none of the texts."""
        used = set().union(*texts)
        private = map(chr, range(0xE000, 0xF8FF))
        return list(islice((x for x in private if x not in used), count))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _without_control_tokens(self, text: str) -> list[str]:
        """Cut text within each control token that it spells, so that the parts are encoded without
        one."""
        return _cut_within(text, self.control_tokens)

    @cached_property
    def _added_tokens(self) -> dict[str, int]:
        """Ids of the special and all other added tokens of more than one character by their text,
        such as `<tool_call>`."""
        return {
            token.content: int(i)
            for i, token in self.tokenizer.added_tokens_decoder.items()
            if len(token.content) > 1
        }

    def without_added_tokens(self, text: str) -> list[str]:
        """Cut untrusted text, such as the result of a tool, into parts that are encoded without
        special and other added tokens. Text that the tokenizer's normalizer turns into one is
        replaced by `REMOVED`."""
        parts = _cut_within(text, self._added_tokens)
        added = set(self._added_tokens.values()) - {self.tokenizer.unk_token_id}
        return parts if all(added.isdisjoint(self._ids(part)) for part in parts) else [REMOVED]

    def _without_control_ids(self, parts: Iterable[str]) -> list[int]:
        """Return the token ids of parts of a text. Control tokens that the tokenizer makes of other
        text (its normalizer does) are left out."""
        return [i for i in self.ids_of_parts(parts) if i not in self._control_ids]

    def token_bound(self, prompt: Prompt) -> int | None:
        """Return a bound on the number of tokens of a prompt, without encoding it: a token covers
        at least one byte of the text. None: this tokenizer or chat template has no such bound."""
        if prompt.messages is None:
            bound = self.text_bound(prompt.text or "")
            return None if bound is None else bound + self.tokenizer.num_special_tokens_to_add()
        if any(message.keys() != {"role", "content"} for message in prompt.messages):
            return None
        roles = tuple(message["role"] for message in prompt.messages)
        if roles not in self._frames:
            self._frames[roles] = self._measured_frame(roles)
        bound = self._frames[roles]
        for message in prompt.messages:
            of_content = self.text_bound(message["content"])
            if bound is None or of_content is None:
                return None
            bound += of_content
        return bound

    def text_bound(self, text: str) -> int | None:
        """Return a bound on the number of tokens of a text, without special tokens."""
        most = self._tokens_per_byte
        if most is None:
            return None
        # only other text than ASCII has more bytes when it is normalised
        return len(text) if text.isascii() else most * len(text.encode(errors="surrogatepass"))

    @cached_property
    def _tokens_per_byte(self) -> int | None:
        """Largest number of tokens of a byte. None: the tokenizer may insert characters."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        splits = _component(backend.pre_tokenizer)
        if not splits.keys() <= VERBATIM or splits.get("ByteLevel", {}).get("add_prefix_space"):
            return None
        return EXPANSION.get("".join(_component(backend.normalizer)))

    @cached_property
    def _frames(self) -> dict[tuple[str, ...], int | None]:
        """Results of `_measured_frame`."""
        return {}

    def _measured_frame(self, roles: tuple[str, ...]) -> int | None:
        """Return the number of bytes that the chat template writes around messages of these roles.
        None: it refuses them, or does not write their contents as they are."""
        contents = []
        messages = []
        for i, role in enumerate(roles):
            contents.append(f'"{i}"\n<é&>')
            messages.append({"role": role, "content": contents[i]})
        text = probe(self.tokenizer, messages)
        if any(text.count(content) != 1 for content in contents):
            return None
        return len(text.encode()) - sum(len(content.encode()) for content in contents)

    def _without_appended_eos(self, text: str) -> list[int]:
        ids = list(self.tokenizer(text)["input_ids"])
        if ids and ids[-1] in self.eos_ids:
            plain = self._ids(text)
            while ids and ids[-1] in self.eos_ids and (not plain or ids[-len(plain) :] != plain):
                ids.pop()
        return ids

    def encode_response(
        self, text: str, prompt: Prompt | None = None, *, finished: bool = True
    ) -> list[int]:
        """Return the token ids of a response. A `finished` one ends with the end-of-text token, or
        after chat messages with the token that ends a turn."""
        ids = self._ids(text)
        if not self._control_ids.isdisjoint(ids) and not self.control_tokens_in_data:
            ids = self._without_control_ids(self._without_control_tokens(text))
        end = self.eos_id if prompt is None or prompt.messages is None else self.turn_end_id
        return [*ids, end] if finished else ids

    def warn_of_control_tokens(self, texts: Iterable[str], prompts: Iterable[Prompt] = ()) -> None:
        """Warn if responses of the data or assistant messages spell control tokens, which are
        encoded as the characters they consist of, or plain prompts, as a chat that is rendered
        already does."""
        if not self.control_tokens:
            return
        pattern = _pattern_of(self.control_tokens)
        plain = [prompt for prompt in prompts if prompt.messages is None]
        spelled = [prompt for prompt in plain if pattern.search(prompt.text or "")]
        if spelled:
            warnings.warn(
                f"control tokens of this model in {counted(len(spelled), 'prompt')}, e.g. "
                f"{spelled[0].name}, which are encoded as ordinary text; "
                "for a chat, type data.prompt=COLUMN with a list of messages, or data.chat=true",
                stacklevel=2,
            )
        if self.control_tokens_in_data:
            return
        found = [match[0] for match in map(pattern.search, texts) if match is not None]
        if found:
            warnings.warn(
                f"{len(found)} responses or assistant messages of the data spell control "
                f"tokens of this model, e.g. {found[0]}, which are encoded as ordinary text; if "
                "you trust the data, type policy.control_tokens_in_data=true",
                stacklevel=2,
            )

    def warn_of_unknown_characters(
        self, texts: Iterable[str], prompts: Iterable[Prompt] = ()
    ) -> None:
        """Warn if responses of the data or prompts have characters that the tokenizer reads as
        others, for which its vocabulary is too small."""
        characters = set().union(*texts)
        for prompt in prompts:
            characters.update(*texts_of(prompt.messages or prompt.text or ""))
        unknown = []
        for character in sorted(characters):
            read_as = self.decode(self._ids(character), skip_special_tokens=False)
            if read_as.strip() != character.strip():
                unknown.append(f"{character!r} as {read_as!r}")
        if unknown:
            warnings.warn(
                f"the tokenizer of this model reads {len(unknown)} characters of the data as "
                f"others, such as {', '.join(unknown[:3])}; for a model that reads all, type "
                "policy=hf policy.name=MODEL",
                stacklevel=2,
            )

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a response, without special tokens, or with those around calls of
        tools, for example."""
        return str(
            self.tokenizer.decode(
                list(tokens),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )


def _component(component: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of the parts of a normalizer or pre-tokenizer by type; None has none."""
    if component is None:
        return {}
    settings = json.loads(component.__getstate__())
    parts = settings.get("pretokenizers") or settings.get("normalizers") or [settings]
    return {part["type"]: part for part in parts}


def _pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches each of the texts, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


def _cut_within(text: str, tokens: Mapping[str, int]) -> list[str]:
    """Cut a text after the first character of each of the tokens that it spells."""
    if not tokens:
        return [text]
    pattern = _pattern_of(tokens)
    parts = []
    start = 0
    while match := pattern.search(text, start):
        end = match.start() + 1
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def texts_of(value: object) -> Iterator[str]:
    """Yield the texts of nested lists and dicts, with the keys of the dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from texts_of(item)
    elif isinstance(value, Iterable):
        for item in value:
            yield from texts_of(item)


def _map_texts(value: Any, function: Callable[[str], str]) -> Any:
    """Apply a function to the texts of nested lists and dicts."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {function(key): _map_texts(item, function) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_map_texts(item, function) for item in value]
    return value
