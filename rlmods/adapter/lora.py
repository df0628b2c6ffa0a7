"""Low-rank adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rlmods.policy import Policy
from rlmods.policy.injection import need_peft

INITS = {"default": True, "gaussian": "gaussian"}
"""How A is drawn; B is 0 at first, so that training starts from the base as it is."""


@dataclass(frozen=True)
class LoRA:
    """`h = W x + scale B A x`: W is frozen, A [rank, in] and B [out, rank] are trained (arXiv 2106.09685).

    The reference costs no second model. There is no dropout here, as in any log-probability of this house.
    """

    rank: int = 16
    """Of B A."""
    alpha: float = 32
    """scale = alpha / rank."""
    rslora: bool = False
    """scale = alpha / sqrt(rank), so that large ranks learn as fast as small ones (arXiv 2312.03732)."""
    targets: str | Sequence[str] = "all-linear"
    """Names of the layers that get one ([q_proj,v_proj]), or all linear ones but the output layer."""
    modules_to_save: Sequence[str] = ()
    """Names of modules that are trained in full beside the adapter, and saved with it."""
    init: str = "default"
    """How A is drawn: default (uniform) or gaussian. B is 0 at first."""

    freezes: ClassVar[bool] = True
    """Whether the weights below stay as they are."""

    def __post_init__(self) -> None:
        rules = {
            "rank": (isinstance(self.rank, int) and self.rank >= 1, "a whole number of at least 1"),
            "alpha": (self.alpha > 0, "above 0"),
            "targets": (self.targets == "all-linear" or (not isinstance(self.targets, str) and len(self.targets) > 0),
                        "all-linear or a list of names: 'adapter.targets=[q_proj,v_proj]'"),
            "modules_to_save": (not isinstance(self.modules_to_save, str), "a list of names: 'adapter.modules_to_save=[NAME]'"),
            "init": (self.init in INITS, f"one of {', '.join(INITS)}"),
        }  # fmt: skip
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise ValueError(f"adapter.{name}={getattr(self, name)}: must be {wanted}")
        need_peft("adapter=lora")

    def __call__(self, policy: Policy) -> Policy:
        """Put it on the policy, or train on with the one that the policy was loaded with.

        Raises:
            UserError: a name that the model does not have, or a loaded adapter of another shape.
        """
        from peft import LoraConfig

        return policy.with_adapter(
            LoraConfig(
                task_type="CAUSAL_LM",
                r=self.rank,
                lora_alpha=self.alpha,
                use_rslora=self.rslora,
                target_modules=self.targets if isinstance(self.targets, str) else list(self.targets),
                modules_to_save=list(self.modules_to_save) or None,
                init_lora_weights=INITS[self.init],
            )
        )
