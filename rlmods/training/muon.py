"""Muon for hidden matrices, and AdamW for all other weights."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rlmods.distributed.sharding import full_tensor, shard_like
from rlmods.needs import OptimizerNeeds


class Muon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon) for groups in which `hidden` is True, and
    AdamW for all others: embeddings, output layer, norms, biases and value heads.

    For a matrix W [m, n] with gradient G, Muon keeps one moment M:

        M <- mu M + (1 - mu) G
        O = orthogonal((1 - mu) G + mu M)
        W <- (1 - lr weight_decay) W - lr s O

    `orthogonal` sets all singular values of a matrix to about 1, by five Newton-Schulz steps in
    bfloat16. Rounding of G is magnified where G has singular values near 0.

    All groups are in `param_groups`, so that a schedule, a checkpoint or another `lr` of one group
    works as with one optimizer. The steps are by `torch.optim.Muon` and `torch.optim.AdamW`."""

    needs: ClassVar[OptimizerNeeds] = OptimizerNeeds(hidden=True)

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        fused: bool | None = True,
    ) -> None:
        """
        Args:
            lr: learning rate of all groups without their own.
            weight_decay: decoupled weight decay of all groups without their own.
            momentum: mu.
            adjust_lr_fn: the scale s. match_rms_adamw: 0.2 sqrt(max(m, n)), which makes an update
            as large as in AdamW (Moonlight, arXiv:2502.16982, equation 4), so that both take one
            learning rate. original: sqrt(max(1, m / n)).
            betas: decay rates of the moments of AdamW.
            eps: added to the denominator of AdamW.
            fused: AdamW in one kernel.

        Raises:
            ValueError: a setting is out of range.
        """
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        muon = torch.optim.Muon(
            [{"params": []}], momentum=momentum, adjust_lr_fn=adjust_lr_fn, **common
        )
        adamw = torch.optim.AdamW([{"params": []}], betas=betas, eps=eps, fused=fused, **common)
        self._optimizers = {True: muon, False: adamw}
        super().__init__(params, common)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        optimizer = self._optimizers[param_group.get("hidden", False)]
        super().add_param_group({"hidden": False, **optimizer.defaults, **param_group})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if any(isinstance(x, DTensor) and group["hidden"] for x in group["params"]):
                self._step_shards(group)
                continue
            optimizer = self._optimizers[group["hidden"]]
            # at each step, because `load_state_dict` replaces both
            optimizer.state = self.state
            optimizer.param_groups = [group]
            optimizer.step()
        return loss

    @torch.no_grad()
    def _step_shards(self, group: dict[str, Any]) -> None:
        """Step sharded matrices one after the other, each whole on every rank: `torch.optim.Muon`
        would round sums of products to bfloat16 on each rank, and refuses a matrix with fewer rows
        than ranks."""
        muon = self._optimizers[True]
        for shard in group["params"]:
            if shard.grad is None:
                continue
            whole = nn.Parameter(full_tensor(shard))
            whole.grad = full_tensor(shard.grad)
            state = {name: full_tensor(x) for name, x in self.state[shard].items()}
            muon.state = defaultdict(dict, {whole: state})
            muon.param_groups = [group | {"params": [whole]}]
            muon.step()
            shard.copy_(shard_like(whole, shard))
            for name, x in muon.state[whole].items():
                self.state[shard][name] = shard_like(x, shard)
        muon.state = defaultdict(dict)  # frees the last matrix
