"""Random trees of responses: branches of branches, observed tokens, unscored responses, groups that
are not contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from rlmods.training.collate import collate
from rlmods.types import Branch, Experience, Prompt, Response, Scores
from tests.support.batches import POISON
from tests.support.reference import Field, dense


@dataclass(frozen=True)
class Forest:
    """Responses to several prompts, as tensors [N, T] and as the identities of their tokens."""

    responses: list[Response]
    batch: Experience
    mask: Tensor
    """True on sampled tokens of scored rows."""
    rewards: Tensor
    """float64; any value where the mask is False."""
    identity: list[dict[int, int]]
    """Of each row, by column: a number that is unique to the sampled or observed token, and the
    same in all rows that share it."""

    @property
    def group(self) -> Tensor:
        return self.batch.group

    @property
    def origin(self) -> Tensor:
        assert self.batch.origin is not None
        return self.batch.origin

    def select(self, rows: Tensor) -> Forest:
        pick = [int(i) for i in rows]
        return Forest(
            [self.responses[i] for i in pick],
            self.batch.select(rows),
            self.mask[rows],
            self.rewards[rows],
            [self.identity[i] for i in pick],
        )

    def poisoned(self) -> Forest:
        """The same rows with something terrible in every masked slot."""
        kinds = torch.tensor(POISON, dtype=torch.float64)
        poison = kinds[torch.arange(self.mask.numel()) % len(kinds)].view(self.mask.shape)
        return replace(self, rewards=torch.where(self.mask, self.rewards, poison))

    def scores(self) -> dict[int, float]:
        """R of each scored row."""
        return {
            i: float(self.rewards[i][self.mask[i]].sum())
            for i in range(len(self.mask))
            if self.mask[i].any()
        }

    def sharing(self, i: int, t: int) -> list[int]:
        """Scored rows that hold the token in column t of row i."""
        return [
            j
            for j in self.scores()
            if self.mask[j, t] and self.identity[j].get(t) == self.identity[i][t]
        ]


def forest(
    seed: int,
    branching: float = 0.7,
    num_prompts: int = 2,
    unscored: float = 0.1,
    vocabulary: int = 50,
) -> Forest:
    """Draw 1 to 6 responses to each prompt, each a branch of an earlier one with probability
    `branching`."""
    rng, fresh = np.random.default_rng(seed), count()
    responses, group, identity, sampled = [], [], [], []
    for number in range(num_prompts):
        prompt = Prompt(id=f"p{number}", text="?")
        prompt_tokens = rng.integers(vocabulary, size=rng.integers(1, 4)).tolist()
        first = len(responses)
        for index in range(rng.integers(1, 7)):
            tokens, kinds, names, branch = [], [], [], None
            if index and rng.random() < branching:
                parent = int(rng.integers(index))
                shared = int(rng.integers(len(responses[first + parent].tokens) + 1))
                branch = Branch(parent, shared)
                tokens = list(responses[first + parent].tokens[:shared])
                kinds, names = (
                    sampled[first + parent][:shared],
                    list(identity[first + parent].values())[:shared],
                )
            length = int(rng.integers(1, 6))
            tokens = [*tokens, *rng.integers(vocabulary, size=length).tolist()]
            kinds = [*kinds, *(rng.random(length) < 0.75).tolist()]
            start = len(prompt_tokens)
            identity.append(
                {
                    start + k: name
                    for k, name in enumerate([*names, *(next(fresh) for _ in range(length))])
                }
            )
            sampled.append(kinds)
            responses.append(
                Response(prompt, prompt_tokens, tokens, [-1.0] * len(tokens), branch=branch)
            )
            group.append(7 - 100 * number)
    scored = rng.random(len(responses)) >= unscored
    scores = Scores([0.0 if x else None for x in scored])
    batch = collate(responses, scores, torch.tensor(group), policy_version=0, pad_id=0)
    if batch.origin is None:
        batch = replace(
            batch, origin=torch.arange(len(responses))[:, None].expand(batch.tokens.shape)
        )
    mask = batch.mask.clone()
    for i, kinds in enumerate(sampled):
        start = len(responses[i].prompt_tokens)
        mask[i, start : start + len(kinds)] &= torch.tensor(kinds)
    rewards = torch.from_numpy(rng.choice([0.0, 0.5, 1.0, 2.0], size=mask.shape))
    order = torch.from_numpy(rng.permutation(len(responses)))
    return Forest(responses, replace(batch, mask=mask), mask, rewards, identity).select(order)


forests = st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, 0.7, 1.0]))
"""Arguments of `forest`, drawn by hypothesis. Checks of types use the global generator, which
strategies must not do."""


def hard(f: Forest, advantages: Tensor) -> Tensor:
    """Mean of the rows' advantages over the rows that share a token. `advantages` [N, T]: one
    number on all true slots of a row."""
    own = {i: float(advantages[i][f.mask[i]][0]) for i in f.scores()}
    field: Field = {}
    for i in own:
        for t in f.mask[i].nonzero().flatten().tolist():
            rows = f.sharing(i, t)
            field[i, t] = torch.tensor(sum(own[j] for j in rows) / len(rows), dtype=torch.float64)
    return dense(field, f.mask.shape)


def tree(f: Forest) -> Tensor:
    """V(segment) - V(parent segment), where V is the mean reward of the rows that share a
    segment."""
    score = f.scores()

    def value(rows: list[int]) -> float:
        return sum(score[j] for j in rows) / len(rows)

    field: Field = {}
    for i in score:
        parent = [j for j in score if f.group[j] == f.group[i]]
        segment: list[int] | None = None
        for t in f.mask[i].nonzero().flatten().tolist():
            if segment is not None and f.sharing(i, t) != segment:
                parent = segment
            segment = f.sharing(i, t)
            field[i, t] = torch.tensor(value(segment) - value(parent), dtype=torch.float64)
    return dense(field, f.mask.shape)
