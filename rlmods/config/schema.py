"""Registration of settings dataclasses with Hydra's config store.

`conf/train.yaml` and `conf/algo/*.yaml` include them by `/NAME@PACKAGE` in their defaults list: a
class `GKDSettings` is `gkd_settings`."""

import re
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore

from rlmods.training import settings

WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


SETTINGS: dict[str, type[Any]] = {
    WORD_START.sub("_", name).lower(): kind
    for name, kind in vars(settings).items()
    if is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == settings.__name__
}
"""Dataclass of each entry of the config store."""


def defaults(kind: type[Any]) -> dict[str, Any]:
    """Return the default value of each field."""
    return {field.name: field.default for field in fields(kind)}


for _name, _kind in SETTINGS.items():
    ConfigStore.instance().store(name=_name, node=defaults(_kind))
