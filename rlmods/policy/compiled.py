"""torch.compile of transformer blocks."""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from rlmods.distributed.sharding import blocks
from rlmods.policy.packing import FLEX_IMPLEMENTATION, IMPLEMENTATION, packed_attention
from rlmods.policy.variants import limit_variants

BACKEND = "inductor"


def compile_blocks(network: nn.Module) -> None:
    """Compile the parts of each block (attention, feed-forward layer, norms) when they first run,
    in place. Names of modules and parameters stay.

    Hooks of a block (FSDP2) and gradient checkpointing act around its parts, and a part is compiled
    once for all blocks. `packed_attention` itself, whose calls depend on the rows, runs as it is.

    After this call, compiling a class of modules too often raises (`limit_variants`)."""
    limit_variants()
    attention: Any = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    for name in (IMPLEMENTATION, FLEX_IMPLEMENTATION):
        AttentionInterface.register(name, attention)
    for block in blocks(network):
        for part in block.children():
            part.compile(dynamic=True, backend=BACKEND)
