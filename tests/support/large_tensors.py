"""Count the large tensors that exist at once."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargeTensors(TorchDispatchMode):
    """Record in `peak` the largest number of tensors of at least `numel` float32 elements that
    operations in the block made and that existed at once. Views count once."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.num_bytes, self.alive, self.peak = 4 * numel, set[int](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(outputs) if isinstance(x, Tensor)):
            if (
                storage.nbytes() >= self.num_bytes
                and (address := storage.data_ptr()) not in self.alive
            ):
                self.alive.add(address)
                weakref.finalize(storage, self.alive.discard, address)
        self.peak = max(self.peak, len(self.alive))
        return outputs
