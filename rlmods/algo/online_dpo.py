"""Direct preference optimisation on the policy's own responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from rlmods.algo.batch import Batch
from rlmods.algo.comparison import stack
from rlmods.algo.dpo import DPO
from rlmods.evaluation import row
from rlmods.judge import rankings
from rlmods.protocols import Judge
from rlmods.types import Comparison, Prompt, Response, Scores


class OnlineDPO(DPO):
    """Sample, let a judge rank, make the better responses likelier than the worse ones, repeat (arXiv 2402.04792).

    Preferences stay about what the policy says today, where those of a data set are about what another policy said once. With
    `reference_every` the reference follows in rounds (iterative DPO, arXiv 2312.16682).
    """

    groups: ClassVar[tuple[str, ...]] = (*DPO.groups, "judge")
    samples_responses: ClassVar[bool] = True
    needs_columns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, judge: Judge, reference_every: int | None = None, **shared: Any) -> None:
        """
        Args:
            judge: ranks the responses to a prompt.
            reference_every: iterations after which the reference becomes the policy; None: never.
        """
        super().__init__(**shared)
        self.judge, self.reference_every = judge, reference_every

    @classmethod
    def rows_per_prompt(cls, batch: Batch) -> int:
        """A row holds all responses to a prompt."""
        return 1

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        """One batch of prompts, answered by the policy."""
        self.learn(self.ranked(prompts))
        self.finish_iteration()

    @torch.no_grad()
    def ranked(self, prompts: Sequence[Prompt]) -> Comparison:
        """Responses to each prompt with the judge's ranks. Of equal responses one stays; one that could not be judged leaves, and so do all
        responses to a prompt where none is better than another: nothing says whether they are good."""
        with self.timed("rollout"):
            responses = self.rollout.generate(prompts, samples=self.batch.samples, iteration=self.iteration)
        groups = [responses[i : i + self.batch.samples] for i in range(0, len(responses), self.batch.samples)]
        differing = [list({tuple(r.tokens): r for r in group}.values()) for group in groups]
        with self.timed("reward"):
            judged = rankings(self.judge, [(p, [r.text for r in group]) for p, group in zip(prompts, differing, strict=True)])
        ranks = [ranking for ranking, _ in judged]
        self.watch(responses, differing, ranks)
        known = [[(r, rank) for r, rank in zip(*pair, strict=True) if rank is not None] for pair in zip(differing, ranks, strict=True)]
        known = [pairs if len({rank for _, rank in pairs}) > 1 else [] for pairs in known]
        rows = stack(
            [list(group[0].prompt_tokens) for group in groups],
            [[list(r.tokens) for r, _ in pairs] or [[]] for pairs in known],
            [[rank for _, rank in pairs] or [0] for pairs in known],
            self.policy.pad_id,
        )
        with self.timed("score"):
            return self.referenced(rows.to(self.device))

    def watch(self, responses: list[Response], groups: list[list[Response]], ranks: list[list[int | None]]) -> None:
        """What was sampled, and how the judge found it."""
        told = [rank for ranking in ranks for rank in ranking]
        self.meter.total("train/responses", len(responses))
        self.meter.mean("train/response_tokens", torch.tensor([float(len(r.tokens)) for r in responses]))
        self.meter.mean("train/truncated_fraction", torch.tensor([float(r.finish == "length") for r in responses]))
        self.meter.mean("train/unique_fraction", sum(map(len, groups)) / len(responses))
        self.meter.mean("train/unjudged_fraction", torch.tensor([float(rank is None) for rank in told]))
        self.meter.mean("train/flat_group_fraction", torch.tensor([float(len(set(ranking) - {None}) < 2) for ranking in ranks]))
        said, scores = [r for group in groups for r in group], Scores([None] * len(told), columns={"rank": told})
        self.samples += [row(response, scores, i) | {"iteration": self.iteration + 1} for i, response in enumerate(said)]
        self.response_tokens += int(self.across_ranks(torch.tensor(sum(len(r.tokens) for r in responses))))

    def finish_iteration(self) -> None:
        super().finish_iteration()
        if self.frozen and self.reference_every and self.iteration % self.reference_every == 0:
            self.frozen[0].load_state_dict(self.policy.state_dict())

    def state(self) -> dict[str, Any]:
        moved = bool(self.frozen) and self.reference_every is not None
        return super().state() | ({"reference": self.frozen[0].state_dict()} if moved else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        if "reference" in state:
            self.frozen[0].load_state_dict(state["reference"])
