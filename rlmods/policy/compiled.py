"""torch.compile of transformer blocks."""

from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from transformers import AttentionInterface

from rlmods.distributed.sharding import blocks
from rlmods.policy.packing import IMPLEMENTATION, packed_attention

BACKEND = "inductor"
MAX_VARIANTS = 64
"""Number of times that a class of modules may be compiled: with and without gradients, for one row
and for several, in train and eval mode, with another active adapter. Sizes are variables."""


def compile_blocks(network: nn.Module) -> None:
    """Compile the parts of each block (attention, feed-forward layer, norms) when they first run,
    in place. Names of modules and parameters stay.

    Hooks of a block (FSDP2) and gradient checkpointing act around its parts, and a part is compiled
    once for all blocks. `packed_attention` itself, whose calls depend on the rows, runs as it is.

    After this call, compiling a class of modules more than `MAX_VARIANTS` times raises
    `torch._dynamo.exc.FailOnRecompileLimitHit` in this process. torch would else go on without
    compiling."""
    config.recompile_limit = max(config.recompile_limit, MAX_VARIANTS)
    config.fail_on_recompile_limit_hit = True
    attention: Any = torch.compiler.disable(packed_attention)  # type: ignore[no-untyped-call]
    AttentionInterface.register(IMPLEMENTATION, attention)
    for block in blocks(network):
        for part in block.children():
            part.compile(dynamic=True, backend=BACKEND)
