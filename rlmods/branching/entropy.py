"""ARPO's rule for branches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlmods.ops import keyed_uniforms
from rlmods.settings.bounds import Count, bounded


@dataclass(frozen=True)
@bounded("branching")
class Entropy:
    """Rule of entropy-based adaptive rollouts: of the M responses to a prompt, N are sampled from
    the prompt on. After a tool result of a response, Z further responses branch off if

        P = alpha + beta dH  exceeds tau,       dH = H - H_initial,

    where H is the mean entropy of the first k tokens after the tool result and H_initial the mean
    entropy of the first k tokens of the response, both divided by log V, the entropy of a uniform
    distribution over the vocabulary. dH is between -1 and 1.

    ARPO, arXiv:2507.19849, section 3.1. M is `batch.samples`. `rlmods.rollout.trajectory.Tree`
    applies the rule to one prompt."""

    num_initial: Count = 8
    """N, the number of responses that are sampled from the prompt on before any branch."""
    num_branches: Count = 1
    """Z, the number of responses that branch off at one point, fewer if the budget ends."""
    alpha: float = 0.5
    """P at a tool result that does not change the entropy."""
    beta: float = 0.2
    """Weight of the change of entropy."""
    tau: float = 0.5
    """Threshold of P."""
    num_tokens: Count = 20
    """k, the number of tokens over which entropies are averaged; fewer if a turn ends before."""
    mode: Literal["threshold", "probability"] = "threshold"
    """threshold: branch if P > tau, as in the paper. probability: if P > tau, branch with
    probability P."""

    def __call__(self, entropy: float, initial_entropy: float) -> float:
        """Return P, which is not limited to 0 to 1, from H and H_initial."""
        return self.alpha + self.beta * (entropy - initial_entropy)

    def normalized_entropy(self, entropies: Sequence[float], vocabulary_size: int) -> float:
        """Return the mean of the first k `entropies` (nats), divided by log V."""
        first = entropies[: self.num_tokens]
        return sum(first) / len(first) / math.log(vocabulary_size)

    def branches(self, probability: float, *key: int | str) -> bool:
        """Return whether responses branch off at a tool result with this P. With
        `mode="probability"`, a coin decides that depends on `key` alone."""
        if probability <= self.tau:
            return False
        if self.mode == "threshold":
            return True
        return bool(keyed_uniforms(1, *key)[0] < probability)


class Decision(NamedTuple):
    """One application of the rule, for the sample log."""

    row: int
    """Index of the response, among those to its prompt."""
    position: int
    """Number of its tokens up to and including the tool result."""
    entropy: float
    """H, between 0 and 1."""
    initial_entropy: float
    """H_initial."""
    probability: float
    """P."""
    num_branches: int
    """Number of responses that branched off."""
