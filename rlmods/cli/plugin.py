"""`python -m rlmods.plugin new GROUP NAME [FOLDER]` writes a plugin to start from: a class, its option, and a test that passes.

GROUP is one of advantage, ratio, reward, sampling. FOLDER is where plugins live: $RLMODS_PLUGINS, else `plugins/` beside the package. The
option then exists: `python train.py GROUP=NAME`. `python -m rlmods.plugin list` shows the plugins that are found, and where.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import yaml

from rlmods.cli import templates
from rlmods.cli.command import command
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.config.overrides import nearest
from rlmods.types import UserError

TEMPLATES = Path(str(templates.__file__)).parent
GROUPS = sorted(path.stem for path in TEMPLATES.glob("[a-z]*.py") if not path.stem.startswith("test_"))


def new(group: str, name: str, folder: Path) -> dict[str, Any]:
    """Write `folder/name/`: `name.py`, `group/name.yaml` and `test_name.py`.

    Raises:
        UserError: there is no template for the group, the name is no module's or is taken.
    """
    if group not in GROUPS:
        raise UserError(f"there is no template for {group}: {nearest(group, GROUPS)}")
    if not name.isidentifier() or iskeyword(name) or name != name.lower() or not name.strip("_"):
        raise UserError(f"{name}: a plugin is a module, use lower case letters, digits and _, as in {_suggested(name)}")
    others = [source for source in plugins.sources() if f"{group}={name}" in source.overrides]
    if others or (CONF / group / f"{name}.yaml").exists():
        raise UserError(f"{group}={name} exists already: choose another name")
    place = folder / name
    if place.exists():
        raise UserError(f"{place} exists already: choose another name or remove it")
    plugins.check_name(place)
    kind = "".join(part.capitalize() for part in name.split("_") if part)
    part = import_module(f"rlmods.cli.templates.{group}").Name
    if any(hasattr(import_module(f"rlmods.cli.templates.{module}"), kind) for module in (group, f"test_{group}")):
        raise UserError(f"{name}: a class {kind} is imported there, choose another name")
    settings = {"_target_": f"{name}.{kind}"} | {field.name: field.default for field in fields(part)}
    files = {
        f"{name}.py": _renamed((TEMPLATES / f"{group}.py").read_text(), name, kind),
        f"test_{name}.py": _renamed((TEMPLATES / f"test_{group}.py").read_text(), name, kind),
        f"{group}/{name}.yaml": f"# {inspect.getdoc(part)}".splitlines()[0] + "\n" + yaml.safe_dump(settings, sort_keys=False),
    }
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return {"wrote": [str(place / path) for path in files], "try": [f"python -m pytest {place}", f"python train.py {group}={name}"]}


def found() -> dict[str, Any]:
    """The plugins there are, by name: where they come from and which options they bring."""
    return {source.name: {"folder": str(source.options), "options": source.overrides} for source in plugins.sources()}


def main(arguments: Sequence[str]) -> None:
    command(arguments, __doc__, lambda: _action(arguments), indent=2)


def _action(arguments: Sequence[str]) -> dict[str, Any]:
    match list(arguments):
        case ["new", group, name, *rest] if len(rest) < 2:
            return new(group, name, Path(rest[0] if rest else os.environ.get("RLMODS_PLUGINS", plugins.FOLDER)).expanduser())
        case ["list"]:
            return found()
    raise UserError("type: python -m rlmods.plugin new GROUP NAME, or python -m rlmods.plugin list")


def _renamed(text: str, name: str, kind: str) -> str:
    text = re.sub(r"\bName\b", kind, text)
    return re.sub(r"(?<=from )rlmods\.templates\.\w+|(?<=plugins/)name\b|(?<==)name\b", name, text)


def _suggested(name: str) -> str:
    return re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).lstrip("_0123456789").rstrip("_").lower() or "my_part"


if __name__ == "__main__":
    main(sys.argv[1:])
