"""Conversion between text and token ids, shared by policies and scalar models.

Text never becomes a control token: contents of messages, plain prompts and responses that spell
one, such as `<|im_end|>`, are encoded as the characters they consist of. Only chat templates and
tokenizers write control tokens (`control_tokens`)."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from rlmods.errors import UserError
from rlmods.types import ROLES, Prompt, describe_unknown_role

CONTENT = "content of the reply"
"""Content of the message by which the token after it is found."""
REMOVED = "[removed]"
"""Replacement of a text of strangers of which the tokenizer makes special tokens, however it is
cut."""
TEMPLATE_KWARGS = "chat_template_kwargs"
"""Entry of the tokenizer's configuration with the variables of its chat template."""


class TokenizerMixin:
    """Text methods of a model with a tokenizer."""

    tokenizer: Any
    eos_ids: frozenset[int]
    """Every id that ends a response."""
    control_tokens_in_data: bool = False
    """Whether responses of the data and assistant messages may spell control tokens, such as those
    of tool calls."""

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
            UserError: chat messages for a tokenizer without a chat template, a role that is not one
            of `ROLES`, text of which the
                tokenizer's normalizer makes a control token, a chat template that fails.
        """
        if prompt.messages is None:
            text = prompt.text or ""
            if not self._spells_control_token(text):
                return self._without_appended_eos(text)
            first, *rest = self._without_control_tokens(text)
            return [*self._without_appended_eos(first), *self._ids_of_parts(rest)]
        if self.tokenizer.chat_template is None:
            hint = "type data.chat=false if the data has plain text, or choose another policy="
            raise UserError(
                f"prompt {prompt.id}: chat messages, but this model has no chat template; {hint}"
            )
        if unknown := [
            message["role"] for message in prompt.messages if message["role"] not in ROLES
        ]:
            raise UserError(f"prompt {prompt.id}: {describe_unknown_role(unknown[0])}")
        messages: Any = [dict(message) for message in prompt.messages]
        checked = [
            message
            for message in messages
            if not (self.control_tokens_in_data and message["role"] == "assistant")
        ]
        if not any(self._spells_control_token(text) for text in texts_of(checked)):
            return self._ids(render(self.tokenizer, messages, f"prompt {prompt.id}", tools=tools))
        [mark] = self.unused_characters(texts_of(messages), 1)
        if any(
            self._spells_control_token(part)
            for text in texts_of(checked)
            for part in self._without_control_tokens(text)
        ):
            raise UserError(
                f"prompt {prompt.id}: the tokenizer makes a control token of text that spells "
                "none: leave the row out"
            )
        cut = [self.cut_control_tokens(m, mark) if m in checked else m for m in messages]
        return self.ids_of_rendered(
            render(self.tokenizer, cut, f"prompt {prompt.id}", tools=tools), mark
        )

    def cut_control_tokens(self, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
        """Return a chat message with a `mark` within each control token that its texts spell, so
        that they are encoded without one."""
        return dict(_map_texts(message, lambda text: mark.join(self._without_control_tokens(text))))

    def ids_of_rendered(self, text: str, mark: str) -> list[int]:
        """Return the token ids of a rendered text. A token does not extend over a `mark`, which is
        left out."""
        return [i for part in text.split(mark) for i in self._ids(part)]

    @staticmethod
    def unused_characters(texts: Iterable[str], count: int) -> list[str]:
        """Return private-use characters that are in none of the texts."""
        used = set().union(*texts)
        return list(
            islice((chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in used), count)
        )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _spells_control_token(self, text: str) -> bool:
        return not self._control_ids.isdisjoint(self._ids(text))

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
        """Cut a text of strangers, such as the result of a tool, into parts that are encoded
        without special and other added tokens. A text of which the tokenizer's normalizer makes one
        is replaced by `REMOVED`."""
        parts = _cut_within(text, self._added_tokens)
        added = set(self._added_tokens.values()) - {self.tokenizer.unk_token_id}
        return parts if all(added.isdisjoint(self._ids(part)) for part in parts) else [REMOVED]

    def ids_without_added_tokens(self, text: str) -> list[int]:
        """Return the token ids of a text of strangers (`without_added_tokens`)."""
        return [i for part in self.without_added_tokens(text) for i in self._ids(part)]

    def _ids_of_parts(self, parts: Iterable[str]) -> list[int]:
        """Return the token ids of parts of a text. Control tokens that the tokenizer makes of other
        text (its normalizer does) are left out."""
        return [i for part in parts for i in self._ids(part) if i not in self._control_ids]

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
            ids = self._ids_of_parts(self._without_control_tokens(text))
        end = self.eos_id if prompt is None or prompt.messages is None else self.turn_end_id
        return [*ids, end] if finished else ids

    def warn_of_control_tokens(self, texts: Iterable[str], prompts: Iterable[Prompt] = ()) -> None:
        """Warn if responses of the data or assistant messages spell control tokens, which are
        encoded as the characters they consist of, or plain prompts, as a chat that is rendered
        already does."""
        if not self.control_tokens:
            return
        tokens = re.compile(
            "|".join(map(re.escape, sorted(self.control_tokens, key=len, reverse=True)))
        )
        plain = [
            prompt
            for prompt in prompts
            if prompt.messages is None and tokens.search(prompt.text or "")
        ]
        if plain:
            warnings.warn(
                f"{len(plain)} prompts spell control tokens of this model, e.g. "
                f"{plain[0].name}, which are encoded as ordinary text; "
                "for a chat, type data.messages=COLUMN or data.chat=true",
                stacklevel=2,
            )
        if not self.control_tokens_in_data and (
            spelled := [found[0] for text in texts if (found := tokens.findall(text))]
        ):
            advice = "if you trust the data, type policy.control_tokens_in_data=true"
            warnings.warn(
                f"{len(spelled)} responses or assistant messages of the data spell control "
                f"tokens of this model, e.g. {spelled[0]}, "
                f"which are encoded as ordinary text; {advice}",
                stacklevel=2,
            )

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a response, without special tokens."""
        return str(
            self.tokenizer.decode(
                list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def decode_raw(self, tokens: Sequence[int]) -> str:
        """Return the text of a response with its special tokens, such as those around calls of
        tools."""
        return str(
            self.tokenizer.decode(
                list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )


def _cut_within(text: str, tokens: Mapping[str, int]) -> list[str]:
    """Cut a text after the first character of each of the tokens that it spells."""
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    cuts = [0]
    while tokens and (match := pattern.search(text, cuts[-1])):
        cuts.append(match.start() + 1)
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a response: those of the tokenizer, of the model's configurations,
    and of the chat template.

    Raises:
        UserError: there is none.
    """
    generation = getattr(model, "generation_config", None)
    sources = (
        tokenizer.eos_token_id,
        model.config.eos_token_id,
        getattr(generation, "eos_token_id", None),
        end_of_turn(tokenizer),
    )
    lists = [source if isinstance(source, (list, tuple)) else [source] for source in sources]
    ids = {int(i) for source in lists for i in source if i is not None}
    if not ids:
        raise UserError(
            "policy: the model has no end-of-text token, so responses would never end: set "
            "eos_token in its tokenizer"
        )
    return frozenset(ids)


def control_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of the control tokens by their text: the special tokens, and other added
    tokens that the chat template writes around messages (Gemma: `<start_of_turn>`), or that stand
    in brackets in its own text, for example around the results of tools.

    All other added tokens are words of the model's own vocabulary, which a text may spell: those
    for spans within a message, such as `<think>` and `</think>` or `<tool_call>` and
    `</tool_call>`, also if the template writes them. So is the token for unknown characters."""
    rendered, written, tokens = (
        _rendered_turns(tokenizer),
        _literal_text(tokenizer),
        tokenizer.added_tokens_decoder,
    )
    texts = {token.content for token in tokens.values()}

    def is_span(text: str) -> bool:
        name = re.fullmatch(r"</?([\w-]+)>", text)
        return name is not None and {f"<{name[1]}>", f"</{name[1]}>"} <= texts

    def is_control(text: str) -> bool:
        in_template = (text in rendered and re.search(r"[^\w\s]", text)) or (
            text in written and re.fullmatch(r"<.+>|\[.+\]", text)
        )
        return bool(in_template) and not is_span(text)

    named = {
        i: token.content
        for i, token in tokens.items()
        if token.special or is_control(token.content)
    }
    return {
        text: int(i) for i, text in named.items() if len(text) > 1 and i != tokenizer.unk_token_id
    }


def _rendered_turns(tokenizer: Any) -> str:
    """Return a short chat as the template renders it, "" without a template."""
    if getattr(tokenizer, "chat_template", None) is None:
        return ""
    roles = ("system", "user", "assistant", "user")
    # not every template accepts a system message, or more than one turn
    for chosen in (roles, roles[1:], roles[1:2]):
        try:
            return render(
                tokenizer,
                [{"role": role, "content": CONTENT} for role in chosen],
                "probe",
                add_generation_prompt=False,
            )
        except UserError:
            continue
    return ""


def _literal_text(tokenizer: Any) -> str:
    """Return the literal text of the chat templates: what stands outside of their code, and the
    string literals in it."""
    from jinja2 import Environment, TemplateSyntaxError

    templates = getattr(tokenizer, "chat_template", None) or ""
    source = templates if isinstance(templates, str) else "\n".join(map(str, templates.values()))
    try:
        return "\n".join(
            text for _, kind, text in Environment().lex(source) if kind in ("data", "string")
        )
    except TemplateSyntaxError:
        return source


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    name: str,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the chat template's text of messages; `name` is what the error calls them. `tools`:
    JSON schemas that the template shows.

    Raises:
        UserError: the template fails, in whatever way: it comes with the model, and refuses some
        roles and orders of messages.
    """
    options = {"add_generation_prompt": add_generation_prompt, **template_kwargs(tokenizer)}
    if tools:
        options["tools"] = [dict(tool) for tool in tools]
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, **options
            )
        )
    except Exception as error:  # a template may raise any
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        roles = ", ".join(message["role"] for message in messages[:6])
        system = (
            "drop data.system, or "
            if any(message["role"] == "system" for message in messages)
            else ""
        )
        hint = (
            f"{system}leave out rows with roles that it refuses, or choose another model with "
            "policy=hf policy.name=..."
        )
        if type(error).__name__ == "SecurityError":
            hint = (
                "it reaches for what templates may not use, whatever the roles: choose another "
                "model with policy=hf policy.name=..."
            )
        raise UserError(
            f"{name}: the chat template of this model fails on the roles {roles} ({cause}): {hint}"
        ) from error


def takes_system(tokenizer: Any) -> bool:
    """Return whether the chat template writes system messages; some refuse them, or leave them
    out."""
    mark = "a system message"
    try:
        return mark in render(
            tokenizer,
            [{"role": "system", "content": mark}, {"role": "user", "content": "a question"}],
            "a prompt",
        )
    except UserError:
        return False


def texts_of(value: Any) -> Iterator[str]:
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
    return [_map_texts(item, function) for item in value] if isinstance(value, Iterable) else value


def end_of_turn(tokenizer: Any) -> int | None:
    """Return the token by which the chat template ends a reply, which may differ from `eos_token`
    (Gemma: `<end_of_turn>`): the special token after the content of an assistant message. None
    without a template, or if no special token follows."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None
    messages = [{"role": "user", "content": "request"}, {"role": "assistant", "content": CONTENT}]
    try:
        text = render(tokenizer, messages, "probe", add_generation_prompt=False)
    except UserError:  # the template accepts no reply
        return None
    _, content, rest = text.rpartition(CONTENT)
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if content else []
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return int(ids[0]) if ids and ids[0] in special else None


def template_kwargs(tokenizer: Any) -> dict[str, Any]:
    """Return the variables of the chat template. They are saved with the tokenizer, so that exports
    and reward models use the same."""
    return dict(tokenizer.init_kwargs.get(TEMPLATE_KWARGS) or {})


def set_template_kwargs(tokenizer: Any, values: Mapping[str, Any]) -> None:
    """Set variables of the chat template, beside those that the tokenizer was saved with.

    Raises:
        UserError: the template does not use a variable, or there is no template.
    """
    template = str(tokenizer.chat_template or "")
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters} - {
        "tools",
        "documents",
    }
    for name in values:
        if name in reserved or not re.search(rf"\b{re.escape(name)}\b", template):
            raise UserError(
                "policy.chat_template_kwargs: the chat template of this model does not use "
                f"{name}: drop it"
            )
    if values:
        tokenizer.init_kwargs[TEMPLATE_KWARGS] = {**template_kwargs(tokenizer), **values}
