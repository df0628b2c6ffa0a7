"""Checks of a saved configuration, which may come with a run of somebody else: it creates known parts only and reads no environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlmods.config.options import CONF
from rlmods.config.plugins import sources
from rlmods.types import UserError

TO_CONFIRM: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "url": ("sends prompts and responses there", lambda value: value is not None),
    "key_variable": ("sends this environment variable to a server", lambda value: value is not None),
    "cache": ("writes this file", lambda value: value is not None),
    "walls": ("weakens the sandbox", lambda value: value != "full"),
}
"""Settings that reach beyond the process, by name: what they do, and which values do it. They are used only if they are typed."""


def read_received(path: Path, keys: Iterable[str], typed: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of top-level `keys` in a `config.yaml`.

    Args:
        typed: keys with dots that the command line sets, which are not checked.

    Raises:
        UserError: the file is broken; a `_target_` is neither a part of this package nor a class of a plugin that the user has; a value
            calls a resolver; a setting of `TO_CONFIRM` is not typed.
    """
    try:
        saved = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: broken ({' '.join(str(error).split())[:120]}): give another run") from error
    if not isinstance(saved, dict):
        raise UserError(f"{path}: holds no settings: give another run")
    settings = {key: saved[key] for key in keys if key in saved}
    leaves = [(key, name, value) for key, name, value in _leaves(settings) if key not in typed]
    for key, name, value in leaves:
        if isinstance(value, str) and "${" in value and ":" in value:  # ${oc.env:NAME}; ${rollout.max_tokens} is another setting
            raise UserError(f"{path}: {key}={value} calls a resolver, which may read the environment: type {key}=VALUE")
        if name == "_target_" and not is_known_class(value):
            advice = f"if you trust it, type {key}={value}"
            raise UserError(f"{path}: {key}={value} is no part of rlmods or of your plugins, and would be executed: {advice}")
    if confirm := [(key, TO_CONFIRM[name][0], value) for key, name, value in leaves if name in TO_CONFIRM and TO_CONFIRM[name][1](value)]:
        overrides = " ".join(f"{key}={value}" for key, _, value in confirm)
        raise UserError(f"{path}: {confirm[0][0]}={confirm[0][2]} {confirm[0][1]}: if you trust this run, type {overrides}")
    return settings


def is_known_class(target: Any) -> bool:
    """Return whether a `_target_` is that of an option of this package or of a plugin, or another class that a plugin defines."""
    if not isinstance(target, str):
        return False
    if target in _option_targets(CONF) or any(target in _option_targets(source.options) for source in sources()):
        return True
    modules = [source.module for source in sources() if target.startswith(f"{source.module}.")]
    if not modules:
        return False
    try:
        defined_in = f"{get_class(target).__module__}."  # not a class that the plugin has imported, such as subprocess.Popen
    except (ImportError, ValueError):
        return False
    return any(defined_in.startswith(f"{module}.") for module in modules)


@lru_cache(maxsize=64)
def _option_targets(folder: Path) -> frozenset[str]:
    files = (path.read_text() for path in sorted(folder.rglob("*.yaml")))
    return frozenset(target for text in files for target in re.findall(r"^\s*_target_:\s*([\w.]+)", text, re.M))


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the key with dots, the last part of it, and the value of every setting; of items of a list with their position."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            child = f"{key}.{name}" if key else str(name)
            if isinstance(value, Mapping | list) and name != "_target_":
                yield from _leaves(value, child)
            else:
                yield child, str(name), value
    elif isinstance(node, list):
        yield from _leaves(dict(enumerate(node)), key)
