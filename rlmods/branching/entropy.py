"""ARPO's rule for branches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rlmods.errors import check_bounds
from rlmods.ops import keyed_uniforms
from rlmods.types import Branch


@dataclass(frozen=True)
class Entropy:
    """Rule of entropy-based adaptive rollouts: of the M responses to a prompt, N are sampled from
    the prompt on. After a tool result of a response, Z further responses branch off if

        P = alpha + beta dH  exceeds tau,       dH = H - H_initial,

    where H is the mean entropy of the first k tokens after the tool result and H_initial the mean
    entropy of the first k tokens of the response, both divided by log V, the entropy of a uniform
    distribution over the vocabulary. dH is between -1 and 1.

    ARPO, arXiv:2507.19849, section 3.1. M is `batch.samples`. `BranchPlan` applies the rule to one
    prompt."""

    num_initial: int = 8
    """N, the number of responses that are sampled from the prompt on before any branch."""
    num_branches: int = 1
    """Z, the number of responses that branch off at one point, fewer if the budget ends."""
    alpha: float = 0.5
    """P at a tool result that does not change the entropy."""
    beta: float = 0.2
    """Weight of the change of entropy."""
    tau: float = 0.5
    """Threshold of P."""
    num_tokens: int = 20
    """k, the number of tokens over which entropies are averaged; fewer if a turn ends before."""
    mode: Literal["threshold", "probability"] = "threshold"
    """threshold: branch if P > tau, as in the paper. probability: if P > tau, branch with
    probability P."""

    def __post_init__(self) -> None:
        rules = {
            name: (getattr(self, name) >= 1, "at least 1")
            for name in ("num_initial", "num_branches", "num_tokens")
        }
        rules |= {
            name: (math.isfinite(getattr(self, name)), "finite") for name in ("alpha", "beta")
        }
        check_bounds(self, "branching", rules | {"tau": (not math.isnan(self.tau), "a number")})

    def __call__(self, entropy: float, initial_entropy: float) -> float:
        """Return P, which is not limited to 0 to 1, from H and H_initial."""
        return self.alpha + self.beta * (entropy - initial_entropy)

    def normalized_entropy(self, entropies: Sequence[float], vocabulary_size: int) -> float:
        """Return the mean of the first k `entropies` (nats), divided by log V."""
        first = entropies[: self.num_tokens]
        return sum(first) / len(first) / math.log(vocabulary_size)


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


class BranchPlan:
    """The responses to one prompt while they are sampled: which there are, from which prefixes, and
    which to start next.

    The caller starts the responses 0 to `len(plan) - 1`, reports what happens to them, and starts
    those that the methods return: `branches[row]` is where a response begins. There are never more
    than `num_responses`, and that many in the end: what branches leave of the budget goes to new
    responses from the prompt on. The order of reports decides which branches get the last of the
    budget, so reproducible callers report events that happen at once in the order of rows. A coin
    depends on `key`, row and position alone."""

    def __init__(self, rule: Entropy, num_responses: int, key: tuple[int | str, ...]) -> None:
        """
        Args:
            num_responses: M.
            key: seed, prompt and iteration, as for sampling.
        """
        self.rule = rule
        self.num_responses = num_responses
        self.key = key
        self.branches: list[Branch | None] = []
        """Where each response branches off; None: from the prompt on."""
        self.decisions: list[Decision] = []
        """What the rule has decided so far."""
        self._initial_entropy: dict[int, float] = {}
        self._unfinished: set[int] = set()
        self._start([None] * min(rule.num_initial, num_responses))

    def __len__(self) -> int:
        return len(self.branches)

    def on_start(self, row: int, entropy: float) -> None:
        """Report H_initial of a response that was sampled from the prompt on. Its branches have it
        too."""
        self._initial_entropy[row] = entropy

    def on_tool_result(self, row: int, position: int, entropy: float) -> list[int]:
        """Report H after a tool result that ends with the first `position` tokens of a response,
        and return the responses to start there."""
        root = row
        branch = self.branches[root]
        while branch is not None:
            root = branch.parent
            branch = self.branches[root]
        initial = self._initial_entropy[root]
        probability = self.rule(entropy, initial)
        num = (
            min(self.rule.num_branches, self.num_responses - len(self))
            if self._branches(probability, row, position)
            else 0
        )
        self.decisions.append(Decision(row, position, entropy, initial, probability, num))
        return self._start([Branch(row, position)] * num)

    def on_end(self, row: int) -> list[int]:
        """Report that a response is complete. Return the responses to start: after the last one, as
        many as the budget has left."""
        self._unfinished.remove(row)
        return [] if self._unfinished else self._start([None] * (self.num_responses - len(self)))

    def _branches(self, probability: float, row: int, position: int) -> bool:
        if probability <= self.rule.tau:
            return False
        return self.rule.mode == "threshold" or bool(
            keyed_uniforms(1, *self.key, "branch", row, position)[0] < probability
        )

    def _start(self, branches: Sequence[Branch | None]) -> list[int]:
        rows = list(range(len(self), len(self) + len(branches)))
        self.branches += branches
        self._unfinished.update(rows)
        return rows
