"""One-line error messages, with suggestions, for overrides that Hydra rejects."""

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


OPTIONAL = {"ptx": "data@ptx", "validation.reward": "reward@validation.reward"}
"""Keys whose settings exist once you select an option of the group."""
MESSAGES = {
    r"Config group override must be": (
        "a group takes the name of an option, not a number or null: type GROUP=OPTION, "
        "GROUP.SETTING=VALUE for a setting of it, or drop it"
    ),
    r"Ambiguous value for argument '(?P<key>[^=]*)=(?P<value>\S+)'": (
        "{key}={value}: several values; add -m to run each of them, or type '{key}=[{value}]' for "
        "a list"
    ),
    r"Multiple values for (?P<key>\S+)\. To override a value use 'override \S+: (?P<value>\S+)'": (
        "+{key}={value}: the group has an option already, which {key}={value} replaces: type it "
        "without +"
    ),
    r"(?P<text>Could not delete from config.*)": (
        "{text} Type the whole key of a setting to remove, such as ~callbacks.samples or "
        "~reward.terms.overlong"
    ),
}
"""What to say in place of a message of Hydra, by its pattern."""


def explain_override(error: Exception) -> UserError | None:
    """Return a one-line error for an override that Hydra rejected; None if Hydra did not raise
    `error`."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name}:{mark.line + 1}: is not valid YAML: {error.problem}")
    text = " ".join(str(error).split("\nSee https://")[0].split())
    for pattern, message in MESSAGES.items():
        found = re.search(pattern, text)
        if found is not None:
            return UserError(message.format(**found.groupdict()))
    if not isinstance(error, HydraException):
        return None
    if isinstance(error, OverrideParseException):
        key, has_value, value = error.override.partition("=")
        advice = "an override is key=value or group=option"
        same = [group for group in groups() if key in options(group)]
        if not has_value and same:
            return UserError(f"{key}: {advice}: type {same[-1]}={key}")
        if has_value:
            advice += f"; a value with special characters needs quotes: '{key}=\"{value}\"'"
        return UserError(f"{error.override}: {text}; {advice}")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
        return _unknown_option(str(error.missing_cfg_file), error.options)
    cause = error.__cause__
    if not isinstance(cause, OmegaConfBaseException) or not isinstance(
        cause.parent_node, DictConfig
    ):
        return UserError(text)
    setting = re.search(r"To append to your config use \+(\S+?)=(.*)", text)
    key, value = setting.groups() if setting is not None else ("", "")
    equivalent = equivalents.advice(key, value)
    if equivalent is not None:
        return UserError(f"{key}: no such setting; {equivalent}")
    return _unknown_key(str(cause.full_key), value, cause.parent_node)


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
    if full_key in OPTIONAL:
        return UserError(f"no option of {key} is selected: type {OPTIONAL[full_key]}=OPTION too")
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
