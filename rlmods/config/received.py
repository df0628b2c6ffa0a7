"""Checks of a saved configuration, which may come with a run of somebody else: it creates known
parts only and reads no environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.utils import get_class, get_method
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config.options import CONF
from rlmods.config.plugins import sources
from rlmods.environment.tool import BUILT_IN
from rlmods.errors import UserError
from rlmods.run.files import one_line
from rlmods.run.saved import read_config

TO_CONFIRM: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "url": ("sends prompts and responses there", lambda value: value is not None),
    "urls": ("sends prompts and weights there", lambda value: value not in (None, [])),
    "folder": ("writes weights there", lambda value: value is not None),
    "key_variable": (
        "sends this environment variable to a server",
        lambda value: value is not None,
    ),
    "cache": ("writes this file", lambda value: value is not None),
    **dict.fromkeys(
        ("dirpath", "default_root_dir", "save_dir"),
        ("writes files there", lambda value: value is not None),
    ),
    "documents": ("shows this file to the policy", lambda value: value is not None),
    "env_id": ("imports the package that it names", lambda value: value is not None),
    "walls": ("weakens the sandbox", lambda value: value != "full"),
    "allow_pickle": ("loads weights with pickle", lambda value: value is not False),
}
"""Settings that reach beyond the process, by name: what they do, and which values do it. They are
used only if they are typed."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "data": ("data",),
    "reward": ("reward", "judge"),
    "rollout": ("rollout",),
    "environment": ("environment",),
    "judge": ("judge", "reward"),
    "teacher": ("teacher", "policy"),
    "reference": ("reference", "policy"),
}
"""Groups whose options may occur within a top-level key; those of its own group only within
others."""
WITHIN: Mapping[str, tuple[str, ...]] = {"validation": ("data", "reward", "judge")}
"""The same, of top-level keys that are settings."""
OPTIONAL = ("environment",)
"""Groups that runs of earlier versions lack; the default option takes their place."""
LIBRARIES: Mapping[str, str] = {
    "callbacks": "lightning.pytorch.callbacks.",
    "logger": "lightning.pytorch.loggers.",
    "optimizer": "torch.optim.",
    "trainer": "lightning.pytorch.",
}
"""Packages whose classes a group may hold without an option for each: a class of it that is
imported there is defined below it."""
OF_OWN_NAMES = ("terms", "rewards", "sources")
"""Settings with parts by names of the user's choice."""


def read_received(path: Path, keys: Collection[str], typed: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of top-level `keys` in a `config.yaml`. What its other keys would create is
    checked as well, as another command may create it.

    Args:
        typed: keys with dots that the command line sets, which are not checked; nor is what is
        below a top-level one.

    Raises:
        UserError: the file is broken; a part is missing or not a part; a `_target_` is neither an
        option of the group at its place nor a
            class of a plugin that the user has; a tool is neither built in nor a function of such a
            plugin; a key changes how parts are created; a value calls a resolver; a setting of
            `TO_CONFIRM` is not typed.
    """
    try:
        saved: Any = OmegaConf.to_container(OmegaConf.create(read_config(path)), resolve=False)
    except OmegaConfBaseException as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path}: broken ({reason}): give another run") from error
    settings = {key: saved[key] for key in keys if key in saved}
    leaves = [(key, name, value) for key, name, value in _leaves(settings) if key not in typed]
    others = {key: value for key, value in saved.items() if key not in keys and key not in typed}
    for key, name, value in (*leaves, *_leaves(others)):
        if special := [
            part
            for part in key.split(".")
            if re.fullmatch(r"_\w+_", part) and part not in ("_target_", "_convert_")
        ]:
            raise UserError(
                f"{path}: {one_line(key)}: {special[0]} changes how parts are created: give "
                "another run"
            )
        if name == "_target_" and not is_known_class(value, _group(key)):
            top = key.split(".")[0]
            advice = (
                f"type {top}=OPTION, one of yours"
                if top != "policy" and (CONF / top).is_dir()
                else "give another run"
            )
            if folders := _recorded_plugins(path):
                advice = (
                    f"if you trust its plugins, set RLMODS_PLUGINS={shlex.quote(folders)}, or "
                    f"{advice}"
                )
            shown = one_line(f"{key}={value}")
            raise UserError(
                f"{path}: {shown} is no part of rlmods or of your plugins for this place, and "
                f"is not executed: {advice}"
            )
    for key, _, value in leaves:
        # ${oc.env:NAME}; ${rollout.max_tokens} is another setting
        if isinstance(value, str) and "${" in value and ":" in value:
            shown = one_line(f"{key}={value}")
            raise UserError(
                f"{path}: {shown} calls a resolver, which may read the environment: type "
                f"{shlex.quote(key)}=VALUE"
            )
    for key, value in _tools(settings.get("environment"), "environment"):
        if not {key, "environment"} & set(typed):
            _check_tools(path, key, value)
    for key in (key for key in keys if key in saved or key not in OPTIONAL):
        _check_shape(path, key, settings.get(key), typed)
    if confirm := [
        (key, TO_CONFIRM[name][0], value)
        for key, name, value in leaves
        if name in TO_CONFIRM and TO_CONFIRM[name][1](value)
    ]:
        overrides = " ".join(_override(key, value) for key, _, value in confirm)
        raise UserError(
            f"{path}: {one_line(f'{confirm[0][0]}={confirm[0][2]}')} {confirm[0][1]}: if you "
            f"trust this run, type {overrides}"
        )
    return settings


def _recorded_plugins(path: Path) -> str:
    """Return the folders of plugins (`RLMODS_PLUGINS`) that `versions.txt` beside a `config.yaml`
    records, empty if there are none."""
    try:
        lines = path.with_name("versions.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next(
        (
            one_line(line.removeprefix("plugins "))[:500]
            for line in lines
            if line.startswith("plugins ")
        ),
        "",
    )


def _check_tools(path: Path, key: str, value: Any) -> None:
    """Check that tools are a list of names, each of a built-in tool or of a function that a plugin
    of the user defines."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UserError(
            f"{path}: {key} is not a list of names: type environment=OPTION, or give another run"
        )
    for i, name in enumerate(value):
        if name not in BUILT_IN and not _is_plugin_function(name):
            problem = (
                f"{one_line(f'{key}.{i}={name}')} is no function of your plugins, and is not "
                "executed"
            )
            raise UserError(
                f"{path}: {problem}: if you trust this run, type {_override(key, value)}"
            )


