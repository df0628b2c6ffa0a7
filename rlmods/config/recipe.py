"""The recipe of an algorithm (the options that its file in `conf/algo/` selects), and the label of a run that differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from rlmods.algo import Learner
from rlmods.config.options import CONF
from rlmods.config.plugins import sources


def recipe(algo: str) -> dict[str, str]:
    """Return the options that an algorithm's file in `conf/algo/` selects (`override /GROUP: OPTION`), by group."""
    options: dict[str, str] = {}
    option: Any = OmegaConf.to_container(OmegaConf.load(_option_file(algo)))
    for entry in option.get("defaults", []):
        if isinstance(entry, str) and entry != "_self_" and not entry.startswith("/"):
            options |= recipe(entry)
        elif isinstance(entry, dict):
            options |= {str(key).removeprefix("override /"): option for key, option in entry.items() if str(key).startswith("override /")}
    return options


def label(config: DictConfig, choices: Mapping[str, str], algorithm: type[Learner]) -> str:
    """Return the algorithm's name, and in brackets the differences from its recipe: `dapo[ratio=symmetric,ratio.low=0.1]`.

    Listed are the groups of the recipe with another option, the settings of these groups that differ from those of their option, and the
    settings of the algorithm that change the objective and differ from the recipe.
    """
    algo = choices.get("algo", config.algo.name)
    groups = recipe(algo)
    if "router" in algorithm.groups:
        groups = {"router": "free", **groups}  # papers do not change the routing of their models
    swapped = [f"{group}={choices[group]}" for group, option in groups.items() if choices.get(group, option) != option]
    baseline = _composed((f"algo={algo}", *swapped))
    changed = [text for group in groups for text in _differences(config[group], baseline[group], group)]
    objective = {field.name for field in fields(algorithm.settings_type) if field.metadata.get("objective")}
    changed += [text for text in _differences(config.algo, baseline.algo, "algo") if text[5:].split("=")[0] in objective]
    differences = [*swapped, *changed]
    return f"{config.algo.name}[{','.join(differences)}]" if differences else str(config.algo.name)


def _option_file(algo: str) -> Path:
    files = (folder / "algo" / f"{algo}.yaml" for folder in (CONF, *(source.options for source in sources())))
    return next(file for file in files if file.exists())


@lru_cache(maxsize=256)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    if GlobalHydra.instance().is_initialized():
        return compose("train", list(overrides))
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", list(overrides))


def _differences(a: DictConfig, b: DictConfig, name: str) -> Iterable[str]:
    """Return `name.key=value` of `a` for each setting that differs from `b`, without interpolating values."""
    a_leaves, b_leaves = (dict(_leaves(OmegaConf.to_container(x, resolve=False), name)) for x in (a, b))
    return [f"{key}={OmegaConf.create({'x': value}).x}" for key, value in a_leaves.items() if key not in b_leaves or b_leaves[key] != value]


def _leaves(node: Any, name: str) -> Iterable[tuple[str, Any]]:
    if isinstance(node, dict):
        return [leaf for key, value in node.items() for leaf in _leaves(value, f"{name}.{key}")]
    return [(name, node)]
