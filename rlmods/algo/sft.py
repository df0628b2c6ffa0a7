"""Supervised fine-tuning."""

from collections.abc import Callable, Sequence

from torch import Tensor

from rlmods.aggregation import TokenMean
from rlmods.algo.learner import Learner
from rlmods.policy.base import Policy
from rlmods.training.collate import sft_batch
from rlmods.training.meter import Meter
from rlmods.types import Experience, Prompt, Totals


class SFT(Learner):
    """Supervised fine-tuning (InstructGPT, arXiv:2203.02155, section 3.5): `-mean over response
    tokens of log pi(token | prompt, earlier tokens)`, EOS included. Reads
    `prompt.meta["response"]`."""

    config_groups = (
        *Learner.config_groups,
        "rollout",
        "environment",
        "reward",
    )
    needs_columns = ("response",)
    validation_column = "response"

    def rows(self, prompts: Sequence[Prompt]) -> Experience:
        return sft_batch(prompts, self.policy, self.iteration).to(self.device)

    def loss(self, micro: Experience, totals: Totals) -> Tensor:
        return sft_loss(self.policy, self.meter, "train")(micro, totals)

    def measure(self, rows: Experience) -> dict[str, float]:
        meter = Meter(self.device)
        loss = sft_loss(self.policy, meter, "val")
        for micro, _ in self.microbatches(rows):
            loss(micro, Totals(1, 1))
        return meter.compute()


def sft_loss(policy: Policy, meter: Meter, name: str) -> Callable[[Experience, Totals], Tensor]:
    """Return the loss `-sum over masked tokens of log pi / totals.tokens`.

    Args:
        name: the loss (nats per token) is logged as `<name>/loss`, the entropy as `<name>/entropy`.
    """

    def loss(micro: Experience, totals: Totals) -> Tensor:
        logprobs, entropy = policy(micro.tokens, micro.mask)[:2]
        meter.mean(f"{name}/loss", -logprobs, micro.mask)
        meter.mean(f"{name}/entropy", entropy, micro.mask)
        return -TokenMean()(logprobs, micro.mask, totals)

    return loss
