"""Base class of extensions, with the hooks that they may implement."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from rlmods.policy.base import PolicyOutput
from rlmods.protocols import Ratio, Rollout
from rlmods.router import Routing
from rlmods.training.credit import CreditAssignment
from rlmods.training.frozen import FrozenPolicy, Teacher
from rlmods.training.scorer import LogprobScorer
from rlmods.training.train_step import Loss
from rlmods.training.views import LearnerView
from rlmods.types import Experience, Prompt, Response, Scores, TokenMask, Totals


class LoopView(LearnerView, Protocol):
    """Members of the RL loop (`rlmods.algo.PolicyGradient`) that extensions use."""

    seed: int
    reference: FrozenPolicy | None
    teacher: Teacher | None
    ratio: Ratio
    credit: CreditAssignment
    router: Routing
    critic: nn.Module | None
    scorer: LogprobScorer
    full_kl: bool
    kl_stats: Tensor

    @property
    def optimizer_steps(self) -> int: ...
    @property
    def max_iterations(self) -> int: ...
    def generator(self, purpose: int) -> torch.Generator: ...
    def grade(self, responses: Sequence[Response]) -> Scores: ...
    def scale(self, values: Sequence[float | None]) -> Sequence[float | None]: ...
    def sample_responses(self, rollout: Rollout, prompts: Sequence[Prompt]) -> list[Response]: ...


class Extension:
    """Hooks of the RL loop, in the order of their calls. Every hook does nothing by default. Other
    algorithms call `on_fit_start`, `on_after_backward`, `before_iteration_end` and
    `on_iteration_end` only.

    An extension with state also has `state_dict` and `load_state_dict` (equal on all ranks), or
    `rank_state` and `load_rank_states` (different on each rank)."""

    loop: LoopView
    needs_old_logprobs: bool = False
    """True if `old_logprobs` must be stored on the first minibatch too. With one epoch it has none
    otherwise."""
    needs_entropy: bool = False
    """True if `loss_term` trains `PolicyOutput.entropy`, which has no gradient otherwise."""
    needs_router_logits: bool = False
    """True if `loss_term` reads `PolicyOutput.router_logits`."""
    depends_on_grading: str = ""
    """"rewards" or "rows" if the state depends on rewards, or on advantages and the selection of
    rows: a fork that grades in another way begins without it."""
    added_fraction: float = 0.0
    """Largest number of rows that `before_update` adds, by the number of rows of the iteration."""

    def attach(self, loop: LoopView) -> None:
        """Store the loop; called when the loop is constructed."""
        self.loop = loop

    def on_fit_start(self) -> None:
        """Called when networks are on their devices, before data is loaded. The checkpoint is
        loaded before or, if networks are sharded, afterwards."""

    def on_responses(self, responses: Sequence[Response], scores: Scores) -> None:
        """Called with all responses to one batch of prompts, prompt-major, and their scores;
        dynamic sampling may draw several batches in one iteration."""

    def before_advantages(self, batch: Experience, prompts: Sequence[Prompt]) -> Experience:
        """Return the rows of one batch of prompts, given them before advantages are estimated."""
        return batch

    def before_update(self, batch: Experience) -> Experience:
        """Return the rows to train on, given those of this iteration."""
        return batch

    def before_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        """Return further rows of the next optimizer step, each with its loss."""
        return []

    def largest_step(self, minibatch: Experience) -> list[tuple[Experience, Loss]]:
        """Return the largest rows that `before_step` may return, for the trial of the largest
        microbatches before training."""
        return self.before_step(minibatch)

    def scored_tokens(self, micro: Experience) -> TokenMask | None:
        """Return the tokens whose log-probabilities `loss_term` reads; None: those with loss."""
        return None

    def loss_term(self, micro: Experience, output: PolicyOutput, totals: Totals) -> Tensor | None:
        """Return a term that is added to the loss of a microbatch and minimised, or None. Divide
        it by `totals`, not by the number of ranks. A term without a gradient is an error."""
        return None

    def on_after_backward(self) -> None:
        """Called after the gradients of a microbatch are accumulated."""

    def should_stop(self) -> bool:
        """Return True after an optimizer step to skip the remaining ones of this iteration."""
        return False

    def after_update(self, batch: Experience, num_fresh: int) -> None:
        """Called after all optimizer steps of the iteration on `batch`, whose rows after the first
        `num_fresh` were added by extensions."""

    def before_iteration_end(self) -> None:
        """Called before the metrics of the iteration are computed, also if it made no optimizer
        step."""

    def on_iteration_end(self, metrics: Mapping[str, float]) -> None:
        """Called once after each iteration, also after its validation, with its metrics, which are
        equal on all ranks."""