def _is_plugin_function(name: str) -> bool:
    """Return whether a plugin of the user defines MODULE.FUNCTION; one that its module imports from
    elsewhere, such as `shutil.rmtree`, is none of the plugin."""
    module = name.rpartition(".")[0]
    if not any(f"{module}.".startswith(f"{source.module}.") for source in sources()):
        return False
    try:
        return getattr(get_method(name), "__module__", None) == module
    except (ImportError, ValueError):
        return False


def _tools(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the key with dots and the value of every setting `tools` below a node."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == "tools":
                yield f"{key}.{name}", value
            yield from _tools(value, f"{key}.{name}")
    elif isinstance(node, list):
        yield from _tools(dict(enumerate(node)), key)


def _check_shape(path: Path, key: str, value: Any, typed: Collection[str]) -> None:
    """Check that a part is a mapping with a `_target_`, and another setting a mapping of settings
    or a number."""
    if key in PARTS and not (
        isinstance(value, Mapping) and ("_target_" in value or f"{key}._target_" in typed)
    ):
        raise UserError(
            f"{path}: {key} is missing or not a part: type {key}=OPTION, or give another run"
        )
    if (
        key not in PARTS
        and value is not None
        and not isinstance(value, int if key == "seed" else Mapping)
    ):
        advice = f"type {key}=NUMBER" if key == "seed" else "give another run"
        raise UserError(
            f"{path}: {key} is not "
            f"{'a whole number' if key == 'seed' else 'a group of settings'}: {advice}"
        )


def _group(key: str) -> str | None:
    """Return the group of the part that the key with dots of a `_target_` belongs to: that of the
    innermost name of a group."""
    names = key.split(".")[:-1]
    if names[:1] == ["ptx"]:
        names[0] = "data"
    allowed = {**PARTS, **WITHIN}.get(names[0], (names[0],)) if names else ()
    found = [
        name
        for name, parent in zip(names, ["", *names], strict=False)
        if name in allowed and parent not in OF_OWN_NAMES
    ]
    return found[-1] if found else None


def _override(key: str, value: Any) -> str:
    """Return `key=value` as it is typed in a shell: quoted for Hydra and for the shell where it
    needs to be."""
    return shlex.quote(f"{key}={_quoted(value)}")


def _quoted(value: Any) -> str:
    """Return a value as it is typed in an override, quoted where it needs to be."""
    if isinstance(value, list):
        return f"[{','.join(map(_quoted, value))}]"
    text = str(value)
    if isinstance(value, str) and not re.fullmatch(
        r"(?!(null|true|false|nan|inf)$)[a-z/_][\w:/.@%+?-]*", text, re.I | re.A
    ):
        escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
        text = "'" + re.sub(r"\\+\Z", lambda match: 2 * match[0], escaped) + "'"
    return text


def is_known_class(target: Any, group: str | None) -> bool:
    """Return whether a `_target_` is that of an option of the group, here or in a plugin, or
    another class that a plugin defines."""
    if not isinstance(target, str) or group is None:
        return False
    if any(
        target in _option_targets(folder / group)
        for folder in (CONF, *(source.options for source in sources()))
    ):
        return True
    if target.startswith(LIBRARIES.get(group, "\0")):
        return _defining_module(target).startswith(LIBRARIES[group])
    modules = [source.module for source in sources() if target.startswith(f"{source.module}.")]
    if not modules:
        return False
    return any(_defining_module(target).startswith(f"{module}.") for module in modules)


def _defining_module(target: str) -> str:
    """Return the module that defines a class, with a dot at the end, which is another one than
    `target` names for a class that is imported there, such as `subprocess.Popen`; "" if there is no
    such class."""
    try:
        return f"{get_class(target).__module__}."
    except (ImportError, ValueError):
        return ""


@lru_cache(maxsize=64)
def _option_targets(folder: Path) -> frozenset[str]:
    files = (path.read_text() for path in sorted(folder.rglob("*.yaml")))
    return frozenset(
        target for text in files for target in re.findall(r"^\s*_target_:\s*([\w.]+)", text, re.M)
    )


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the key with dots, the last part of it, and the value of every setting and of every
    list; of items of a list with their position."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            child = f"{key}.{name}" if key else str(name)
            if isinstance(value, Mapping | list) and name != "_target_":
                yield from _leaves(value, child)
            if not isinstance(value, Mapping) or name == "_target_":
                yield child, str(name), value
    elif isinstance(node, list):
        yield from _leaves(dict(enumerate(node)), key)
