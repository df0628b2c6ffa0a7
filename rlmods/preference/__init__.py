"""Preference losses on a policy's log-probabilities of preferred and rejected responses: DPO and
related methods."""

from rlmods.preference.ipo import IPO
from rlmods.preference.kto import KTO
from rlmods.preference.orpo import ORPO
from rlmods.preference.sigmoid import Sigmoid
from rlmods.preference.simpo import SimPO

__all__ = ["IPO", "KTO", "ORPO", "Sigmoid", "SimPO"]
