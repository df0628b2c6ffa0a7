"""What every data part returns, and the checks they share. All of it runs before a model is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn

from rlmods.config.overrides import nearest
from rlmods.types import Prompt, UserError


@dataclass(frozen=True)
class Splits:
    """A data set, ready to use."""

    train: Sequence[Prompt]
    """Never empty."""
    val: Sequence[Prompt]
    """Held out. Empty only where the user asked for none."""


def checked(train: Sequence[Prompt], val: Sequence[Prompt], source: str) -> Splits:
    """The splits, once it is sure that there is something to train on and that an id means one prompt.

    Raises: UserError for an empty train split and for an id that occurs twice."""
    if not train:
        raise UserError(f"{source}: no rows to train on")
    seen: set[str] = set()
    for prompt in (*train, *val):
        if prompt.id in seen:
            raise UserError(f'{source}: the id "{prompt.id}" occurs twice; type data.id=null to number the rows')
        seen.add(prompt.id)
    return Splits(train, val)


def extra(module: str, name: str, what: str | None = None) -> ModuleType:
    """An optional package, which `what` (null: the option `name`) needs. Raises: UserError naming the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        if e.name is not None and e.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UserError(f"{what or f'data={name}'} needs the package {module.split('.')[0]}; type pip install 'rlmods[{name}]'") from e


def count(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raises: UserError unless the field is a whole number of at least `least`, and of at most `most` where that is given."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"data.{name}={value}: must be a whole number {bounds}")


def fraction(name: str, value: float) -> None:
    """Raises: UserError unless the field lies between 0 and 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"data.{name}={value}: must lie between 0 and 1")


def column(row: Mapping[str, Any], name: str, where: str, field: str, *, optional: bool = False) -> Any:
    """A row's value in the column that `data.<field>` names. Raises: UserError that lists the columns and suggests one."""
    if name in row:
        return row[name]
    near = get_close_matches(name, row, 1, 0.5) or [c for c in row if name in c or c in name]
    hint = f"data.{field}={near[0] if near else 'COLUMN'}" + (f" (or data.{field}=null if there is none)" if optional else "")
    raise UserError(f'{where}: no column "{name}"; columns: {", ".join(row)}; type {hint}')


def text(value: Any, where: str, name: str) -> str:
    """Raises: UserError unless the value is a text with something in it."""
    if not isinstance(value, str):
        raise UserError(f'{where}: column "{name}" must hold text, found {kind(value)}')
    if not value.strip():
        raise UserError(f'{where}: column "{name}" is empty')
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise UserError(f'{where}: column "{name}" holds half a surrogate pair, which no tokenizer reads')
    return value


def messages(turns: Sequence[Any], where: str, name: str) -> list[dict[str, str]]:
    """A column's chat turns. Raises: UserError unless each has a role and something to say."""
    if not turns:
        raise UserError(f'{where}: column "{name}" is empty')
    for turn in turns:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise UserError(f'{where}: column "{name}" must list messages such as {{"role": "user", "content": "..."}}')
        text(turn["content"], where, name)
    return [dict(turn) for turn in turns]


def kind(value: Any) -> str:
    """A JSON value's type, in words."""
    names = {type(None): "null", bool: "true/false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def render(template: str, values: Mapping[str, Any], field: str) -> str:
    """`template` with `{name}` filled in. Raises: UserError for an unknown name and for stray braces."""
    try:
        return template.format_map(values)
    except KeyError as e:
        raise UserError(f"data.{field}: no {{{e.args[0]}}} to fill in; there are: {', '.join(values)}") from e
    except (ValueError, IndexError, AttributeError, TypeError) as e:
        raise UserError(f"data.{field}={template!r}: {e}; write a literal brace twice, as in \\boxed{{{{}}}}") from e


def ask(content: str, chat: bool, system: str | None = None) -> dict[str, Any]:
    """The fields of a Prompt that ask `content`: a user message where `chat`, else plain text."""
    if not chat:
        if system is not None:
            raise UserError("data.system is a chat message, and this data is plain text; type data.chat=true")
        return {"text": content}
    turns = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": [*turns, {"role": "user", "content": content}]}


def refuse(name: str, value: Any, choices: Sequence[Any]) -> NoReturn:
    """Raises: UserError for a field outside its choices, naming the nearest."""
    raise UserError(f"data.{name}={value}: {nearest(str(value), choices)}")
