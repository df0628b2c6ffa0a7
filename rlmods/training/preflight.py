"""Trial of the largest microbatches before training."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from rlmods.rollout.turns import num_added_tokens
from rlmods.training.lengths import Encoder, forward_length, longest_rows, longest_texts
from rlmods.training.meter import peak_memory_mb
from rlmods.training.views import LearnerView
from rlmods.types import Prompt, Response


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
        held = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        with self.learner.timer.within("preflight"), self._unchanged():
            sizes = self._try()
            peak_mb = self.learner.ranks.reduce(torch.tensor(peak_memory_mb(device)), "max")
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if device.type == "cuda":
            self.reserved_bytes = peak_memory_mb(device) * 2**20 - held
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)  # the metrics are of training
            total = torch.cuda.get_device_properties(device).total_memory
        peak = float(peak_mb) * 2**20
        return (
            f"preflight: {len(sizes)} microbatches of up to {max(sizes)} tokens, peak "
            f"{peak / 2**30:.2f} of {total / 2**30:.1f} GiB on {device} ({peak / total:.0%})"
        )

    def _try(self) -> list[int]:
        """Run forward and backward, and return the number of tokens of each microbatch."""
        learner = self.learner
        sizes: list[int] = []
        # before the first training step Lightning has not entered the precision context
        with learner.trainer.precision_plugin.forward_context(), learner.update_mode():
            for rows in self.largest_rows():
                losses = [(rows, learner.loss)]
                for extension in learner.extensions:
                    losses += extension.largest_step(rows)
                sources = learner.step.sources(*losses)
                for micro in learner.step.accumulate(sources, reduces=False):
                    source = sources[micro.source]
                    sizes.append(int(source.rows.forward_tokens[micro.indices].sum()))
        return sizes

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
        if learner.samples_responses:
            row = (*self._longest, self.num_candidates)
            for num, length in largest_shapes(*row, learner.batch.token_budget, self.rows_per_step):
                yield self._synthetic_rows(num, length)
        else:
            yield learner.rows(self._longest_prompts[: self.rows_per_step])

    def _synthetic_rows(self, num_rows: int, length: int) -> Any:
        """Return rows of responses of this length to the longest prompts. Each response begins with
        another id, because forwards compute equal prefixes once."""
        learner = self.learner
        prompts = self._longest_prompts
        # minibatches and replay take rows of groups at random
        whole_groups = learner.batch.minibatches == 1 and not self._added_fraction
        share = learner.batch.samples if whole_groups else self.num_candidates
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
    prompt: int, response: int, num_candidates: int, token_budget: int, max_rows: int
) -> list[tuple[int, int]]:
    """Return the number of rows and of tokens of their responses in the largest microbatches of
    sampled responses: with as many of the longest rows as fit and, if that has more tokens, with
    one row more but shorter ones."""
    longest = prompt + response
    num = min(max_rows, max(1, token_budget // (longest * num_candidates)))
    more = num + 1
    shorter = token_budget // (more * num_candidates)
    if more <= max_rows and shorter > prompt and more * shorter > num * longest:
        return [(num, response), (more, shorter - prompt)]
    return [(num, response)]


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    copies = dict(attributes)
    for name, value in attributes.items():
        if isinstance(value, Tensor):
            copies[name] = value.clone()
        elif isinstance(value, list | dict | set):
            copies[name] = copy.copy(value)
    return copies
