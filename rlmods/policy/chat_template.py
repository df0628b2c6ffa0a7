"""Chat templates: the text that they render, their variables, and the tokens that they write."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlmods.errors import UserError

CONTENT = "content of the reply"
"""Content of the probe message that finds the token which ends an assistant turn."""
TEMPLATE_KWARGS = "chat_template_kwargs"
"""Entry of the tokenizer's configuration with the variables of its chat template."""


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return every id that ends a response, by the tokenizer, the model's configurations, and the
    chat template.

    Raises:
        UserError: there is none.
    """
    ids: set[Any] = set()
    for source in (tokenizer, model.config, getattr(model, "generation_config", None)):
        found = None if source is None else source.eos_token_id
        ids.update(found if isinstance(found, (list, tuple)) else [found])
    ids.add(end_of_turn(tokenizer))
    ids.discard(None)
    if not ids:
        raise UserError(
            "policy: the model has no end-of-text token, so responses would never end: set "
            "eos_token in its tokenizer"
        )
    return frozenset(map(int, ids))


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the ids of the control tokens by their text: the special tokens, and other added
    tokens that the chat template writes around messages (Gemma: `<start_of_turn>`), or that stand
    in brackets in its own text, for example around the results of tools.

    All other added tokens are words of the model's own vocabulary, which a text may spell: those
    for spans within a message, such as `<think>` and `</think>` or `<tool_call>` and
    `</tool_call>`, also if the template writes them. So is the token for unknown characters."""
    rendered = _rendered_turns(tokenizer)
    written = _literal_text(tokenizer)
    tokens = tokenizer.added_tokens_decoder
    texts = {token.content for token in tokens.values()}
    control = {}
    for i, token in tokens.items():
        text = token.content
        in_turns = text in rendered and re.search(r"[^\w\s]", text)
        in_brackets = text in written and re.fullmatch(r"<.+>|\[.+\]", text)
        is_control = token.special or ((in_turns or in_brackets) and not _is_span(text, texts))
        if is_control and len(text) > 1 and i != tokenizer.unk_token_id:
            control[text] = int(i)
    return control


def _is_span(text: str, texts: set[str]) -> bool:
    """Return True for an opening or closing mark, if both are among these texts."""
    name = re.fullmatch(r"</?([\w-]+)>", text)
    return name is not None and {f"<{name[1]}>", f"</{name[1]}>"} <= texts


def _rendered_turns(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a short chat as the template renders it, "" without a template."""
    roles = ("system", "user", "assistant", "user")
    # not every template accepts a system message, or more than one turn
    for chosen in (roles, roles[1:], roles[1:2]):
        chat = [{"role": role, "content": CONTENT} for role in chosen]
        text = probe(tokenizer, chat, add_generation_prompt=False)
        if text:
            return text
    return ""


def _literal_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the literal text of the chat templates: what stands outside of their code, and the
    string literals in it."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    source = templates if isinstance(templates, str) else "\n".join(map(str, templates.values()))
    try:
        tokens = list(Environment().lex(source))
    except TemplateSyntaxError:
        return source
    return "\n".join(text for _, kind, text in tokens if kind in ("data", "string"))


def render(
    tokenizer: PreTrainedTokenizerBase,
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
        chat = [dict(message) for message in messages]
        return str(tokenizer.apply_chat_template(chat, tokenize=False, **options))
    except Exception as error:  # a template may raise any
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        roles = [str(message["role"]) for message in messages]
        another = "choose another model with policy=hf policy.name=..."
        hint = f"leave out rows with roles that it refuses, or {another}"
        if isinstance(error, SecurityError):
            hint = f"it reaches for what templates may not use, whatever the roles: {another}"
        elif "system" in roles:
            hint = f"drop data.system, or {hint}"
        raise UserError(
            f"{name}: the chat template of this model fails on the roles {', '.join(roles[:6])} "
            f"({cause}): {hint}"
        ) from error


def probe(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
) -> str:
    """Return the chat template's text of messages, "" if it refuses them, or without a template."""
    if getattr(tokenizer, "chat_template", None) is None:
        return ""
    try:
        return render(tokenizer, messages, "probe", add_generation_prompt=add_generation_prompt)
    except UserError:
        return ""


def takes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if the chat template writes system messages; some refuse them, or leave them
    out."""
    mark = "a system message"
    chat = [{"role": "system", "content": mark}, {"role": "user", "content": "a question"}]
    return mark in probe(tokenizer, chat)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token by which the chat template ends a reply, which may differ from `eos_token`
    (Gemma: `<end_of_turn>`): the special token after the content of an assistant message. None
    without a template, if it accepts no reply, or if no special token follows."""
    messages = [{"role": "user", "content": "request"}, {"role": "assistant", "content": CONTENT}]
    text = probe(tokenizer, messages, add_generation_prompt=False)
    _, content, rest = text.rpartition(CONTENT)
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if content else []
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return int(ids[0]) if ids and ids[0] in special else None


def template_kwargs(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the variables of the chat template. They are saved with the tokenizer, so that exports
    and reward models use the same."""
    return dict(tokenizer.init_kwargs.get(TEMPLATE_KWARGS) or {})


def set_template_kwargs(tokenizer: PreTrainedTokenizerBase, values: Mapping[str, Any]) -> None:
    """Set variables of the chat template, beside those that the tokenizer was saved with.

    Raises:
        UserError: the template does not use a variable, or there is no template.
    """
    template = str(tokenizer.chat_template or "")
    parameters = inspect.signature(tokenizer.apply_chat_template).parameters
    reserved = parameters.keys() - {"tools", "documents"}
    for name in values:
        if name in reserved or not re.search(rf"\b{re.escape(name)}\b", template):
            raise UserError(
                "policy.chat_template_kwargs: the chat template of this model does not use "
                f"{name}: drop it"
            )
    if values:
        tokenizer.init_kwargs[TEMPLATE_KWARGS] = {**template_kwargs(tokenizer), **values}
