"""Settings as text: dotted keys of nested settings, and the parts of an override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

REACHING = (
    *("url", "urls", "tracking_uri", "key_variable"),
    *("cache", "folder", "dirpath", "default_root_dir", "save_dir"),
    *("function", "agent", "command", "env_id", "walls", "allow_pickle"),
)
"""Names of settings that send something or write it elsewhere, execute code, or weaken a
barrier."""


def leaves(node: object, key: str = "", *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each setting below a node. An empty group is a value.

    Args:
        key: dotted key of the node.
        lists: also descend into lists; the key of an item ends with its position.
    """
    items: Mapping[Any, Any] = {}
    if isinstance(node, Mapping):
        items = node
    elif lists and isinstance(node, list):
        items = dict(enumerate(node))
    if not items:
        yield key, node
    for name, value in items.items():
        yield from leaves(value, f"{key}.{name}" if key else str(name), lists=lists)


def readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key without keys of Hydra: the class of a part has the key of the
    part, and `_convert_` is left out."""
    found = {}
    for key, value in settings.items():
        parent, _, name = key.rpartition(".")
        if name != "_convert_":
            found[parent if name == "_target_" else key] = value
    return found


@dataclass(frozen=True)
class Override:
    """One override of the command line, `[+~]group[@package]=option` or `[+~]key=value`."""

    text: str
    """As it was typed."""
    name: str
    """The group or key in front of `@` and `=`."""
    key: str
    """Dotted key of the settings that it changes: the package if there is one, else `name`."""
    value: str | None
    """Text after `=`, None without one."""

    @classmethod
    def parse(cls, text: str) -> Override:
        """Split an override into its parts; the value is not interpreted."""
        left, equals, value = text.lstrip("+~").partition("=")
        name, at, package = left.partition("@")
        return cls(text, name, package if at else name, value if equals else None)

    @property
    def top(self) -> str:
        """Top-level key of the settings that it changes."""
        return self.key.split(".")[0]
