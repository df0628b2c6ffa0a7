"""`config.yaml` of a run, which may be of somebody else: its text, if parsing it takes bounded time
and memory."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rlmods.errors import UserError

MAX_BYTES = 500_000
MAX_NESTING = 100
"""Levels of mappings and lists."""
NUMBER = re.compile(r"[-+]?[0-9a-fob_:]{1000,}|[-+]?0x[0-9a-f_]{1000,}", re.IGNORECASE)
"""Whole numbers with so many digits that Python does not print them. YAML has some in base 60, with
colons."""


def read_config(path: Path) -> str:
    """Return the text of a `config.yaml`.

    Raises:
        UserError: it cannot be read, is no mapping in YAML, is larger than `MAX_BYTES` or nested
        more than `MAX_NESTING` times, has a
            number of 1000 digits, or has aliases, of which few expand to settings without bound.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES} bytes: give another run")
        depth = 0
        for event in yaml.parse(content, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"{path}: has YAML aliases, which no run writes: give another run")
            if isinstance(event, yaml.ScalarEvent) and NUMBER.fullmatch(event.value):
                raise UserError(
                    f"{path}: has a number of {len(event.value)} digits: give another run"
                )
            if (
                depth == 0
                and isinstance(event, yaml.NodeEvent)
                and not isinstance(event, yaml.MappingStartEvent)
            ):
                raise UserError(f"{path}: holds no settings: give another run")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > MAX_NESTING:
                raise UserError(
                    f"{path}: is nested more than {MAX_NESTING} times: give another run"
                )
        return content.decode()
    except (yaml.YAMLError, OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read ({' '.join(str(error).split())[:120]}): give another run"
        ) from error
