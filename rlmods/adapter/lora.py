"""Low-rank adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlmods.needs import AdapterNeeds
from rlmods.policy import AdaptedPolicy, Policy
from rlmods.policy.adapted import require_peft
from rlmods.settings.bounds import Count, Positive, bounded, check_bounds


@dataclass(frozen=True)
@bounded("adapter")
class LoRA:
    """LoRA: `h = W x + scale B A x`, where W is frozen, and A [rank, in] and B [out, rank] are
    trained (arXiv 2106.09685).

    A reference policy needs no second model. There is no LoRA dropout, because log-probabilities
    must be deterministic."""

    rank: Count = 16
    """Rank of B A."""
    alpha: Positive = 32
    """scale = alpha / rank."""
    rslora: bool = False
    """scale = alpha / sqrt(rank), so that large ranks learn as fast as small ones (arXiv
    2312.03732)."""
    targets: str | Sequence[str] = "all-linear"
    """Names of the adapted layers ([q_proj,v_proj]), or `all-linear`: all linear layers except the
    output layer."""
    init: Literal["default", "gaussian"] = "default"
    """Initialisation of A: default (uniform) or gaussian. B is 0 at first, so that training starts
    from the base."""

    needs: ClassVar[AdapterNeeds] = AdapterNeeds(freezes=True)

    def __post_init__(self) -> None:
        rules = {
            "targets": (
                self.targets == "all-linear"
                or (not isinstance(self.targets, str) and len(self.targets) > 0),
                "all-linear or a list of names: 'adapter.targets=[q_proj,v_proj]'",
            ),
        }
        check_bounds(self, "adapter", rules)
        require_peft("adapter=lora")

    def __call__(self, policy: Policy) -> Policy:
        """Add an adapter to the policy, or continue with the one it was loaded with.

        Raises:
            UserError: the model has no module of a given name, or the loaded adapter has other
            settings.
        """
        from peft import LoraConfig

        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=self.rank,
            lora_alpha=self.alpha,
            use_rslora=self.rslora,
            target_modules=self.targets if isinstance(self.targets, str) else list(self.targets),
            init_lora_weights=True if self.init == "default" else self.init,
        )
        if isinstance(policy, AdaptedPolicy):
            policy.check_config(config)
            return policy
        return AdaptedPolicy(policy, config)
