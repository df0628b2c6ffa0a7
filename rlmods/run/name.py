"""Names of run directories."""

import hashlib
import os
import re
from collections.abc import Sequence
from datetime import datetime

from rlmods.run.secrets import clean

MAX_NAME_LENGTH = 120
"""Characters of a member's directory; file systems allow 255."""
SWEPT = "RLMODS_SWEPT"
"""Environment variable that holds the keys of the overrides in which the members of a sweep differ,
separated by spaces. The worker processes of launchers inherit it. Without it, all overrides are
taken to differ."""


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
    """Return the name of the directory of a sweep's member: `ratio=symmetric,seed=1`, its overrides
    in which members differ."""
    return _folder_name([text for text in map(str, overrides) if _is_swept(text)])


def sweep_dir(overrides: Sequence[str]) -> str:
    """Return the default directory of a sweep: `runs/sweep/algo=dapo`, the overrides that its
    members share."""
    shared = [text for text in map(str, overrides) if not _is_swept(text)]
    return f"runs/sweep/{_folder_name(shared)}" if shared else "runs/sweep"


def _is_swept(override: str) -> bool:
    keys = os.environ.get(SWEPT, "").split()
    return not keys or override.partition("=")[0] in keys


def _folder_name(overrides: Sequence[str]) -> str:
    """Return overrides, sorted, as the name of a folder.

    Characters that are special in paths or shells become `-`, and a name longer than
    `MAX_NAME_LENGTH` is cut; a hash of the overrides then keeps names apart."""
    typed = ",".join(sorted(map(clean, overrides))) or "default"
    name = re.sub(r"[^\w.=,+@-]", "-", typed, flags=re.ASCII)
    if name == typed and len(name) <= MAX_NAME_LENGTH and not name.startswith("."):
        return name
    digest = hashlib.sha256(typed.encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME_LENGTH - 9].lstrip('.')}-{digest}"


def register() -> None:
    """Register the OmegaConf resolvers `${default_run_dir:NAME}`, `${member_name:OVERRIDES}` and
    `${sweep_dir:OVERRIDES}`."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver(
        "default_run_dir", default_run_dir, use_cache=True, replace=True
    )
    OmegaConf.register_new_resolver("member_name", member_name, replace=True)
    OmegaConf.register_new_resolver("sweep_dir", sweep_dir, replace=True)
