"""Periodic training of the reward models on judged responses of the current policy."""

from __future__ import annotations

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
from rlmods.training.extensions.base import Extension
from rlmods.training.metrics import Meter
from rlmods.training.offenders import offender_pairs
from rlmods.training.preference_batch import candidate_scores, collate_preferences
from rlmods.training.rank_state import reshard
from rlmods.training.response_ranking import group_by_prompt, rank_responses
from rlmods.types import PreferenceBatch, Prompt, Response

GENERATOR = 1_000_001
"""Purpose of the random generator; epochs are below."""


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
        *,
        every: int,
        prompts: int,
        lr: float,
        epochs: int,
        rows: int,
        replay: float,
        offenders: float = 0.0,
    ) -> None:
        """
        Args:
            networks: the reward models, loaded on the first call.
            ranking: loss of each prompt's scores.
            every: iterations of a round.
            prompts: prompts judged in a round, the same number in each of its iterations.
            rows: prompts of one optimizer step.
            replay: fraction of older rankings among those trained on, below 1.
            offenders: fraction of pairs with offenders of the hacking monitor among them.
        """
        self.networks, self.judge, self.ranking = networks, judge, ranking
        self.every, self.lr, self.epochs, self.rows, self.replay, self.offender_fraction = (
            every,
            lr,
            epochs,
            rows,
            replay,
            offenders,
        )
        self.prompts_per_iteration = -(-prompts // every)
        self.fresh: list[Prompt] = []
        """Rankings of this round on this rank, in `meta`."""
        self.history: list[Prompt] = []
        """Rankings of earlier rounds on all ranks."""
        self.offenders: list[Prompt] = []
        """Pairs with offenders of the hacking monitor since the run began, on this rank."""
        self.trained = False
        """True once the reward models have been trained."""

    def on_responses(self, responses: Sequence[Response]) -> None:
        loop = self.loop
        with loop.timer("judge"):
            groups = group_by_prompt(responses, loop.batch.samples)
            self.collect(
                groups[: -(-self.prompts_per_iteration // loop.ranks.world_size)], loop.meter
            )

    def on_alert(self, offenders: Sequence[Mapping[str, Any]]) -> None:
        for pair in offender_pairs(offenders, self.loop.samples) if self.offender_fraction else ():
            better, worse = pair["candidates"]
            meta = {"candidates": (better["text"], worse["text"]), "ranks": (0, 1)}
            meta["finished"] = (better["finish"] == "stop", worse["finish"] == "stop")
            is_text = isinstance(pair["prompt"], str)
            question = {"text": pair["prompt"]} if is_text else {"messages": pair["prompt"]}
            offender = Prompt(id=pair["id"], meta=meta, **question)
            if offender not in self.offenders:  # several alerts may show the same response
                self.offenders.append(offender)

    def before_iteration_end(self) -> None:
        if (self.loop.iteration + 1) % self.every == 0:
            with self.loop.timer("refresh"):
                metrics = self.end_round(
                    self.loop.generator(GENERATOR), self.loop.batch.token_budget
                )
            for name, value in metrics.items():
                self.loop.meter.mean(f"train/reward_model/{name}", value)

    def collect(self, groups: Sequence[Sequence[Response]], meter: Meter) -> None:
        """Rank the distinct responses to each prompt, and keep the rankings in which one response
        is better than another."""
        for group in rank_responses(self.judge, groups, meter):
            if preferences := group.preferences:
                texts, ranks = (
                    tuple(r.text for r, _ in preferences),
                    tuple(rank for _, rank in preferences),
                )
                meta = {
                    "candidates": texts,
                    "ranks": ranks,
                    "finished": tuple(r.finish == "stop" for r, _ in preferences),
                }
                prompt = preferences[0][0].prompt
                self.fresh.append(
                    Prompt(id=prompt.id, text=prompt.text, messages=prompt.messages, meta=meta)
                )

    def end_round(self, generator: torch.Generator, token_budget: int) -> dict[str, float]:
        """Train on the rankings of the round. Every rank makes the same steps on the rankings of
        all ranks.

        Returns metrics: `pairs`, `pair_accuracy` before training, `replayed_fraction`,
        `offender_fraction` if there can be any, `loss`."""
        fresh = [row for rank in all_gather(self.fresh) for row in rank]
        self.fresh = []
        if not fresh:
            return {"pairs": 0.0}
        offenders = [row for rank in all_gather(self.offenders) for row in rank]
        total = len(fresh) / (1 - self.replay - self.offender_fraction)
        older = draw(self.history, round(self.replay * total), generator)
        offenders = (
            draw(offenders, round(self.offender_fraction * total), generator)
            if self.offender_fraction
            else []
        )
        self.history += fresh
        metrics = [
            self.fit(network, fresh, [*older, *offenders], generator, token_budget)
            for network in self.networks()
        ]
        self.trained = True
        mean = {name: sum(x[name] for x in metrics) / len(metrics) for name in metrics[0]}
        num_rows = len(fresh) + len(older) + len(offenders)
        mean["replayed_fraction"] = len(older) / num_rows
        return mean | (
            {"offender_fraction": len(offenders) / num_rows} if self.offender_fraction else {}
        )

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
        num_correct, num_pairs, _ = self.evaluate(network, fresh, token_budget)
        rows, losses = [*fresh, *older], list[float]()
        network.requires_grad_(True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=0.0)
        for _ in range(self.epochs):
            for indices in torch.split(torch.randperm(len(rows), generator=generator), self.rows):
                optimizer.zero_grad()
                total = 0.0
                for batch in batches(network, [rows[i] for i in indices.tolist()], token_budget):
                    loss = self.ranking(
                        candidate_scores(network, batch), batch.rank, batch.present, None
                    ).sum() / len(indices)
                    loss.backward()
                    total += float(loss.detach())
                clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                losses.append(total)
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

    @torch.no_grad()
    def evaluate(
        self, network: ScalarModel, rows: Sequence[Prompt], token_budget: int
    ) -> tuple[float, float, float]:
        """Return the number of correctly ordered pairs (ties count half), the number of pairs, and
        the mean score."""
        num_correct, num_pairs, total, count = 0.0, 0.0, 0.0, 0
        for batch in batches(network, rows, token_budget):
            scores, present = candidate_scores(network, batch), batch.present
            pairs = is_better(batch.rank, present)
            num_correct += float(
                pair_correctness(pairwise_differences(scores, present))[pairs].sum()
            )
            num_pairs += float(pairs.sum())
            total += float(scores[present].double().sum())
            count += int(present.sum())
        return num_correct, num_pairs, total / max(1, count)

    # Checkpoint

    def state_dict(self) -> dict[str, Any]:
        networks = self.networks() if self.trained else ()
        return {
            "history": [asdict(row) for row in self.history],
            "trained": self.trained,
            "networks": [network.state_dict() for network in networks],
            "offsets": [network.metadata["offset"] for network in networks],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history, self.trained = [Prompt(**row) for row in state["history"]], state["trained"]
        for network, weights, offset in zip(
            self.networks() if self.trained else (),
            state["networks"],
            state["offsets"],
            strict=True,
        ):
            network.load_state_dict(weights)
            network.metadata["offset"] = offset

    def rank_state(self) -> dict[str, Any]:
        return {
            "fresh": [asdict(row) for row in self.fresh],
            "offenders": [asdict(row) for row in self.offenders],
        }

    def load_rank_states(
        self, states: Sequence[Mapping[str, Any]], rank: int, world_size: int
    ) -> None:
        self.fresh = [
            Prompt(**row) for row in reshard([state["fresh"] for state in states], rank, world_size)
        ]
        self.offenders = [
            Prompt(**row)
            for row in reshard([state["offenders"] for state in states], rank, world_size)
        ]


def draw(rows: Sequence[Prompt], count: int, generator: torch.Generator) -> list[Prompt]:
    """Return `count` rows at random, without repetition; fewer if there are not enough."""
    return [rows[i] for i in torch.randperm(len(rows), generator=generator)[:count].tolist()]


def batches(
    network: ScalarModel, rows: Sequence[Prompt], token_budget: int
) -> Iterator[PreferenceBatch]:
    """Yield the rankings as tensors, by token budget."""
    batch = collate_preferences(rows, network)
    for indices in pack(batch.forward_tokens, token_budget):
        yield batch.select(indices).trim().to(network.device)
