"""Reward of the greedy response as baseline."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlmods.rollout.order import generate_in_order
from rlmods.training.evaluation import with_settings
from rlmods.training.extensions.base import Extension
from rlmods.training.metrics import values_and_mask
from rlmods.types import Experience, Prompt


class GreedyBaseline(Extension):
    """Set `values` to the reward of the greedy response to each prompt, on every token of the
    responses to it (ReMax).

    Responses to a prompt whose greedy response is unscored have no baseline, and no loss."""

    def before_advantages(self, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        loop = self.loop
        greedy = with_settings(loop.rollout, temperature=0.0)
        with loop.timer("rollout"):
            with loop.timer.within("sync"):
                greedy.sync(loop.policy, iteration=loop.iteration)
            responses = generate_in_order(greedy, prompts, samples=1, iteration=loop.iteration)
        scores = loop.grade(responses)
        values, scored = values_and_mask(loop.scale(scores.values))
        loop.meter.mean("train/greedy_reward", values, scored)
        loop.meter.mean("train/greedy_unscored_fraction", (~scored).double())
        for name, count in scores.counts.items():
            loop.meter.sum(f"reward/{name}", count)

        def by_row(x: Tensor) -> Tensor:
            return x.to(loop.device).repeat_interleave(loop.batch.samples)[:, None]

        mask = batch.mask & by_row(scored)
        return replace(batch, mask=mask, values=torch.where(mask, by_row(values.float()), 0.0))
