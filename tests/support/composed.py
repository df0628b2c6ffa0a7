"""Runs that are composed as the command line does, on little data."""

import copy
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from hydra import compose as hydra, initialize_config_dir
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf, open_dict

from rlmods.algo import Learner
from rlmods.config import build, compose, plugins
from rlmods.config.build import LoadedRun
from rlmods.config.run_spec import RunSpec
from rlmods.run import name

CONF = Path(__file__).parents[2] / "conf"
ALGORITHMS = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
SMALL = ("data.num_train=256", "data.num_val=8")
OWN_SIZE = {
    "data=jsonl",
    "data=preferences",
    "data=mixture",
    "experiment=tiny_mixture",
    "experiment=worked_warm_start",
}
"""Options of data without these two settings."""


def composed(*typed: str) -> RunSpec:
    """Return the run that the overrides select."""
    config, choices, overrides = configuration(*typed)
    return compose.run_spec(config, choices, overrides)


def with_option(base: str, option: str) -> RunSpec:
    """Return the run that two overrides select, `algo=ALGO` and one for another group. The first is
    composed once, and the settings of the second replaced in it, if its file includes no other."""
    group, name = option.split("=")
    file = CONF / group / f"{name}.yaml"
    if group not in (*compose.PARTS, "adapter") or "defaults" in OmegaConf.load(file):
        return composed(base, option)
    config, choices, overrides = configuration(base)
    config = copy.deepcopy(config)
    with open_dict(config):
        config[group] = OmegaConf.load(file)
    return compose.run_spec(config, {**choices, group: name}, [*overrides, option])


@lru_cache(maxsize=64)
def configuration(*typed: str) -> tuple[DictConfig, dict[str, str], Sequence[str]]:
    """Return what Hydra composes: the configuration, the option of each group, the overrides.
    `compose.run_spec` does not change them."""
    plugins.register()
    name.register()
    small: list[str] = []
    if not OWN_SIZE & set(typed):
        small = [s for s in SMALL if s.split("=")[0] not in " ".join(typed)]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra("train", [*small, *typed], return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return config, choices, [*small, *typed]


def loaded(*typed: str) -> LoadedRun:
    """Return the run that the overrides select, with its model."""
    return build.load(composed(*typed))


@cache
def algorithm(algo: str) -> type[Learner]:
    """Return the class of an algorithm's option."""
    kind: type[Learner] = get_class(OmegaConf.load(CONF / f"algo/{algo}.yaml").algo._target_)
    return kind


def alone(algo: str, folder: Path) -> list[str]:
    """Return what to type to get an algorithm, and nothing more."""
    overrides = [f"algo={algo}"]
    if algo == "iterative_grpo":
        from tests.reward import models

        model = models.save(folder / "rm")
        overrides += ["reward=neural", f"reward.terms.neural.reward.model={model}"]
    if algo in ("distill", "gkd"):
        overrides.append("+policy@teacher.policy=tiny")
    return overrides
