"""Float16 training with scaled losses."""

from collections.abc import Callable
from typing import Any

from lightning import LightningModule
from lightning.pytorch.plugins import MixedPrecision, Precision
from torch.amp import GradScaler
from torch.optim import Optimizer

from rlmods.errors import UserError


class ScaledFloat16(MixedPrecision):
    """`trainer.precision=16-mixed`: losses are multiplied by a scale before backward, because small
    gradients are 0 in float16 (arXiv:1710.03740).

    The scale begins at 65536. It is halved after an optimizer step whose gradients overflow, and
    doubled after 2000 steps in a row without one (`torch.amp.GradScaler`). Checkpoints hold it."""

    scaler: GradScaler

    def __init__(self, device: str) -> None:
        super().__init__("16-mixed", device)
        self._is_updated = False

    def optimizer_step(  # type: ignore[override]
        self,
        optimizer: Optimizer,
        model: LightningModule,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> Any:
        # `TrainStep` has unscaled the gradients before it clipped them, and drops the overflows
        if not self._is_updated:
            raise UserError(
                "trainer.precision=16-mixed needs optimizer steps by `TrainStep`, which unscales "
                "gradients: type trainer.precision=32-true"
            )
        self._is_updated = False
        return Precision.optimizer_step(self, optimizer, model, closure, **kwargs)

    @property
    def scale(self) -> float:
        """Factor of the losses."""
        return self.scaler.get_scale()

    def update(self, *, keep: bool) -> bool:
        """End an optimizer step after its gradients were unscaled. Return True if they overflowed;
        the scale is then lower.

        A scale of 1 or less stays: gradients that are not finite then are so without it. `keep`:
        the scale stays, because the loss itself is not finite."""
        self._is_updated = True
        before = self.scale
        self.scaler.update()
        after = self.scale
        if after < before and (keep or before <= 1):
            self.scaler.update(before)
            return False
        return after < before
