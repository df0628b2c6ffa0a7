"""Data types in training with `trainer.precision=bf16-mixed` or `16-mixed`: products in 16 bits,
all else in float32."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rlmods.advantage import GAE
from rlmods.aggregation import TokenMean
from rlmods.algo import DPO, SFT, Batch, Learner, PolicyGradient, ProcessRewardModel, RewardModel
from rlmods.critic import Separate, Shared
from rlmods.kl import Penalty
from rlmods.preference import Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.ratio import Clipped
from tests.support.tiny_setup import fit, learner

OFF_POLICY = {"batch": Batch(prompts=4, samples=4, minibatches=2)}
KL = {"kl": Penalty("k3", 0.1, "loss"), "entropy_coefficient": 0.01}
OFFLINE = {"rollout": None, "reward": None}
CASES: dict[str, tuple[type[Learner], dict[str, Any]]] = {
    "policy gradient": (PolicyGradient, OFF_POLICY | KL),
    "separate critic": (PolicyGradient, OFF_POLICY | {"critic": Separate(), "advantage": GAE()}),
    "shared critic": (PolicyGradient, OFF_POLICY | {"critic": Shared(), "advantage": GAE()}),
    "SFT": (SFT, {}),
    "DPO": (DPO, {"preference": Sigmoid()}),
    "reward model": (RewardModel, OFFLINE | {"ranking": BradleyTerry()}),
    "process reward model": (ProcessRewardModel, OFFLINE),
}


class Dtypes:
    """Types of floating-point tensors by where they were seen."""

    def __init__(self) -> None:
        self.seen: dict[str, set[torch.dtype]] = {}

    def add(self, where: str, *values: Any) -> None:
        found = {
            x.dtype for x in tree_leaves(values) if isinstance(x, Tensor) and x.is_floating_point()
        }
        self.seen.setdefault(where, set()).update(found)

    def watch(self, where: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose arguments and result are recorded."""

        def watched(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            self.add(
                where,
                args,
                options,
                [getattr(result, f.name) for f in fields(result)]
                if is_dataclass(result)
                else result,
            )
            return result

        return watched


def trained(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, set[torch.dtype]]:
    """Train one iteration in mixed precision, and return the types by where they were seen."""
    kind, parts = CASES[name]
    dtypes, made = Dtypes(), learner(kind, **parts)
    for part in (Clipped, TokenMean, GAE, Penalty, Sigmoid, BradleyTerry):
        monkeypatch.setattr(part, "__call__", dtypes.watch(part.__name__, part.__call__))

    class AdamW(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            parameters = [p for group in self.param_groups for p in group["params"]]
            dtypes.add("gradients", [p.grad for p in parameters])
            result = super().step(closure)
            dtypes.add("weights", parameters)
            dtypes.add("optimizer", list(self.state.values()))
            return result

    made.optimizer = lambda groups: AdamW(groups, lr=1e-3)
    backward = made.manual_backward
    made.manual_backward = lambda loss, *args, **options: (
        dtypes.add("loss", loss),
        backward(loss, *args, **options),
    )
    for network in made.networks.values():
        network.register_forward_hook(lambda module, args, output: dtypes.add("outputs", output))
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(
                    lambda module, args, output: dtypes.add("layers", output)
                )
    fit(made, 1, precision=precision)
    return dtypes.seen


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "bf16-mixed") for name in CASES), ("separate critic", "16-mixed")],
)
def test_all_but_products_has_32_bits(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = trained(name, precision, monkeypatch)
    half = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}[precision]
    assert half in seen.pop("layers")
    assert {"outputs", "loss", "gradients", "weights", "optimizer"} <= seen.keys()
    if CASES[name][0] is PolicyGradient:
        assert {"Clipped", "TokenMean"} <= seen.keys()
    for where, dtypes in seen.items():
        assert dtypes, where
        assert dtypes <= {torch.float32, torch.float64}, where
