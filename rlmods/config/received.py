"""Settings of a saved run, which may have come from somebody else: unless the user trusts it, it
creates known parts only, and reaches nothing outside of the process."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.utils import get_class, get_method

from rlmods.config.options import CONF
from rlmods.config.plugins import sources
from rlmods.environment.tool import BUILT_IN
from rlmods.errors import UserError
from rlmods.run.files import one_line
from rlmods.run.saved import read_config
from rlmods.run.settings import REACHING, leaves

HARMLESS: tuple[object, ...] = (None, [], False, "full")
"""Values of `REACHING` settings that do not reach beyond the process."""
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "callbacks": ("lightning.pytorch.callbacks.",),
    "logger": ("lightning.pytorch.loggers.",),
    "optimizer": ("torch.optim.",),
    "trainer": ("lightning.pytorch.strategies.", "lightning.pytorch.profilers."),
}
"""Packages whose own classes a group may hold without an option for each."""


def read_received(
    path: Path, keys: Collection[str], typed: Collection[str] = (), *, trust: bool = False
) -> dict[str, Any]:
    """Return the values of top-level `keys` in a `config.yaml`. Its other keys are checked as well,
    as another command may create what they name.

    Args:
        typed: dotted keys that the command line sets, which are not checked; nor is what is below a
            top-level one.
        trust: check nothing.

    Raises:
        UserError: the file is broken, or one of its settings needs trust.
    """
    saved = read_config(path)
    for key, value in () if trust else leaves(saved, lists=True):
        # without the positions in lists
        names = [name for name in key.split(".") if not name.isdecimal()] or [key]
        if names[0] in typed or ".".join(names) in typed:
            continue
        reason = _reason(names, value, names[0] in keys)
        if reason is not None:
            shown = one_line(f"{key}={value}")[:200]
            raise UserError(
                f"{path}: {shown} {reason}: if you trust this run, type --trust; else type your "
                f"own {one_line(names[0])}=..."
            )
    return {key: saved[key] for key in keys if key in saved}


def _reason(names: list[str], value: object, is_used: bool) -> str | None:
    """Return why a setting needs trust, None if it does not."""
    special = [name for name in names if re.fullmatch(r"_\w+_", name)]
    if special and special not in (["_target_"], ["_convert_"]):
        return "changes how parts are created"
    if special == ["_target_"] and (names[-1] != "_target_" or not is_known(value, names[0])):
        return "is not a part of rlmods or of your plugins, and is not executed"
    if not is_used:
        return None
    if "tools" in names and value not in ([], None) and not _is_tool(value):
        return "is not a tool of rlmods or of your plugins, and is not executed"
    if names[-1] in REACHING and value not in HARMLESS:
        return "reaches beyond this process"
    # ${rollout.max_tokens} is another setting
    if isinstance(value, str) and "${" in value and ":" in value:
        return "may read the environment"
    return None


def is_known(target: object, top: str) -> bool:
    """Return whether a `_target_` below a top-level key is the target of an option, here or in a
    plugin, or a class that a plugin, or a library for this key, defines."""
    if not isinstance(target, str):
        return False
    folders = (CONF, *(source.options for source in sources()))
    packages = (*_plugin_packages(), *LIBRARIES.get(top, ()))
    is_option = target in set().union(*map(_option_targets, folders))
    return is_option or _is_defined_in(packages, target, get_class)


def _is_tool(name: object) -> bool:
    """Return whether a tool is built in, or a function MODULE.FUNCTION of a plugin of the user."""
    return name in list(BUILT_IN) or _is_defined_in(_plugin_packages(), str(name), get_method)


def _plugin_packages() -> list[str]:
    return [f"{source.module}." for source in sources()]


def _is_defined_in(packages: Sequence[str], name: str, find: Callable[[str], Any]) -> bool:
    """Return whether a module of these packages defines the class or function, and does not import
    it, such as `subprocess.Popen`. `find` returns it."""
    own = tuple(package for package in packages if name.startswith(package))
    try:
        return bool(own) and f"{find(name).__module__}.".startswith(own)
    except (ImportError, ValueError, AttributeError):
        return False


@lru_cache(maxsize=64)
def _option_targets(folder: Path) -> frozenset[str]:
    targets: set[str] = set()
    for path in folder.rglob("*.yaml"):
        targets.update(re.findall(r"^\s*_target_:\s*([\w.]+)", path.read_text(), re.M))
    return frozenset(targets)
