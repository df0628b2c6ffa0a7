"""What is written about a run, without the passwords and keys in its settings."""

import os
import re
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.base import Container
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

_SCHEME = r"[A-Za-z0-9+.-]*://"
_URL = re.compile(rf"({_SCHEME})((?:(?!['\",]*{_SCHEME})\S)*)")
"""A URL up to white space or the next URL."""
_CLOSING = re.compile(r"['\"\]),]*$")
"""Quotes and brackets after a URL in an override."""
MIN_LENGTH = 4
"""Length from which a value of the environment is replaced in messages; shorter ones are part of
ordinary words and numbers."""


environment_values: dict[str, str] = {}
"""Variables that settings have read with `${oc.env:NAME}` in this process."""


def clean(text: str) -> str:
    """Return a message with clean URLs, and with `${oc.env:NAME}` in place of the values that
    settings have read from the environment."""
    for name, value in environment_values.items():
        if len(value) >= MIN_LENGTH:
            text = text.replace(value, f"${{oc.env:{name}}}")
    return clean_urls(text)


def clean_urls(text: str) -> str:
    """Return a text whose URLs have no user name, password, query and fragment."""
    return _URL.sub(_clean_url, text)


def _clean_url(match: re.Match[str]) -> str:
    scheme, rest = match.groups()
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    port = host.rpartition(":")[2]
    if "@" in host:
        rest = rest[host.rindex("@") + 1 :]
    elif ":" in host and not re.match(r"\d+\b|$", port):
        # a password with `/`, `?` or `#`
        rest = rest[rest.rfind("@") + 1 :]
    kept = re.split(r"[?#]", rest, maxsplit=1)[0]
    closing = _CLOSING.findall(rest)[0] if len(kept) < len(rest) else ""
    return scheme + kept + closing


class _Environment:
    """Resolver of `${oc.env:NAME}`, as OmegaConf's own; records what it has read."""

    num_reads = 0

    def __call__(self, name: str, *default: str) -> str | None:
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


def as_yaml(config: DictConfig) -> str:
    """Return the configuration as YAML, resolved but for what depends on the environment, and
    without the secrets in URLs (`saved_form`)."""
    return OmegaConf.to_yaml(OmegaConf.create(saved_form(config)))


def _saved(node: Container) -> Any:
    if isinstance(node, ListConfig):
        return [_saved_value(node, i) for i in range(len(node))]
    return {key: _saved_value(node, key) for key in node}


def _saved_value(parent: Any, key: Any) -> Any:
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
