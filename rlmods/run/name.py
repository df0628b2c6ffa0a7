"""The default run directory."""

from __future__ import annotations

from datetime import datetime

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf


def default_run_dir(name: str) -> str:
    """Return `runs/dapo-20260101-120000`; under `-m`, the sweep's directory and the number of the job."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        hydra = HydraConfig.get()
        return f"{hydra.sweep.dir}/{hydra.sweep.subdir}"
    return f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"


def register() -> None:
    """Register the OmegaConf resolver `${default_run_dir:NAME}`."""
    OmegaConf.register_new_resolver("default_run_dir", default_run_dir, use_cache=True, replace=True)
