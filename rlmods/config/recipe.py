"""The recipe of an algorithm, which its option in `conf/algo/` declares, and the label of a run
that departs from it."""

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Learner
from rlmods.config.options import CONF
from rlmods.config.plugins import sources
from rlmods.run.settings import leaves

COMMON = {"reference": "policy", "router": "free", "correction": "none", "tokens": "all"}
"""Options that every recipe has unless it says otherwise: papers do not change the routing of their
models, their reference is the policy that training starts from, it also samples, and all tokens are
trained."""


def recipe(algo: str) -> dict[str, str]:
    """Return the option of each group that an algorithm's option chooses (`override /GROUP:
    OPTION`)."""
    chosen: dict[str, str] = {}
    for file in _chain("algo", algo):
        for entry in _read(file).get("defaults", []):
            for key, option in entry.items() if isinstance(entry, dict) else ():
                if key.startswith("override /"):
                    chosen[key.removeprefix("override /")] = option
    return chosen


def label(config: DictConfig, choices: Mapping[str, str], algorithm: type[Learner]) -> str:
    """Return the algorithm's name, and in brackets what departs from its recipe:
    `dapo[ratio=symmetric,ratio.low=0.1]`.

    Listed are the groups of the recipe with another option, the settings of these groups that
    differ from their option's, and the settings of the algorithm that differ from the
    recipe, except those declared `rlmods.training.settings.unlabelled`. No paper chooses the option
    of `reward`, so it is not listed, but its settings and terms are, where they differ from the
    option's. A fork names its origin: `dapo[fork=a@60]`."""
    name = str(config.algo.name)
    algo = choices.get("algo", name)
    own = _defaults("algo", algo) or {}
    groups = {group: option for group, option in COMMON.items() if group in algorithm.config_groups}
    groups |= {group: option for group, option in recipe(algo).items() if group in config}
    chosen = {group: choices.get(group, option) for group, option in groups.items()}
    departures = [
        f"{group}={option}" for group, option in chosen.items() if option != groups[group]
    ]
    for group, option in chosen.items():
        declared = _defaults(group, option)
        if declared is not None:
            of_recipe = own.get(group, {}) if option == groups[group] else {}
            departures += _differences(config[group], declared | of_recipe, group, choices)
    listed = {
        field.name: field.default
        for field in fields(algorithm.settings_type)
        if not field.metadata.get("unlabelled")
    }
    settings = OmegaConf.masked_copy(config.algo, [key for key in listed if key in config.algo])
    departures += _differences(settings, listed | own.get("algo", {}), "algo", choices)
    declared = _defaults("reward", choices.get("reward", ""))
    if "reward" in algorithm.config_groups and declared is not None:
        departures += _reward_departures(config.reward, declared, choices)
    if config.get("fork"):
        departures.append(f"fork={Path(str(config.fork)).name}")
    one_line = ",".join(departures).replace("\n", r"\n")
    return f"{name}[{one_line}]" if departures else name


def _reward_departures(
    config: DictConfig, declared: Mapping[str, Any], choices: Mapping[str, str]
) -> list[str]:
    """Return the settings of the reward that differ from its option's, and the terms that it
    lacks or adds (by their option). A setting that the option leaves open, such as a model or a
    pattern, is not listed."""
    terms = dict(declared.get("terms") or {})
    now = config.get("terms") or {}
    departures = [f"~reward.terms.{name}" for name in terms if name not in now]
    for name in now:
        if name in terms:
            continue
        key = f"reward.terms.{name}.reward"
        target = str(now[name].reward.get("_target_", ""))
        option = choices.get(f"reward@{key}") or target.rpartition(".")[2]
        departures.append(f"{key}={option}")
        weight = now[name].get("weight", 1.0)
        if weight != 1.0:
            departures.append(f"reward.terms.{name}.weight={_as_typed(weight)}")
    before = dict(leaves(declared, "reward"))
    of_terms = tuple(f"reward.terms.{name}." for name in terms)
    for key, value in leaves(OmegaConf.to_container(config, resolve=False), "reward"):
        is_declared = key in before or key.startswith(of_terms)
        if is_declared and before.get(key, ...) not in (None, value):
            departures.append(f"{key}={_as_typed(value)}")
    return departures


def _differences(
    config: DictConfig, declared: Mapping[str, Any], group: str, choices: Mapping[str, str]
) -> list[str]:
    """Return `KEY=option` for each option that is added inside of a group, `+GROUP@KEY=OPTION`, and
    `KEY=value` for each setting that differs from its declared value, or from the value in the
    option that is added at its key."""
    before = dict(leaves(declared, group))
    departures = []
    for choice, option in choices.items():
        if choice.startswith(f"{group}@{group}."):
            key = choice.removeprefix(f"{group}@")
            departures.append(f"{key}={option}")
            before |= dict(leaves(_defaults(group, option) or {}, key))
    for key, value in leaves(OmegaConf.to_container(config, resolve=False), group):
        if key != group and (key not in before or before[key] != value):
            departures.append(f"{key}={_as_typed(value)}")
    return departures


def _as_typed(value: object) -> str:
    """Return a value as it is typed in an override."""
    return value if isinstance(value, str) else json.dumps(value)


def _defaults(group: str, option: str) -> dict[str, Any] | None:
    """Return the settings that an option's file declares, and the settings of the options that it
    includes; None if there is no such file in `conf/` and the plugins (an option of another
    directory, `--config-dir`)."""
    files = _chain(group, option)
    if not files:
        return None
    merged = OmegaConf.merge(*map(_read, files))
    settings: dict[str, Any] = OmegaConf.to_container(merged)  # type: ignore[assignment]
    settings.pop("defaults", None)
    return settings


def _chain(group: str, option: str) -> list[Path]:
    """Return the file of an option, preceded by the files of the options of the same group that
    it includes."""
    folders = (CONF, *(source.options for source in sources()))
    files = [folder / group / f"{option}.yaml" for folder in folders]
    file = next((path for path in files if path.exists()), None)
    if file is None:
        return []
    chain: list[Path] = []
    for entry in _read(file).get("defaults", []):
        if isinstance(entry, str):
            name = entry.split("@")[0].removeprefix(f"/{group}/")
            if "/" not in name and name != "_self_":
                chain += _chain(group, name)
    return [*chain, file]


@lru_cache(maxsize=1024)
def _read(file: Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[return-value]
