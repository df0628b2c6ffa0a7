"""Direct preference optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlmods.algo.offline import Offline
from rlmods.algo.optimizer_steps import Loss
from rlmods.distributed.collectives import all_gather
from rlmods.policy.base import Policy
from rlmods.preference.terms import imitation
from rlmods.ranking.pairs import better, gaps, right
from rlmods.training.metrics import Meter
from rlmods.training.preference_batch import collate_preferences, mismatched
from rlmods.training.reference import Reference
from rlmods.types import Experience, PreferenceBatch, Prompt, Totals, UserError


class DPO(Offline):
    """Make preferred responses likelier than the others, by a `preference` loss on the log-probabilities of whole responses; the reward
    model that this replaces is implicit in it (DPO, arXiv 2305.18290). Nothing is sampled but for validation.

    Reads `prompt.meta["candidates"]` and `["ranks"]`. The reference is the policy that training starts from.
    """

    groups: ClassVar[tuple[str, ...]] = (*Offline.groups, "rollout", "reward", "preference")
    recipe: ClassVar[dict[str, str]] = {"preference": "dpo"}
    column: ClassVar[str] = "candidates"
    needs_columns: ClassVar[tuple[str, ...]] = ("candidates",)

    def __init__(self, *, preference: Any, reference: str = "live", sft_coefficient: float = 0.0, **shared: Any) -> None:
        """
        Args:
            preference: loss of each prompt's log-probabilities.
            reference: `live` scores the rows of each iteration; `precomputed` those of the whole data once, and then frees its memory.
            sft_coefficient: weight of the imitation of the best response (RPO, arXiv 2404.19733).

        Raises:
            UserError: an unknown reference, a negative weight, a loss that needs the reference all along without it.
        """
        super().__init__(**shared)
        if reference not in ("live", "precomputed"):
            raise UserError(f"algo.reference={reference}: one of live, precomputed")
        if not sft_coefficient >= 0:
            raise UserError(f"algo.sft_coefficient={sft_coefficient}: must be at least 0")
        self.preference, self.precompute, self.sft_coefficient = preference, reference == "precomputed", sft_coefficient
        self.needs_kl = bool(getattr(preference, "needs_kl", False))
        if self.needs_kl and self.precompute:
            raise UserError("this preference loss scores new pairs of prompt and response all along: type algo.reference=live")
        self.reference = Reference(self.policy if preference.needs_reference else None)
        self.known: dict[str, Tensor] = {}
        """Reference log-probabilities of each prompt's candidates, by id, where they are precomputed."""
        self.kl = torch.zeros(())
        """KL(pi || pi_ref) of the optimizer step, where the loss asks for it."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        step = self.batch.prompts // self.trainer.world_size // self.batch.minibatches
        if self.needs_kl and step < 2:
            raise UserError(
                f"this preference loss reads responses to other prompts of the step, and a rank has {step}: raise batch.prompts"
            )
        if self.reference and self.precompute:
            data = self.trainer.datamodule.splits  # type: ignore[attr-defined]
            with self.trainer.precision_plugin.forward_context():
                self.known = self.precomputed([p for p in (*data.train, *self.validation_prompts) if self.column in p.meta])
            self.reference.release()

    # The rows

    def rows(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        rows = collate_preferences(prompts, self.policy).to(self.device)
        if not self.known:
            return self.referenced(rows)
        known = pad_sequence([self.known[prompt.id] for prompt in prompts], batch_first=True)
        return replace(rows, ref_logprobs=known.to(self.device))

    def referenced(self, rows: PreferenceBatch) -> PreferenceBatch:
        """The same rows with the reference's log-probabilities, where the loss needs them."""
        return replace(rows, ref_logprobs=self.score(rows, self.reference())) if self.reference else rows

    def precomputed(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """What the reference says of every candidate, by prompt id: each rank scores its share."""
        found: dict[str, Tensor] = {}
        for start in range(0, len(prompts), self.batch.prompts):
            batch = prompts[start : start + self.batch.prompts]
            mine = batch[self.global_rank :: self.trainer.world_size]
            scored = self.score(collate_preferences(mine or batch[:1], self.policy).to(self.device), self.reference()).cpu()
            found |= {prompt.id: row[: len(prompt.meta["candidates"])] for prompt, row in zip(mine, scored, strict=False)}
        return {name: row for part in all_gather(found) for name, row in part.items()}

    @torch.no_grad()
    def score(self, rows: PreferenceBatch, policy: Policy) -> Tensor:
        """Log-probability of each response [P, K]."""
        out = torch.zeros(rows.rank.shape, device=self.device)
        for micro, chosen in self.microbatches(rows):
            out[chosen] = summed(policy, micro)[: len(chosen)]
        return out

    # The optimizer step

    def update(self, batch: Experience | PreferenceBatch, *more: tuple[Experience | PreferenceBatch, Loss]) -> None:
        if self.needs_kl:
            assert isinstance(batch, PreferenceBatch)
            self.kl = self.divergence(batch)
            self.meter.mean("train/kl_ref", self.kl)
        super().update(batch, *more)

    def divergence(self, batch: PreferenceBatch) -> Tensor:
        """max(0, mean of log pi / pi_ref) over responses to other prompts: an estimate of KL(pi || pi_ref) over all ranks."""
        strangers = mismatched(batch, self.policy.context_length).to(self.device)
        ratios, present = self.score(strangers, self.policy) - self.score(strangers, self.reference()), strangers.mask.any(2)
        total, count = self.across_ranks(torch.stack([ratios[present].sum(), present.sum()]))
        mean: Tensor = total / count.clamp(min=1)
        return mean.clamp(min=0).float()

    def loss(self, micro: PreferenceBatch, totals: Totals) -> Tensor:
        logprobs, num_tokens = summed(self.policy, micro), micro.mask.sum(2)
        more = {"kl": self.kl} if self.needs_kl else {}
        each: Tensor = self.preference(logprobs, micro.ref_logprobs, num_tokens, micro.rank, **more)
        if self.sft_coefficient:
            each = each + self.sft_coefficient * imitation(logprobs, num_tokens, micro.rank)
        present = num_tokens > 0
        pairs, gap = better(micro.rank, present), gaps(self.preference.reward(logprobs, micro.ref_logprobs, num_tokens), present)
        self.meter.mean("train/loss", each, present.any(1))
        self.meter.mean("train/reward_margin", gap, pairs)
        self.meter.mean("train/pair_accuracy", right(gap), pairs)
        self.meter.mean("train/chosen_logprob", logprobs, present & (micro.rank == 0))
        self.meter.mean("train/rejected_logprob", logprobs, present & (micro.rank > 0))
        return each.sum() / totals.sequences

    def measure(self, rows: PreferenceBatch) -> dict[str, float]:
        meter, present = Meter(self.device), rows.mask.any(2)
        reward = self.preference.reward(self.score(rows, self.policy), rows.ref_logprobs, rows.mask.sum(2))
        meter.mean("val/pair_accuracy", right(gaps(reward, present)), better(rows.rank, present))
        return meter.compute()


def summed(policy: Policy, rows: PreferenceBatch) -> Tensor:
    """log pi(y | x) of each response [P, K]: the sum over its tokens, the prompt's left out; 0 where there is none."""
    logprobs: Tensor = policy(rows.tokens.flatten(0, 1), rows.mask.flatten(0, 1)).logprobs
    return logprobs.sum(1).view(rows.rank.shape)
