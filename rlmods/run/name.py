"""Names of run directories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime

from rlmods.run.secrets import clean

MAX_NAME_LENGTH = 120
"""Characters of a member's directory; file systems allow 255."""


def default_run_dir(name: str) -> str:
    """Return `runs/dapo-20260101-120000`; under `-m`, the directory of the member in the directory
    of the sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        hydra = HydraConfig.get()
        return f"{hydra.sweep.dir}/{hydra.sweep.subdir}"
    return f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"


def member_name(overrides: Sequence[str]) -> str:
    """Return the name of the directory of a sweep's member: its overrides, sorted,
    `ratio=symmetric,seed=1`.

    Characters that are special in paths or shells become `-`, and a name longer than
    `MAX_NAME_LENGTH` is cut; a hash of the overrides then keeps names apart."""
    typed = ",".join(sorted(clean(str(override)) for override in overrides)) or "default"
    name = re.sub(r"[^\w.=,+@-]", "-", typed, flags=re.ASCII)
    if name == typed and len(name) <= MAX_NAME_LENGTH and not name.startswith("."):
        return name
    digest = hashlib.sha256(typed.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME_LENGTH - 9].lstrip('.')}-{digest}"


def register() -> None:
    """Register the OmegaConf resolvers `${default_run_dir:NAME}` and `${member_name:OVERRIDES}`."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver(
        "default_run_dir", default_run_dir, use_cache=True, replace=True
    )
    OmegaConf.register_new_resolver("member_name", member_name, replace=True)
