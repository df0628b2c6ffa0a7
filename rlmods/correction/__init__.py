"""Off-policy correction: weights of the objective where the sampler's distribution is not the
trainer's."""

from rlmods.correction.masked import Masked
from rlmods.correction.no_correction import NoCorrection
from rlmods.correction.truncated import Truncated

__all__ = ["Masked", "NoCorrection", "Truncated"]
