"""Settings of other libraries, with what to type here: for hints, and for docs/equivalents.md."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

from rlmods.errors import UserError

FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Equivalent:
    """One row of the table."""

    library: str
    setting: str
    value: str
    """Value in the other library."""
    overrides: str
    """What to type, `{}` for the value; "" if there is no equivalent."""

    @property
    def example(self) -> str:
        """What to type for `value`."""
        return self.overrides.replace("{}", self.value)


@cache
def table() -> tuple[Equivalent, ...]:
    """Return all rows."""
    rows = []
    for library, settings in yaml.safe_load(FILE.read_text()).items():
        for name, overrides in settings.items():
            setting, _, value = name.partition("=")
            rows.append(Equivalent(library, setting, value, overrides))
    return tuple(rows)


def advice(setting: str, value: str) -> str | None:
    """Return what to type here for a setting of another library, None if it is not in the table."""
    names = [row.setting for row in table()]
    similar = get_close_matches(setting, names, 1, 0.9) if "." not in setting else []
    rows = [row for row in table() if row.setting in (similar or [setting])]
    if not rows and setting.startswith("actor_rollout_ref."):
        return "docs/equivalents.md lists the settings of verl that have an equivalent"
    equal = [row for row in rows if _is_same(row.value, value)]
    general = [row for row in rows if value and "{}" in row.overrides]
    only = rows[0] if len(rows) == 1 else None
    if (
        only is not None
        and only.overrides
        and not equal
        and {only.value, value.lower()} == {"true", "false"}
    ):
        return f"{only.setting}={only.value} is {only.overrides} here: leave out {setting}={value}"
    for row in (*equal, *general, *([only] if only else [])):
        if not row.overrides:
            return f"{row.library}'s setting has no equivalent here: leave it out"
        return f"type {replace(row, value=value or row.value).example}"
    choices = [f"{row.overrides or 'nothing'} for {row.setting}={row.value}" for row in rows]
    return f"type {', '.join(choices)}" if rows else None


def _is_same(first: str, second: str) -> bool:
    """Return whether two values are equal as numbers, or as texts in any case."""
    try:
        return float(first) == float(second)
    except ValueError:
        return first.lower() == second.lower()


def reject_flags(arguments: Sequence[str], known: Collection[str]) -> None:
    """Raise UserError for a setting that is typed as a flag, `--num_generations 8`.

    Args:
        known: flags of the command itself.
    """
    for position, word in enumerate(arguments):
        flag, _, value = word.partition("=")
        if not flag.startswith("--") or flag in known:
            continue
        following = arguments[position + 1 : position + 2]
        is_value = following and "=" not in following[0] and not following[0].startswith("--")
        if not value and is_value:
            value = following[0]
        name = flag[2:].replace("-", "_")
        hint = advice(name, value) or f"type {name}={value or 'VALUE'}"
        raise UserError(f"{flag}: settings are typed without dashes, as NAME=VALUE; {hint}")
