"""The recipe of an algorithm, which its option in `conf/algo/` declares, and the label of a run
that departs from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Learner
from rlmods.config.options import CONF
from rlmods.config.plugins import sources


def recipe(algo: str) -> dict[str, str]:
    """Return the option of each group that an algorithm's option chooses (`override /GROUP:
    OPTION`)."""
    chosen: dict[str, str] = {}
    for file in _chain("algo", algo):
        for entry in _read(file).get("defaults", []):
            if isinstance(entry, dict):
                chosen |= {
                    key.removeprefix("override /"): option
                    for key, option in entry.items()
                    if key.startswith("override /")
                }
    return chosen


def label(config: DictConfig, choices: Mapping[str, str], algorithm: type[Learner]) -> str:
    """Return the algorithm's name, and in brackets what departs from its recipe:
    `dapo[ratio=symmetric,ratio.low=0.1]`.

    Listed are the groups of the recipe with another option, the settings of these groups that
    differ from those of their option, and the settings of the algorithm that change the objective
    (`rlmods.types.objective`) and differ from the recipe. No paper chooses the option of `reward`,
    so it is not listed, but its settings and terms are, where they differ from the option's. A fork
    names its origin: `dapo[fork=a@60]`."""
    algo = choices.get("algo", config.algo.name)
    groups = {group: option for group, option in recipe(algo).items() if group in config}
    # Papers do not change the routing of their models, their reference is the policy that training
    # starts from, and it also samples.
    common = {"reference": "policy", "router": "free", "correction": "none"}
    groups = {
        group: option for group, option in common.items() if group in algorithm.groups
    } | groups
    departures = [
        f"{group}={choices[group]}"
        for group, option in groups.items()
        if choices.get(group, option) != option
    ]
    for group, option in groups.items():
        if (declared := _defaults(group, choices.get(group, option))) is not None:
            own = _defaults("algo", algo) or {}
            recipe_values = own.get(group, {}) if choices.get(group, option) == option else {}
            departures += _differences(config[group], declared | recipe_values, group)
    objective = {
        field.name: field.default
        for field in fields(algorithm.settings_type)
        if field.metadata.get("objective")
    }
    declared = objective | (_defaults("algo", algo) or {}).get("algo", {})
    departures += _differences(
        OmegaConf.masked_copy(config.algo, [key for key in objective if key in config.algo]),
        declared,
        "algo",
    )
    if (
        "reward" in algorithm.groups
        and (declared := _defaults("reward", choices.get("reward", ""))) is not None
    ):
        departures += _reward_departures(config.reward, declared, choices)
    if fork := config.get("fork"):
        departures.append(f"fork={Path(str(fork)).name}")
    return f"{config.algo.name}[{','.join(departures)}]" if departures else str(config.algo.name)


def _reward_departures(
    config: DictConfig, declared: Mapping[str, Any], choices: Mapping[str, str]
) -> list[str]:
    """Return the settings of the reward that differ from those of its option, and the terms that it
    lacks or adds (by their option). A setting that the option leaves open, such as a model or a
    pattern, is not listed."""
    before, now = dict(declared.get("terms") or {}), config.get("terms") or {}
    added = [name for name in now if name not in before]
    listed = [f"~reward.terms.{name}" for name in before if name not in now]
    for name in added:
        key = f"reward.terms.{name}.reward"
        option = (
            choices.get(f"reward@{key}")
            or str(now[name].reward.get("_target_", "")).rpartition(".")[2]
        )
        weight = now[name].get("weight", 1.0)
        listed += [
            f"{key}={option}",
            *([f"reward.terms.{name}.weight={_as_typed(weight)}"] if weight != 1.0 else []),
        ]
    settings = [
        key
        for key, value in declared.items()
        if isinstance(value, str | int | float) and key in config
    ]
    listed += _differences(OmegaConf.masked_copy(config, settings), declared, "reward")
    for name in [name for name in before if name in now]:
        open_keys = [
            key for key, value in _leaves(before[name], f"reward.terms.{name}") if value is None
        ]
        changes = _differences(now[name], before[name], f"reward.terms.{name}")
        listed += [change for change in changes if change.split("=")[0] not in open_keys]
    return listed


def _differences(config: DictConfig, declared: Mapping[str, Any], name: str) -> list[str]:
    """Return `name.key=value` for each setting that differs from its declared value."""
    now = dict(_leaves(OmegaConf.to_container(config, resolve=False), name))
    before = dict(_leaves(declared, name))
    return [
        f"{key}={_as_typed(value)}"
        for key, value in now.items()
        if key not in before or before[key] != value
    ]


def _as_typed(value: Any) -> str:
    """Return a value as it is typed in an override."""
    return value if isinstance(value, str) else json.dumps(value)


def _leaves(node: Any, name: str) -> Iterable[tuple[str, Any]]:
    if isinstance(node, Mapping):
        return [leaf for key, value in node.items() for leaf in _leaves(value, f"{name}.{key}")]
    return [(name, node)]


def _defaults(group: str, option: str) -> dict[str, Any] | None:
    """Return the settings that an option's file declares, with those of the options that it
    includes; None if there is no such file in `conf/` and the plugins (an option of another
    directory, `--config-dir`)."""
    files = _chain(group, option)
    return _merged(*files) if files else None


def _chain(group: str, option: str) -> list[Path]:
    """Return the file of an option, preceded by those of the options of the same group that it
    includes."""
    folders = (CONF, *(source.options for source in sources()))
    file = next(
        (path for folder in folders if (path := folder / group / f"{option}.yaml").exists()), None
    )
    if file is None:
        return []
    entries = [
        entry.split("@")[0].removeprefix(f"/{group}/")
        for entry in _read(file).get("defaults", [])
        if isinstance(entry, str)
    ]
    return [
        *(
            path
            for entry in entries
            if "/" not in entry and entry != "_self_"
            for path in _chain(group, entry)
        ),
        file,
    ]


@lru_cache(maxsize=1024)
def _merged(*files: Path) -> dict[str, Any]:
    """Return the settings of the files, of which later ones override earlier ones."""
    merged = OmegaConf.merge(*(OmegaConf.create(_read(file)) for file in files))
    return {
        str(key): value
        for key, value in OmegaConf.to_container(merged).items()
        if key != "defaults"
    }  # type: ignore[union-attr]


@lru_cache(maxsize=1024)
def _read(file: Path) -> dict[str, Any]:
    return OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[return-value]
