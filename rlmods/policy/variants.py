"""How often torch.compile may compile one function."""

from torch._dynamo import config

MAX_VARIANTS = 64
"""Number of times: with and without gradients, for one row and for several, in train and eval mode,
with another active adapter, for networks with other heads. Other sizes are variables."""


def limit_variants() -> None:
    """Let compiling a function or class more than `MAX_VARIANTS` times raise
    `torch._dynamo.exc.FailOnRecompileLimitHit` in this process. torch would else go on without
    compiling, after 8 times."""
    config.recompile_limit = max(config.recompile_limit, MAX_VARIANTS)
    config.fail_on_recompile_limit_hit = True
