"""Periodic training of the reward models on judged responses of the current policy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from rlmods.distributed.collectives import all_gather, broadcast_parameters
from rlmods.ops import pack
from rlmods.policy.scalar import ScalarModel
from rlmods.protocols import Judge
from rlmods.ranking.pairs import is_better, pair_correctness, pairwise_differences
from rlmods.training.checkpoint import reshard
from rlmods.training.extensions.base import Extension
from rlmods.training.meter import Meter
from rlmods.training.preferences import (
    PreferenceBatch,
    candidate_scores,
    collate_preferences,
    group_by_prompt,
    rank_responses,
)
from rlmods.training.settings import IterativeGRPOSettings
from rlmods.types import Prompt, Response, Scores

GENERATOR = 1_000_001
"""Purpose of the random numbers, for `generator`. Epochs are smaller numbers."""
MAX_HISTORY = 10_000
"""Number of older rankings that are kept: a checkpoint does not grow with the run."""


class RewardModelRefresh(Extension):
    """Collect a judge's rankings of the policy's responses and, at the end of each round, train the
    reward models on them together with a fraction of older rankings (a tenth in DeepSeekMath,
    arXiv:2402.03300, algorithm 1).

    A reward model is reliable on responses like those it was trained on, and the policy moves away
    from them."""

    def __init__(
        self,
        networks: Callable[[], Sequence[ScalarModel]],
        judge: Judge,
        ranking: Any,
        settings: IterativeGRPOSettings,
    ) -> None:
        """
        Args:
            networks: the reward models, loaded on the first call.
            ranking: loss of each prompt's scores.
            settings: with `reference_every`, the iterations of a round.
        """
        assert settings.reference_every is not None  # checked by a rule
        self.networks = networks
        self.judge = judge
        self.ranking = ranking
        self.settings = settings
        self.every = settings.reference_every
        self.fresh: list[Prompt] = []
        """Rankings of this round on this rank, in `meta`."""
        self.history: list[Prompt] = []
        """The latest rankings of earlier rounds on all ranks."""
        self.num_judged = 0
        """Prompts of this iteration whose responses were judged on this rank."""
        self.trained = False
        """True once the reward models have been trained."""

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        loop = self.loop
        in_iteration = -(-self.settings.refresh_prompts // self.every)
        num_prompts = -(-in_iteration // loop.ranks.world_size)
        with loop.timer("judge"):
            groups = group_by_prompt(responses, loop.batch.samples)
            chosen = groups[: num_prompts - self.num_judged]
            self.num_judged += len(chosen)
            self.collect(chosen, loop.meter)

    def before_iteration_end(self) -> None:
        loop = self.loop
        self.num_judged = 0
        if (loop.iteration + 1) % self.every == 0:
            with loop.timer("refresh"):
                metrics = self.end_round(loop.generator(GENERATOR), loop.batch.padded_budget)
            for name, value in metrics.items():
                loop.meter.mean(f"train/reward_model/{name}", value)

    def collect(self, groups: Sequence[Sequence[Response]], meter: Meter) -> None:
        """Rank the distinct responses to each prompt, and keep the rankings in which one response
        is better than another."""
        for group in rank_responses(self.judge, groups, meter):
            if not group.preferences:
                continue
            responses = [response for response, _ in group.preferences]
            meta = {
                "candidates": tuple(response.text for response in responses),
                "ranks": tuple(rank for _, rank in group.preferences),
                "finished": tuple(response.finish == "stop" for response in responses),
            }
            asked = responses[0].prompt
            row = Prompt(id=asked.id, text=asked.text, messages=asked.messages, meta=meta)
            self.fresh.append(row)

    def end_round(self, generator: torch.Generator, token_budget: int) -> dict[str, float]:
        """Train on the rankings of the round. Every rank makes the same steps on the rankings of
        all ranks.

        Returns metrics: `pairs`, `pair_accuracy` before training, `replayed_fraction`, `loss`."""
        fresh = [row for rank in all_gather(self.fresh) for row in rank]
        self.fresh = []
        if not fresh:
            return {"pairs": 0.0}
        replay = self.settings.refresh_replay
        num_older = round(replay * (len(fresh) / (1 - replay)))
        order = torch.randperm(len(self.history), generator=generator)
        older = [self.history[i] for i in order[:num_older].tolist()]
        self.history = [*self.history, *fresh][-MAX_HISTORY:]
        metrics = [
            self.fit(network, fresh, older, generator, token_budget) for network in self.networks()
        ]
        self.trained = True
        mean = {name: sum(x[name] for x in metrics) / len(metrics) for name in metrics[0]}
        return mean | {"replayed_fraction": len(older) / (len(fresh) + len(older))}

    def fit(
        self,
        network: ScalarModel,
        fresh: list[Prompt],
        older: list[Prompt],
        generator: torch.Generator,
        token_budget: int,
    ) -> dict[str, float]:
        """Train `epochs` passes over the rankings, then shift the scores so that the fresh
        responses have mean 0."""
        num_pairs, num_correct, _ = self.evaluate(network, fresh, token_budget)
        rows = [*fresh, *older]
        losses: list[float] = []
        network.requires_grad_(True)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=self.settings.refresh_lr, weight_decay=0.0
        )
        for _ in range(self.settings.refresh_epochs):
            order = torch.randperm(len(rows), generator=generator)
            for indices in torch.split(order, self.settings.refresh_rows):
                optimizer.zero_grad()
                chosen = [rows[i] for i in indices.tolist()]
                losses.append(self.accumulate(network, chosen, token_budget))
                clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
        network.requires_grad_(False)
        for parameter in network.parameters():
            parameter.grad = None
        broadcast_parameters(network)
        network.metadata["offset"] = self.evaluate(network, fresh, token_budget)[2]
        return {
            "pairs": num_pairs,
            "pair_accuracy": num_correct / max(1.0, num_pairs),
            "loss": sum(losses) / len(losses),
        }

    def accumulate(self, network: ScalarModel, rows: Sequence[Prompt], token_budget: int) -> float:
        """Add the gradients of the mean loss of these rankings, and return it."""
        total = 0.0
        for batch in batches(network, rows, token_budget):
            scores = candidate_scores(network, batch)
            losses = self.ranking(scores, batch.rank, batch.present, None)
            loss = losses.sum() / len(rows)
            loss.backward()
            total += float(loss.detach())
        return total

    @torch.no_grad()
    def evaluate(
        self, network: ScalarModel, rows: Sequence[Prompt], token_budget: int
    ) -> tuple[float, float, float]:
        """Return the number of ranked pairs, the number of them that a reward model orders alike
        (ties count half), and its mean score."""
        num_correct = num_pairs = total = 0.0
        count = 0
        for batch in batches(network, rows, token_budget):
            scores = candidate_scores(network, batch)
            pairs = is_better(batch.rank, batch.present)
            correct = pair_correctness(pairwise_differences(scores, batch.present))
            num_correct += float(correct[pairs].sum())
            num_pairs += float(pairs.sum())
            total += float(scores[batch.present].double().sum())
            count += int(batch.present.sum())
        return num_pairs, num_correct, total / max(1, count)

    # Checkpoint

    def state_dict(self) -> dict[str, Any]:
        networks = self.networks() if self.trained else ()
        return {
            "history": list(map(asdict, self.history)),
            "trained": self.trained,
            "networks": [network.state_dict() for network in networks],
            "offsets": [network.metadata["offset"] for network in networks],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = [Prompt(**row) for row in state["history"]]
        self.trained = state["trained"]
        if self.trained:
            saved = zip(self.networks(), state["networks"], state["offsets"], strict=True)
            for network, weights, offset in saved:
                network.load_state_dict(weights)
                network.metadata["offset"] = offset

    def rank_state(self) -> dict[str, Any]:
        return {"fresh": list(map(asdict, self.fresh))}

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        rows = reshard([state["fresh"] for state in states], rank, world_size)
        self.fresh = [Prompt(**row) for row in rows]


def batches(
    network: ScalarModel, rows: Sequence[Prompt], token_budget: int
) -> Iterator[PreferenceBatch]:
    """Yield the rankings as tensors, by token budget."""
    batch = collate_preferences(rows, network)
    for part in batch.split(pack(batch.forward_tokens, token_budget)):
        yield part.to(network.device)
