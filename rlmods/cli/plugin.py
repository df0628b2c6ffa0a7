"""Create or list plugins: `python -m rlmods.plugin new GROUP NAME [FOLDER]` and `python -m
rlmods.plugin list`.

`new` writes a template: a class, its option and a passing test. Then `python train.py GROUP=NAME`
works. GROUP is one of advantage, ratio, reward. FOLDER is the folder of plugins: by
default the first of $RLMODS_PLUGINS, else `plugins/` of the repository, or of the working directory
if the package is installed. `list` prints the folder and the options of every plugin."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import yaml

from rlmods.cli import templates
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.errors import UserError, one_line_errors, suggest
from rlmods.run.files import dumps

TEMPLATES = Path(str(templates.__file__)).parent
GROUPS = sorted(
    path.stem for path in TEMPLATES.glob("[a-z]*.py") if not path.stem.startswith("test_")
)


def new(group: str, name: str, folder: Path) -> dict[str, Any]:
    """Write `name.py`, `group/name.yaml` and `test_name.py` to `folder/name/` and return their
    paths and commands to try.

    Raises:
        UserError: there is no template for the group, or the name is not valid for a module or is
        in use.
    """
    if group not in GROUPS:
        raise UserError(f"there is no template for {group}: {suggest(group, GROUPS)}")
    if not name.isidentifier() or iskeyword(name) or name != name.lower() or not name.strip("_"):
        raise UserError(
            f"{name}: a plugin is a Python module, use lower case letters, digits and _, as "
            f"in {_suggest_name(name)}"
        )
    in_plugins = any(f"{group}={name}" in source.overrides for source in plugins.sources())
    if in_plugins or (CONF / group / f"{name}.yaml").exists():
        raise UserError(f"{group}={name} exists already: choose another name")
    plugin = folder / name
    if plugin.exists():
        raise UserError(f"{plugin} exists already: choose another name or remove it")
    plugins.check_name(plugin)
    class_name = "".join(word.capitalize() for word in name.split("_") if word)
    template = import_module(f"rlmods.cli.templates.{group}").Name
    settings = {"_target_": f"{name}.{class_name}"} | {
        field.name: field.default for field in fields(template)
    }
    code = (TEMPLATES / f"{group}.py").read_text()
    test = (TEMPLATES / f"test_{group}.py").read_text()
    comment = f"# {inspect.getdoc(template)}".splitlines()[0]
    files = {
        f"{name}.py": _fill_in(code, name, class_name),
        f"test_{name}.py": _fill_in(test, name, class_name),
        f"{group}/{name}.yaml": f"{comment}\n{yaml.safe_dump(settings, sort_keys=False)}",
    }
    for path, text in files.items():
        (plugin / path).parent.mkdir(parents=True, exist_ok=True)
        (plugin / path).write_text(text)
    in_repository = (CONF.parent / "train.py").is_file()
    commands = (
        (f"make test ARGS={plugin}", "python train.py")
        if in_repository
        else (f"python -m pytest {plugin}", "rlmods train")
    )
    return {
        "wrote": [str(plugin / path) for path in files],
        "try": [commands[0], f"{commands[1]} {group}={name}"],
    }


def list_plugins() -> dict[str, Any]:
    """Return folder and options of every plugin, by name."""
    return {
        source.name: {"folder": str(source.options), "options": source.overrides}
        for source in plugins.sources()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rlmods.plugin",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="new | list")
    actions.add_parser("list", help="print the folder and the options of every plugin")
    template = actions.add_parser("new", help="write a template")
    template.add_argument("group", metavar="GROUP", help=f"one of {', '.join(GROUPS)}")
    template.add_argument("name", metavar="NAME", help="name of the option and of its module")
    template.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=Path, help="folder of plugins"
    )
    parsed = parser.parse_args(arguments)
    with one_line_errors():
        plugins.make_importable()
        if parsed.action == "list":
            result = list_plugins()
        else:
            folder = parsed.folder or (*plugins.configured(), plugins.FOLDER)[0]
            result = new(parsed.group, parsed.name, folder.expanduser())
        print(dumps(result, indent=2))


def _fill_in(text: str, name: str, class_name: str) -> str:
    """Replace the placeholders of a template by the names of the plugin's module and class."""
    text = re.sub(r"\bName\b", class_name, text)
    return re.sub(
        r"(?<=from )rlmods\.cli\.templates\.\w+|(?<=plugins/)name\b|(?<==)name\b", name, text
    )


def _suggest_name(name: str) -> str:
    """Return a valid module name that is close to `name`."""
    return (
        re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
        .lstrip("_0123456789")
        .rstrip("_")
        .lower()
        or "my_part"
    )


if __name__ == "__main__":
    main()
