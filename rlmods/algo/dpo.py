"""Direct preference optimisation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlmods.algo.learner import Learner
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError
from rlmods.needs import PreferenceNeeds, needs_of
from rlmods.policy.base import Policy
from rlmods.policy.modes import eval_mode, set_dropout
from rlmods.preference.terms import sft_loss
from rlmods.ranking.pairs import is_better, pair_correctness, pairwise_differences
from rlmods.training.frozen import FrozenPolicy
from rlmods.training.meter import Meter
from rlmods.training.preferences import PreferenceBatch, collate_preferences, shift_responses
from rlmods.training.settings import DPOSettings
from rlmods.training.train_step import Loss
from rlmods.types import Prompt, Totals


class DPO(Learner):
    """Make preferred responses likelier than the others with a `preference` loss on the
    log-probabilities of whole responses (DPO, arXiv:2305.18290). The reward model is implicit:
    `beta * log(pi / pi_ref)`. Responses are sampled for validation only.

    Reads `prompt.meta["candidates"]` and `["ranks"]`.
    """

    config_groups = (
        *Learner.config_groups,
        "reference",
        "rollout",
        "environment",
        "reward",
        "preference",
    )
    settings_type = DPOSettings
    needs_columns: ClassVar[tuple[str, ...]] = ("candidates",)
    validation_column = "candidates"

    def __init__(
        self, *, preference: Any, reference: Callable[[Policy], Policy], **learner: Any
    ) -> None:
        """
        Args:
            preference: loss of each prompt's log-probabilities.
            reference: loads the reference, given the policy.
            learner: arguments of `Learner`.

        Raises:
            UserError: a loss that needs the reference throughout training, with a precomputed
            reference.
        """
        super().__init__(**learner)
        self.preference = preference
        self.precompute = self.settings.reference == "precomputed"
        needs = needs_of(preference, PreferenceNeeds)
        self.needs_kl = needs.kl
        if self.needs_kl and self.precompute:
            raise UserError(
                "this preference loss needs the reference in every step: type algo.reference=live"
            )
        if needs.reference:
            self.reference = FrozenPolicy(reference(self.policy))
        if self.settings.dropout:  # the reference, copied before, has none
            set_dropout(self.policy, self.settings.dropout)
        self.precomputed: dict[str, Tensor] = {}
        """Reference log-probabilities of each prompt's candidates, by prompt id."""
        self.kl = torch.zeros(())
        """KL(pi || pi_ref) of the optimizer step, if the loss needs it."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        num_prompts = self.batch.prompts // self.ranks.world_size // self.batch.minibatches
        if self.needs_kl and num_prompts < 2:
            raise UserError(
                "this preference loss compares several prompts in a step, but a rank has "
                f"{num_prompts}: type a larger batch.prompts"
            )
        if self.reference is not None and self.precompute:
            data = self.trainer.datamodule.splits  # type: ignore[attr-defined]
            prompts = [p for p in (*data.train, *self.splits.val) if "candidates" in p.meta]
            with self.trainer.precision_plugin.forward_context():
                self.precomputed = self.precompute_ref_logprobs(prompts)
            self.reference.release()

    # Rows

    def rows(self, prompts: Sequence[Prompt]) -> PreferenceBatch:
        rows = collate_preferences(prompts, self.policy).to(self.device)
        if not self.precomputed:
            return self.add_ref_logprobs(rows)
        known = [self.precomputed[prompt.id] for prompt in prompts]
        ref_logprobs = pad_sequence(known, batch_first=True)
        return replace(rows, ref_logprobs=ref_logprobs.to(self.device))

    def add_ref_logprobs(self, rows: PreferenceBatch) -> PreferenceBatch:
        """Compute the reference's log-probabilities, if the loss needs them."""
        if self.reference is None or self.reference.is_released:
            return rows
        return replace(rows, ref_logprobs=self.score(rows, self.reference.policy))

    def precompute_ref_logprobs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Return the reference log-probabilities of all candidates, by prompt id. The ranks share
        the work."""
        assert self.reference is not None
        logprobs: dict[str, Tensor] = {}
        for start in range(0, len(prompts), self.batch.prompts):
            batch = prompts[start : start + self.batch.prompts]
            own_prompts = batch[self.ranks.rank :: self.ranks.world_size]
            rows = collate_preferences(own_prompts or batch[:1], self.policy).to(self.device)
            scores = self.score(rows, self.reference.policy).cpu()
            for prompt, row in zip(own_prompts, scores, strict=False):
                logprobs[prompt.id] = row[: len(prompt.meta["candidates"])]
        gathered: dict[str, Tensor] = {}
        for of_rank in all_gather(logprobs):
            gathered |= of_rank
        return gathered

    @torch.no_grad()
    def score(self, rows: PreferenceBatch, policy: Policy) -> Tensor:
        """Return the log-probability of each response [P, K], without dropout."""
        out = torch.zeros(rows.rank.shape, device=self.device)
        with eval_mode(policy):
            for micro, indices in self.microbatches(rows):
                out[indices] = sequence_logprobs(policy, micro)[: len(indices)]
        return out

    # Optimizer steps

    def train_step(self, minibatch: PreferenceBatch, *more: tuple[Any, Loss]) -> None:
        """Make one optimizer step; before it, estimate the KL if the loss needs it."""
        if self.needs_kl:
            self.kl = self.estimate_kl(minibatch)
            self.meter.mean("train/kl_ref", self.kl)
        super().train_step(minibatch, *more)

    def estimate_kl(self, batch: PreferenceBatch) -> Tensor:
        """Estimate KL(pi || pi_ref) as max(0, mean of log pi / pi_ref) over responses to other
        prompts, over all ranks (KTO)."""
        assert self.reference is not None
        pairs = shift_responses(batch, self.policy.context_length).to(self.device)
        log_ratio = self.score(pairs, self.policy) - self.score(pairs, self.reference.policy)
        present = pairs.mask.any(2)
        total, count = self.ranks.reduce(torch.stack([log_ratio[present].sum(), present.sum()]))
        mean: Tensor = total / count.clamp(min=1)
        return mean.clamp(min=0).float()

    def loss(self, micro: PreferenceBatch, totals: Totals) -> Tensor:
        logprobs = sequence_logprobs(self.policy, micro)
        num_tokens = micro.mask.sum(2)
        options = {"kl": self.kl} if self.needs_kl else {}
        ref_logprobs, rank = micro.ref_logprobs, micro.rank
        losses: Tensor = self.preference(logprobs, ref_logprobs, num_tokens, rank, **options)
        if self.settings.sft_coefficient:
            sft = sft_loss(logprobs, num_tokens, rank)
            losses = losses + self.settings.sft_coefficient * sft
        present = num_tokens > 0
        rewards = self.preference.reward(logprobs, ref_logprobs, num_tokens)
        pairs = is_better(rank, present)
        margins = pairwise_differences(rewards, present)
        self.meter.mean("train/loss", losses, present.any(1))
        self.meter.mean("train/reward_margin", margins, pairs)
        self.meter.mean("train/pair_accuracy", pair_correctness(margins), pairs)
        self.meter.mean("train/chosen_logprob", logprobs, present & (rank == 0))
        self.meter.mean("train/rejected_logprob", logprobs, present & (rank > 0))
        return losses.sum() / totals.sequences

    def measure(self, rows: PreferenceBatch) -> dict[str, float]:
        meter = Meter(self.device)
        logprobs = self.score(rows, self.policy)
        reward = self.preference.reward(logprobs, rows.ref_logprobs, rows.mask.sum(2))
        present = rows.mask.any(2)
        correct = pair_correctness(pairwise_differences(reward, present))
        meter.mean("val/pair_accuracy", correct, is_better(rows.rank, present))
        return meter.compute()


def sequence_logprobs(policy: Policy, rows: PreferenceBatch) -> Tensor:
    """Return log pi(y | x) of each response [P, K], the sum over its tokens; 0 for missing
    candidates."""
    logprobs: Tensor = policy(rows.tokens.flatten(0, 1), rows.mask.flatten(0, 1)).logprobs
    return logprobs.sum(1).view(rows.rank.shape)
