"""Form in which a configuration is written to the files of a run."""

from __future__ import annotations

import os
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from rlmods.run.secrets import clean_urls, environment_values


class _Environment:
    """Resolver of `${oc.env:NAME}`, as OmegaConf's own; records what it has read."""

    num_reads = 0

    def __call__(self, name: str, *default: Any) -> str | None:
        self.num_reads += 1
        if name in os.environ:
            environment_values[name] = os.environ[name]
        value: str | None = oc.env(name, *default)
        return value


_environment = _Environment()
OmegaConf.register_new_resolver("oc.env", _environment, replace=True)


def saved_form(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as it may be written: resolved, with clean URLs. A value that
    depends on the environment (`${oc.env:NAME}`) stays an interpolation, also one that refers to
    such a setting. It is resolved again where the settings are composed again."""
    form: dict[str, Any] = _saved(config)
    return form


def _saved(node: Container) -> Any:
    """Return a container in its saved form."""
    if isinstance(node, ListConfig):
        return [_saved_value(node, i) for i in range(len(node))]
    return {key: _saved_value(node, key) for key in node}


def _saved_value(parent: Any, key: Any) -> Any:
    """Return one setting in its saved form."""
    node = parent._get_node(key)
    if not OmegaConf.is_interpolation(parent, key):
        value = parent[key] if not OmegaConf.is_missing(parent, key) else "???"
    else:
        text = clean_urls(str(node._value()))
        before = _environment.num_reads
        try:
            value = parent[key]
        except OmegaConfBaseException:
            return text
        if _environment.num_reads > before:
            return text
    if isinstance(value, Container):
        return _saved(value)
    return clean_urls(value) if isinstance(value, str) else value
