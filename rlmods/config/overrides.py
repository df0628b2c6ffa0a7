"""One-line error messages, with suggestions, for overrides that Hydra rejects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config import equivalents
from rlmods.config.options import CONF, groups, options
from rlmods.errors import UserError, suggest

OPEN_GROUPS = ("optimizer", "trainer", "callbacks", "logger", "reward", "judge")
"""Groups whose parts may accept settings that are not listed in their option's file."""
EXTRAS = {
    "hydra/launcher=joblib": "sweep",
    "hydra/launcher=submitit_slurm": "slurm",
    "hydra/launcher=submitit_local": "slurm",
}
"""Options that packages of an extra add to Hydra."""
NAMES = {
    "policy": (r".*/.*", "policy=hf policy.name="),
    "data": (r".*/.*|.*\.(jsonl|json|csv|parquet)", "data=jsonl data.train="),
    "reward": (r".*\.py(:\w+)?|[\w.]+:\w+", "reward=function reward.function="),
}
"""Pattern of names and paths that are typed in place of an option, and what to type before them, by
group."""


def explain_override(error: Exception) -> UserError | None:
    """Return a one-line error for an override that Hydra rejected; None if Hydra did not raise
    `error`."""
    if "Config group override must be" in str(error):
        return UserError(
            "a group takes the name of an option, not a number or null: type GROUP=OPTION, "
            "GROUP.SETTING=VALUE for a setting of it, or drop it"
        )
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name}:{mark.line + 1}: is not valid YAML: {error.problem}")
    if not isinstance(error, HydraException):
        return None
    text = " ".join(str(error).split("\nSee https://")[0].split())
    if isinstance(error, OverrideParseException):
        key, has_value, value = error.override.partition("=")
        advice = "an override is key=value or group=option"
        same = [group for group in groups() if key in options(group)]
        if not has_value and same:
            return UserError(f"{key}: {advice}: type {same[-1]}={key}")
        if has_value:
            advice += f"; a value with special characters needs quotes: '{key}=\"{value}\"'"
        return UserError(f"{error.override}: {text}; {advice}")
    swept = re.match(r"Ambiguous value for argument '(\S+)'", text)
    if swept is not None:
        key, _, value = swept[1].partition("=")
        return UserError(
            f"{swept[1]}: several values; add -m to run each of them, or type "
            f"'{key}=[{value}]' for a list"
        )
    twice = re.match(
        r"Multiple values for (\S+)\. To override a value use 'override \S+: (\S+)'", text
    )
    if twice is not None:
        typed = f"{twice[1]}={twice[2]}"
        return UserError(
            f"+{typed}: the group has an option already, which {typed} replaces: type it without +"
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _unknown_option(str(error.missing_cfg_file), error.options)
    if text.startswith("Could not delete from config"):
        return UserError(
            f"{text} Type the whole key of a setting to remove, such as ~callbacks.samples or "
            "~reward.terms.overlong"
        )
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        setting = re.search(r"To append to your config use \+(\S+?)=(.*)", text)
        equivalent = equivalents.advice(setting[1], setting[2]) if setting is not None else None
        if setting is not None and equivalent is not None:
            return UserError(f"{setting[1]}: no such setting; {equivalent}")
        value = "" if setting is None else setting[2]
        return _unknown_key(str(cause.full_key), value, cause.parent_node)
    return UserError(text)


def _unknown_option(file: str, known: Sequence[str] | None) -> UserError:
    """Return the error for an option whose file `GROUP/OPTION` does not exist."""
    top, _, name = file.partition("/")
    pattern, typed = NAMES.get(top, (".+", ""))
    if typed and re.fullmatch(pattern, name):
        return UserError(f"{top}={name}: no such option; type {typed}{name}")
    group, _, option = file.rpartition("/")
    extra = EXTRAS.get(f"{group}={option}")
    if extra is not None:
        return UserError(f"{group}={option}: not installed: type pip install -e '.[{extra}]'")
    # "none" is like no other option: a group without it has no default to suggest
    name = "" if option == "none" else option
    return UserError(f"{group}={option}: no such option; {suggest(name, known or options(group))}")


def _unknown_key(full_key: str, value: str, siblings: DictConfig) -> UserError:
    """Return the error for a key that is not among `siblings`, the settings of its parent."""
    parent, _, key = full_key.rpartition(".")
    for entry in OmegaConf.load(CONF / "train.yaml").defaults:
        for name, option in entry.items() if isinstance(entry, DictConfig) else ():
            group = str(name)
            if option is None and group.split("@")[-1] == full_key:
                return UserError(f"no option of {key} is selected: type {group}=OPTION too")
    if not parent:
        same = [name for name in _names(siblings) if name.endswith(f".{key}")]
        spelled = {name.replace(".", "_"): name for name in _names(siblings)}
        same = same or [spelled[name] for name in get_close_matches(key, spelled, 1, 0.72)]
        if same:
            return UserError(f"{key}: no such setting; did you mean {' or '.join(same[:3])}?")
    chosen = options(parent) if parent else {}
    files = {f"{parent}={option}": CONF / parent / f"{option}.yaml" for option in chosen}
    owners = [override for override, file in files.items() if key in OmegaConf.load(file)]
    if owners:
        return UserError(f"{full_key}: a setting of {' or '.join(owners)}, which is not selected")
    equivalent = equivalents.advice(key, value)
    group = full_key.partition(".")[0]
    # what other libraries keep with the algorithm is in other groups here
    is_answer = equivalent is not None and re.search(rf" {group}[=.]", equivalent)
    if equivalent is not None and (group == "algo" or is_answer):
        return UserError(f"{full_key}: no such setting; {equivalent}")
    prefix = f"{parent}." if parent else ""
    names = [prefix + name for name in map(str, siblings) if name not in ("_target_", "hydra")]
    if not names:
        return UserError(f"{full_key}: no such setting; {parent} is a single value")
    hint = ""
    if parent.split(".")[0] in OPEN_GROUPS:
        hint = f" (+{full_key}=... passes one that is not listed)"
    return UserError(f"{full_key}: no such setting{hint}; {suggest(full_key, names)}")


def _names(node: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings."""
    if not isinstance(node, DictConfig):
        return
    for name in map(str, node):
        yield prefix + name
        if name != "hydra":
            yield from _names(node._get_node(name), f"{prefix}{name}.")
