"""Trial of the largest microbatches before training."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlmods.ops import MAX_PADDED
from rlmods.protocols import FitsRun
from rlmods.rollout.turns import engine_of, num_added_tokens
from rlmods.training.lengths import Encoder, forward_length, longest_rows, longest_texts
from rlmods.training.meter import peak_memory_mb
from rlmods.training.views import LearnerView
from rlmods.types import Prompt, Response

SMALLEST_BUDGET = 1024
LARGEST_BUDGET = 32768
"""Tokens of a microbatch: more keep a GPU no busier."""
ALONE = 0.85
"""Fraction of a GPU's free memory that an update may take. The rest is lost to fragments."""
BESIDE_ENGINE = 0.5
"""The same beside an engine that samples on the GPU and takes the memory that is left."""


class Preflight:
    """Forward and backward of the largest microbatches before training, so that a lack of memory
    shows at once and not after hours."""

    def __init__(self, learner: LearnerView) -> None:
        self.learner = learner
        self.reserved_bytes = 0.0
        """Memory of this rank's GPU that an update takes beside what was held before; 0 if it was
        not tried on a GPU."""

    def __call__(self) -> str:
        """Try the largest microbatches, with gradients and optimizer state in memory, and return a
        line with the peak memory of a device, the largest of all ranks.

        Afterwards weights, optimizer, random state, metrics and extensions are as before. Every
        rank calls this.

        Raises:
            UserError: out of memory, with the override that needs less.
        """
        device = self.learner.device
        microbatches = self.learner.microbatches
        held = 0
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
        with self.learner.timer.within("preflight"), self._unchanged():
            if device.type == "cuda":
                if microbatches.token_budget is None:
                    microbatches.token_budget = self._largest_budget(device)
                torch.cuda.reset_peak_memory_stats(device)
            self._try()
            peak_mb = self.learner.ranks.reduce(torch.tensor(peak_memory_mb(device)), "max")
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if device.type == "cuda":
            self.reserved_bytes = peak_memory_mb(device) * 2**20 - held
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)  # the metrics are of training
            total = torch.cuda.get_device_properties(device).total_memory
        peak = float(peak_mb) * 2**20
        return (
            f"preflight: peak {peak / 2**30:.2f} of {total / 2**30:.1f} GiB on {device} "
            f"({peak / total:.0%}) with batch.token_budget={microbatches.budget}"
        )

    def _largest_budget(self, device: torch.device) -> int:
        """Return the largest of some token budgets, each twice the one before, whose update fits
        on the GPU of every rank. A budget is tried if twice the memory of the one before would fit,
        so none is out of memory unless the first is."""
        learner = self.learner
        held = torch.cuda.memory_allocated(device)
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - held
        usable = free * (
            BESIDE_ENGINE if isinstance(engine_of(learner.rollout), FitsRun) else ALONE
        )
        all_tokens = self.rows_per_step * self.longest_row
        budget = SMALLEST_BUDGET
        while budget < min(self.longest_row, LARGEST_BUDGET):
            budget *= 2
        while budget < min(all_tokens, LARGEST_BUDGET):
            learner.microbatches.token_budget = budget
            torch.cuda.reset_peak_memory_stats(device)
            self._try()
            taken = torch.cuda.max_memory_allocated(device) - held
            if learner.ranks.reduce(torch.tensor(2 * taken / usable), "max") > 1:
                break
            budget *= 2
        return budget

    def _try(self) -> None:
        """Run forward and backward of the largest microbatches."""
        learner = self.learner
        # before the first training step Lightning has not entered the precision context
        with learner.trainer.precision_plugin.forward_context(), learner.update_mode():
            for rows in self.largest_rows():
                losses = [(rows, learner.loss)]
                for extension in learner.extensions:
                    losses += extension.largest_step(rows)
                learner.step.accumulate(learner.step.sources(*losses), reduces=False)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Allocate gradients and optimizer state for the block, and restore everything after it.
        Containers of extensions are copied one level deep."""
        learner = self.learner
        optimizer: torch.optim.Optimizer = learner.optimizers().optimizer
        is_new = not optimizer.state
        groups = [dict(group) for group in optimizer.param_groups]
        attributes = [_copied(vars(extension)) for extension in learner.extensions]
        try:
            for group in optimizer.param_groups:
                group["lr"] = 0.0  # the step below changes no weight
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            if is_new:
                # not the instance's `step`, by which schedules count
                type(optimizer).step(optimizer)
            yield
        finally:
            if is_new:
                optimizer.state.clear()
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)
            for extension, values in zip(learner.extensions, attributes, strict=True):
                vars(extension).clear()
                vars(extension).update(values)
            optimizer.zero_grad()
            learner.meter.reset()

    # Rows

    @property
    def num_candidates(self) -> int:
        """Number of sampled responses in a row."""
        return self.learner.batch.samples // self.learner.rows_per_prompt(self.learner.batch)

    @property
    def rows_per_step(self) -> int:
        """Largest number of rows of an optimizer step on one rank."""
        batch = self.learner.batch
        rows = batch.prompts // self.learner.ranks.world_size * self.learner.rows_per_prompt(batch)
        return round(rows / batch.minibatches * (1 + self._added_fraction))

    @property
    def _added_fraction(self) -> float:
        """Number of rows that replay adds to an iteration, by its own number of rows."""
        return float(sum(extension.added_fraction for extension in self.learner.extensions))

    @property
    def _encoder(self) -> Encoder:
        """The trained network whose tokenizer encodes the rows."""
        return cast(Encoder, next(iter(self.learner.networks.values())))

    @property
    def _columns(self) -> Sequence[str]:
        """Columns of the responses in the rows; empty for an algorithm that samples."""
        learner = self.learner
        return () if learner.samples_responses else learner.columns(learner.settings)

    @cached_property
    def _longest_prompts(self) -> list[Prompt]:
        """As many of the longest rows of the data as this rank trains on in an iteration."""
        batch = self.learner.batch
        num = batch.prompts // self.learner.ranks.world_size
        num += round(num * self.learner.rows_per_prompt(batch) * self._added_fraction)
        return longest_rows(self._encoder, self.learner.splits.train, num, self._columns)

    @cached_property
    def _longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt and of the longest sampled response."""
        columns = self.learner.columns(self.learner.settings)
        prompts = self.learner.splits.train if columns else self._longest_prompts
        return longest_texts(self.learner.policy, prompts, columns, self.learner.rollout)

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row."""
        if self.learner.samples_responses:
            return sum(self._longest) * self.num_candidates
        return forward_length(self._encoder, self._longest_prompts[0], self._columns)

    def largest_rows(self) -> Iterator[Any]:
        """Yield rows of the largest microbatches that the settings and the data allow, the same on
        every rank: those of an optimizer step with the longest rows of the data, or of sampled
        responses of any length."""
        learner = self.learner
        if not learner.samples_responses:
            yield learner.rows(self._longest_prompts[: self.rows_per_step])
            return
        microbatches = learner.microbatches
        counts_computed = microbatches.token_budget is not None and microbatches.packs()
        shapes = largest_shapes(
            *self._longest,
            self.num_candidates,
            microbatches.budget,
            self.rows_per_step,
            self._responses_per_prompt if counts_computed else None,
        )
        for num, length in shapes:
            yield self._synthetic_rows(num, length)

    @property
    def _responses_per_prompt(self) -> int:
        """Responses to each prompt in an optimizer step: whole groups, unless minibatches or replay
        take rows of groups at random."""
        whole_groups = self.learner.batch.minibatches == 1 and not self._added_fraction
        return self.learner.batch.samples if whole_groups else self.num_candidates

    def _synthetic_rows(self, num_rows: int, length: int) -> Any:
        """Return rows of responses of this length to the longest prompts. Each response begins with
        another id, because forwards compute equal prefixes once."""
        learner = self.learner
        prompts = self._longest_prompts
        share = self._responses_per_prompt
        group = sorted((k // share) % len(prompts) for k in range(num_rows * self.num_candidates))
        vocabulary = learner.policy.model.config.get_text_config().vocab_size
        added = [learner.policy.pad_id] * num_added_tokens(learner.policy, learner.rollout, prompts)
        responses: list[Response] = []
        for k, i in enumerate(group):
            shown = [*added, *learner.policy.encode(prompts[i])]
            tokens = [(k + t) % vocabulary for t in range(length)]
            responses.append(Response(prompts[i], shown, tokens, [0.0] * length))
        return learner.example_rows(responses, torch.tensor(group))


def largest_shapes(
    prompt: int,
    response: int,
    num_candidates: int,
    token_budget: int,
    max_rows: int,
    responses_per_prompt: int | None = None,
) -> list[tuple[int, int]]:
    """Return the number of rows and of tokens of their responses in the largest microbatches of
    sampled responses: with as many of the longest rows as fit, with the most tokens, and with the
    most tokens counting padding and repeated prompts.

    Args:
        responses_per_prompt: of packed rows, whose budget is on the tokens that are computed; None:
            the rows are padded.
    """
    lengths = np.arange(response, 0, -1)
    padded = num_candidates * (prompt + lengths)
    computed: Any = padded
    fit: Any = token_budget // padded
    if responses_per_prompt is not None:
        computed = num_candidates * (prompt / responses_per_prompt + lengths)
        fit = np.minimum(MAX_PADDED * token_budget // padded, token_budget / computed)
    num = np.clip(fit, 1, max_rows).astype(int)
    # of equal ones the longest, which is the first
    largest = (0, int(np.argmax(num * computed)), int(np.argmax(num * padded)))
    return list(dict.fromkeys((int(num[i]), int(lengths[i])) for i in largest))


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    copies = {}
    for name, value in attributes.items():
        is_container = isinstance(value, list | dict | set)
        copies[name] = copy.copy(value) if is_container else value
        if isinstance(value, Tensor):
            copies[name] = value.clone()
    return copies
