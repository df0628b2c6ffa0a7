"""A reward model that keeps up with the policy it judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from rlmods.distributed.collectives import broadcast_parameters
from rlmods.ops import pack
from rlmods.policy.scalar import ScalarModel
from rlmods.protocols import Judge
from rlmods.ranking.pairs import better, gaps, right
from rlmods.training.judging import judged
from rlmods.training.metrics import Meter
from rlmods.training.preference_batch import collate_preferences, scored
from rlmods.training.rank_state import reshard
from rlmods.types import PreferenceBatch, Prompt, Response


@dataclass
class Refresh:
    """Collects a judge's rankings of what the policy says, and trains the reward's networks on them, some older rankings among them
    (DeepSeekMath, arXiv 2402.03300, algorithm 1: a tenth).

    A reward model knows the answers it was trained on; where the policy has moved on to others, what it says of those is a guess.
    """

    networks: Callable[[], Sequence[ScalarModel]]
    """What is trained; called when first needed, as they load late."""
    judge: Judge
    ranking: Any
    """Loss of each prompt's scores."""
    lr: float
    epochs: int
    rows: int
    """Prompts of one optimizer step."""
    replay: float
    """Share of older rankings among those of a round, below 1."""
    token_budget: int
    fresh: list[Prompt] = field(default_factory=list, init=False)
    """Rankings of this round by this rank, in `meta`."""
    history: list[Prompt] = field(default_factory=list, init=False)
    """Those of earlier rounds by every rank."""
    trained: bool = field(default=False, init=False)

    def observe(self, groups: Sequence[Sequence[Response]], meter: Meter) -> None:
        """Have the different responses to each prompt ranked; those not judged, and prompts without a preference, are left out."""
        for group in judged(self.judge, groups, meter):
            if told := group.preferences:
                texts, order = tuple(r.text for r, _ in told), tuple(rank for _, rank in told)
                meta = {"candidates": texts, "ranks": order, "finished": tuple(r.finish == "stop" for r, _ in told)}
                prompt = told[0][0].prompt
                self.fresh.append(Prompt(id=prompt.id, text=prompt.text, messages=prompt.messages, meta=meta))

    def end_round(self, generator: torch.Generator, all_gather: Callable[[list[Prompt]], list[list[Prompt]]]) -> dict[str, float]:
        """Train on the round's rankings and begin the next round. Every rank takes the same steps on the rows of all.

        Returns metrics: `pairs`, `pair_accuracy` before training (how far the reward model had fallen behind), `replayed_fraction`, `loss`.
        """
        fresh = [row for part in all_gather(self.fresh) for row in part]
        self.fresh = []
        if not fresh:
            return {"pairs": 0.0}
        wanted = round(self.replay / (1 - self.replay) * len(fresh))
        older = [self.history[i] for i in torch.randperm(len(self.history), generator=generator)[:wanted].tolist()]
        self.history += fresh
        members = [self.improve(network, fresh, older, generator) for network in self.networks()]
        self.trained = True
        mean = {name: sum(found[name] for found in members) / len(members) for name in members[0]}
        return mean | {"replayed_fraction": len(older) / (len(fresh) + len(older))}

    def improve(self, network: ScalarModel, fresh: list[Prompt], older: list[Prompt], generator: torch.Generator) -> dict[str, float]:
        """`epochs` passes over the rankings. Scores of the fresh responses then have mean 0 again."""
        agreed, num_pairs, _ = self.reading(network, fresh)
        rows, losses = [*fresh, *older], list[float]()
        network.requires_grad_(True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=0.0)
        for _ in range(self.epochs):
            for chosen in torch.split(torch.randperm(len(rows), generator=generator), self.rows):
                optimizer.zero_grad()
                loss = 0.0
                for batch in self.batches(network, [rows[i] for i in chosen.tolist()]):
                    share = self.ranking(scored(network, batch), batch.rank, batch.present, None).sum() / len(chosen)
                    share.backward()
                    loss += float(share.detach())
                clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                losses.append(loss)
        network.requires_grad_(False)
        for parameter in network.parameters():
            parameter.grad = None
        broadcast_parameters(network)
        network.metadata["offset"] = self.reading(network, fresh)[2]
        return {"pairs": num_pairs, "pair_accuracy": agreed / max(1.0, num_pairs), "loss": sum(losses) / len(losses)}

    @torch.no_grad()
    def reading(self, network: ScalarModel, rows: Sequence[Prompt]) -> tuple[float, float, float]:
        """Pairs in the right order (ties count half), pairs, and the mean score."""
        agreed, num_pairs, total, count = 0.0, 0.0, 0.0, 0
        for batch in self.batches(network, rows):
            scores, present = scored(network, batch), batch.present
            pairs = better(batch.rank, present)
            agreed += float(right(gaps(scores, present))[pairs].sum())
            num_pairs += float(pairs.sum())
            total += float(scores[present].double().sum())
            count += int(present.sum())
        return agreed, num_pairs, total / max(1, count)

    def batches(self, network: ScalarModel, rows: Sequence[Prompt]) -> Iterator[PreferenceBatch]:
        """The rankings as tensors, by token budget."""
        table = collate_preferences(rows, network)
        for chunk in pack(table.sizes, self.token_budget):
            yield table.select(chunk).trim().to(network.device)

    # The checkpoint

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """It moves at the end of a round."""

    def state_dict(self) -> dict[str, Any]:
        found = {"history": [asdict(row) for row in self.history], "trained": self.trained}
        weights = [network.state_dict() for network in self.networks()] if self.trained else []
        return found | {"networks": weights, "offsets": [network.metadata["offset"] for network in self.networks()] if self.trained else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history, self.trained = [Prompt(**row) for row in state["history"]], state["trained"]
        for network, weights, offset in zip(self.networks() if self.trained else (), state["networks"], state["offsets"], strict=True):
            network.load_state_dict(weights)
            network.metadata["offset"] = offset

    def share(self) -> list[dict[str, Any]]:
        """Rankings that wait for the end of the round."""
        return [asdict(row) for row in self.fresh]

    def load_rank_states(self, ranks: Sequence[Sequence[Mapping[str, Any]]], rank: int, num_ranks: int) -> None:
        self.fresh = [Prompt(**row) for row in reshard(ranks, rank, num_ranks)]
