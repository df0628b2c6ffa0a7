"""Where a run goes when nobody says."""

from __future__ import annotations

from datetime import datetime

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf


def default_run_dir(name: str) -> str:
    """`runs/dapo-20260101-120000`; under `-m`, the sweep's own directory and the number of the job."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        hydra = HydraConfig.get()
        return f"{hydra.sweep.dir}/{hydra.sweep.subdir}"
    return f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"


def register() -> None:
    """Make `${default_run_dir:NAME}` known to configurations."""
    OmegaConf.register_new_resolver("default_run_dir", default_run_dir, use_cache=True, replace=True)
