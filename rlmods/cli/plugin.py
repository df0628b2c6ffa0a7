"""Create or list plugins: `python -m rlmods.plugin new GROUP NAME [FOLDER]` and `python -m
rlmods.plugin list`.

`new` writes a template: a class, its option and a passing test. Then `python train.py GROUP=NAME`
works. GROUP is one of advantage, aggregation, algo, environment, ratio, reward, sampling. FOLDER is
the folder of plugins: by default the first of $RLMODS_PLUGINS, else `plugins/` of the repository,
or of the working directory if the package is installed. `list` prints the folder and the options of
every plugin. `--json` prints JSON."""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import yaml

from rlmods.cli import templates
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.errors import UserError, one_line_errors, print_usage, suggest
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
            f"{name}: a plugin is a Python module: use lower case letters, digits and _, as in "
            "my_part"
        )
    in_plugins = any(f"{group}={name}" in source.overrides for source in plugins.sources())
    if in_plugins or (CONF / group / f"{name}.yaml").exists():
        raise UserError(f"{group}={name} exists already: choose another name")
    plugin = folder / name
    if plugin.exists():
        raise UserError(f"{plugin} exists already: choose another name or remove it")
    plugins.check_name(plugin)
    class_name = "".join(word.capitalize() for word in name.split("_") if word)
    files = {
        f"{name}.py": _fill_in(f"{group}.py", name, class_name),
        f"test_{name}.py": _fill_in(f"test_{group}.py", name, class_name),
        f"{group}/{name}.yaml": _option(group, name, class_name),
    }
    for path, text in files.items():
        (plugin / path).parent.mkdir(parents=True, exist_ok=True)
        (plugin / path).write_text(text)
    commands = [f"python -m pytest {plugin}", f"rlmods train {group}={name}"]
    if (CONF.parent / "train.py").is_file():
        commands = [f"make test ARGS={plugin}", f"python train.py {group}={name}"]
    return {"wrote": [str(plugin / path) for path in files], "try": commands}


def list_plugins() -> dict[str, Any]:
    """Return folder and options of every plugin, by name."""
    return {
        source.name: {"folder": str(source.options), "options": source.overrides}
        for source in plugins.sources()
    }


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    print_usage(__name__, __doc__)
    with one_line_errors():
        plugins.make_importable()
        action, *rest = [text for text in arguments if text != "--json"]
        if action == "list" and not rest:
            result = list_plugins()
        elif action == "new" and len(rest) in (2, 3):
            folder = Path(rest[2]) if rest[2:] else (*plugins.configured(), plugins.FOLDER)[0]
            result = new(rest[0], rest[1], folder.expanduser())
        else:
            raise UserError("type new GROUP NAME [FOLDER], or list")
        print(dumps(result, indent=2) if "--json" in arguments else table(result))


def table(result: Mapping[str, Any]) -> str:
    """Return what `new` or `list` found, in lines."""
    if "wrote" in result:
        lines = [f"wrote {path}" for path in result["wrote"]]
        return "\n".join([*lines, *(f"try   {command}" for command in result["try"])])
    lines = []
    for name, plugin in result.items():
        lines += [f"{name}  {plugin['folder']}", f"  {' '.join(plugin['options'])}"]
    return "\n".join(lines) or "there are no plugins: type new GROUP NAME"


def _option(group: str, name: str, class_name: str) -> str:
    """Return the option of a new part: a recipe for an algorithm, else the fields of its class."""
    if (TEMPLATES / f"{group}.yaml").is_file():
        return _fill_in(f"{group}.yaml", name, class_name)
    template = import_module(f"rlmods.cli.templates.{group}").Name
    settings: dict[str, Any] = {"_target_": f"{name}.{class_name}"}
    settings |= {field.name: field.default for field in fields(template)}
    summary = (inspect.getdoc(template) or "").partition("\n\n")[0]
    comment = f"# {' '.join(summary.split())}"
    return f"{comment}\n{yaml.safe_dump(settings, sort_keys=False)}"


def _fill_in(file: str, name: str, class_name: str) -> str:
    """Return a template with the names of the plugin's module and class."""
    text = re.sub(r"\bName\b", class_name, (TEMPLATES / file).read_text())
    return re.sub(
        r"rlmods\.cli\.templates\.\w+|(?<=plugins/)name\b|(?<==)name\b|(?<=name: )name\b",
        name,
        text,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
