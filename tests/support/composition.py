"""Faster compositions for tests, which make thousands of them in one process.

Half of the time of a composition goes into files that were parsed for the one before, and into a
table that only defaults with an interpolation read. The default data are 10 thousand problems, the
same ones in most plans."""

import os
import pickle
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlmods.config import compose as plans
from rlmods.data import Splits

_load = OmegaConf.load
_interpolation_map = defaults_list._create_interpolation_map
_load_splits = plans.load_splits
_splits: dict[str, Splits] = {}
_parsed: dict[tuple[int, ...], bytes] = {}


def speed_up() -> None:
    """Let `OmegaConf.load` parse a file again only if it has changed, and Hydra tabulate choices
    only where a default interpolates them, and let plans with the same settings of
    `data=arithmetic` share its problems."""
    OmegaConf.load = load  # type: ignore[method-assign]
    defaults_list._create_interpolation_map = interpolation_map
    plans.load_splits = splits


def load(file: Any) -> Any:
    """Return the parsed file: a copy, so that callers can change it."""
    try:
        info = os.fstat(file.fileno()) if hasattr(file, "fileno") else Path(file).stat()
    except (OSError, TypeError):  # no file: the original has the message
        return _load(file)
    version = info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size
    if version not in _parsed:
        _parsed[version] = pickle.dumps(_load(file))
    return pickle.loads(_parsed[version])


def interpolation_map(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
    """Return the table of choices, or None if no default reads it."""
    needed = any(not default.is_self() and default.is_interpolation() for default in defaults)
    return _interpolation_map(overrides, defaults, self_added) if needed else None


def splits(config: DictConfig, name: str) -> Splits:
    """Return the data of a plan."""
    if config.get("_target_") != "rlmods.data.Arithmetic":
        return _load_splits(config, name)
    try:
        settings = repr(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException:  # the original has the message
        return _load_splits(config, name)
    if settings not in _splits:
        loaded = _load_splits(config, name)
        if len(_splits) == 4:
            _splits.clear()
        _splits[settings] = loaded
    return _splits[settings]
