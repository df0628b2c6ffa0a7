"""Return type of the data parts and their shared checks, all of which run before a model is
loaded."""

import importlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter
from types import ModuleType
from typing import Any

from rlmods.data.file_rows import FileRows, repeated_id
from rlmods.errors import UserError
from rlmods.types import ROLES, Prompt, describe_unknown_role


@dataclass(frozen=True)
class Splits:
    """Train and validation prompts of a data set."""

    train: Sequence[Prompt]
    """Never empty."""
    val: Sequence[Prompt]
    """Held out; empty only with num_val=0."""
    weights: Mapping[str, float] | None = None
    """Weight of each source (`Prompt.source`) in the stream of train prompts. None: every prompt
    once in each pass."""
    ptx: Sequence[Prompt] = ()
    """Rows of the supervised loss beside the RL loss (`algo.ptx_coefficient`)."""
    ptx_weights: Mapping[str, float] | None = None
    """Weight of each source in the stream of `ptx`, as `weights`."""


def checked_splits(train: Sequence[Prompt], val: Sequence[Prompt], source: str) -> Splits:
    """Return the splits after checking that there are train prompts and that ids are unique.

    Raises: UserError for an empty train split and for an id that occurs twice."""
    if not train:
        raise UserError(f"{source}: no rows to train on")
    if isinstance(train, FileRows):
        train.check_ids(val, source)
        return Splits(train, val)
    seen: set[str] = set()
    for prompt in (*train, *val):
        if prompt.id in seen:
            raise UserError(repeated_id(prompt, source))
        seen.add(prompt.id)
    return Splits(train, val)


def warn_of_shared_prompts(val: Sequence[Prompt], train: Sequence[Prompt]) -> None:
    """Warn of held-out prompts that are also trained on, with the same answer or, without one, the
    same other columns. Data that is read from files row by row is not compared."""
    if isinstance(train, FileRows):
        return
    trained = set(map(_identity, train))
    num_shared = sum(_identity(prompt) in trained for prompt in val)
    if num_shared:
        warnings.warn(
            f"data: {num_shared} of {len(val)} held-out prompts are also trained on", stacklevel=2
        )


def _identity(prompt: Prompt) -> tuple[str, ...]:
    told = prompt.meta if prompt.answer is None else prompt.answer
    return str(prompt.text), str(prompt.messages), str(told)


def import_extra(module: str, extra: str, needed_by: str | None = None) -> ModuleType:
    """Import an optional package, needed by `needed_by` (default: data=`extra`). Raises: UserError
    naming the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package = module.split(".")[0]
        if e.name is not None and e.name.split(".")[0] != package:
            raise
        raise UserError(
            f"{needed_by or f'data={extra}'} needs the package {package}; type pip install "
            f"'rlmods[{extra.replace('_', '-')}]'"
        ) from e


def get_column(
    row: Mapping[str, Any], name: str, location: str, field: str, *, optional: bool = False
) -> Any:
    """Return a row's value in the column that `data.<field>` names. Raises: UserError that lists
    the columns and suggests one."""
    if name in row:
        return row[name]
    similar = get_close_matches(name, row, 1, 0.7) or [c for c in row if name in c or c in name]
    hint = f"data.{field}={similar[0] if similar else 'COLUMN'}" + (
        f" (or data.{field}=null if there is none)" if optional else ""
    )
    raise UserError(f'{location}: no column "{name}"; columns: {", ".join(row)}; type {hint}')


def check_list(
    value: object,
    location: str,
    column: str,
    like: Sequence[Any] | None = None,
    like_column: str = "",
) -> Sequence[Any]:
    """Return the value. Raises: UserError unless it is a list, as long as `like`, the value of
    `like_column`."""
    if not isinstance(value, list):
        raise UserError(f'{location}: column "{column}" must hold a list, found {type_name(value)}')
    if like is not None and len(value) != len(like):
        raise UserError(
            f'{location}: column "{column}" has {len(value)} entries, and column '
            f'"{like_column}" has {len(like)}'
        )
    return value


def check_number(value: object, location: str, column: str) -> float:
    """Return the value. Raises: UserError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(
            f'{location}: column "{column}" must hold numbers, found {type_name(value)}'
        )
    if not math.isfinite(value):
        raise UserError(f'{location}: column "{column}" must hold finite numbers, found {value}')
    return value


def check_text(value: object, location: str, column: str) -> str:
    """Return the value. Raises: UserError unless it is a string with more than white space."""
    if not isinstance(value, str):
        raise UserError(f'{location}: column "{column}" must hold text, found {type_name(value)}')
    if not value.strip():
        raise UserError(f'{location}: column "{column}" is empty')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f'{location}: column "{column}" holds half a surrogate pair, which no tokenizer reads'
        ) from error
    return value


def check_messages(turns: Sequence[Any], location: str, column: str) -> list[dict[str, str]]:
    """Return a column's chat messages. Raises: UserError unless each has one of `ROLES` and content
    that is not empty."""
    if not turns:
        raise UserError(f'{location}: column "{column}" is empty')
    for turn in turns:
        texts = list(map(turn.get, ("role", "content"))) if isinstance(turn, dict) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise UserError(
                f'{location}: column "{column}" must list messages such as {{"role": "user", '
                f'"content": "..."}}'
            )
        # chat templates put roles into control tokens, such as <|ROLE|>
        if turn["role"] not in ROLES:
            raise UserError(f'{location}: column "{column}": {describe_unknown_role(turn["role"])}')
        check_text(turn["content"], location, column)
    return [dict(turn) for turn in turns]


def type_name(value: object) -> str:
    """Return the type of a JSON value in words."""
    names = {
        type(None): "null",
        bool: "true/false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)


def render(template: str, values: Mapping[str, Any], field: str) -> str:
    """Fill in the `{name}` placeholders of a template, which have no other parts.

    Raises: UserError for an unknown name, a format such as `{name:>9}` or `{name!r}`, and stray
    braces."""
    hint = "write a literal brace twice, as in \\boxed{{}}"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as e:
        raise UserError(f"data.{field}={template!r}: {e}; {hint}") from e
    for _, name, spec, conversion in parts:
        if name == "" or spec or conversion:
            raise UserError(
                f"data.{field}={template!r}: a placeholder is the name of a column only, as "
                f"{{prompt}}; {hint}"
            )
        if name is not None and name not in values:
            raise UserError(
                f"data.{field}: no {{{name}}} to fill in; there are: {', '.join(values)}"
            )
    return "".join(
        literal if name is None else f"{literal}{values[name]}" for literal, name, *_ in parts
    )


def prompt_fields(content: str, chat: bool, system: str | None = None) -> dict[str, Any]:
    """Return the fields of a Prompt that hold `content`: `messages` with a user message if `chat`,
    else plain `text`."""
    if not chat:
        if system is not None:
            raise UserError(
                "data.system is a chat message, and this data is plain text; type data.chat=true"
            )
        return {"text": content}
    turns = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*turns, {"role": "user", "content": content}]}
