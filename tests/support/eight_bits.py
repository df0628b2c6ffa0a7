"""A module in the place of bitsandbytes, which tests do not install."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch


class AdamW8bit(torch.optim.Optimizer):
    """Has the settings of bitsandbytes' class and the tensors of its state, and changes nothing."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        min_8bit_size: int = 4096,
        is_paged: bool = False,
    ) -> None:
        self.min_8bit_size = min_8bit_size
        torch.zeros(1).tolist()  # as bitsandbytes does, which fails on the meta device
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for x in group["params"]:
                is_small = x.numel() < self.min_8bit_size
                dtype = torch.float32 if is_small else torch.uint8
                moments = {name: torch.zeros_like(x, dtype=dtype) for name in ("state1", "state2")}
                scales = {"qmap1": torch.zeros(256), "absmax1": torch.zeros(x.numel() // 256)}
                self.state[x] = {"step": 1} | moments | ({} if is_small else scales)


@pytest.fixture
def eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = ModuleType("bitsandbytes")
    package.optim = ModuleType("bitsandbytes.optim")
    package.optim.AdamW8bit = AdamW8bit
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", package.optim)
