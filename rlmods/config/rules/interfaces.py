"""Rules on the members that a part's protocol requires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass

from rlmods.branching import NoBranching
from rlmods.config.run_spec import RunSpec
from rlmods.environment import SingleTurn

MEMBERS = {
    "rollout": ("generate", "sync"),
    "environment": ("start", "max_turns", "max_tokens"),
    "kl": ("__call__", "coefficient", "where"),
}
"""Required members by group. Parts of other groups are called."""


def protocols(spec: RunSpec) -> Iterator[str]:
    for group, part in spec.parts.items():
        if isinstance(part, SingleTurn | NoBranching):
            continue
        required = MEMBERS.get(group, ("__call__",))
        missing = [member for member in required if not hasattr(part, member)]
        if missing:
            name = type(part).__name__
            yield (
                f"{spec.option(group)}: {name} has no {' and no '.join(missing)}; see "
                "rlmods/protocols.py"
            )
    rollout = spec.parts.get("rollout")
    if rollout is not None and not (is_dataclass(rollout) and hasattr(rollout, "temperature")):
        yield (
            f"{spec.option('rollout')}: must be a dataclass with a temperature, as validation "
            "samples with its own settings"
        )
