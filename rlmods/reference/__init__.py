"""Reference models: the distribution from which a KL divergence is measured, and the base of
preference losses."""

from rlmods.reference.model import Model
from rlmods.reference.start_policy import StartPolicy

__all__ = ["Model", "StartPolicy"]
