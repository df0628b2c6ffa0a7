"""Memory of the largest microbatches: a trial of them before training, and advice where memory runs
out."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlmods.distributed.strategy import FSDP2
from rlmods.policy.base import Policy
from rlmods.policy.scalar import ScalarModel
from rlmods.policy.text import TokenizerMixin
from rlmods.rollout.turns import MultiTurn, num_added_tokens
from rlmods.training.checkpoint import adapter_bases
from rlmods.training.timer import peak_memory_mb
from rlmods.training.views import LearnerView
from rlmods.types import Prompt, Response, Totals

MIB_PER_GIB = 1024


class RowShape(NamedTuple):
    """Tokens of one row: a prompt with one response, or with several candidates."""

    prompt: int
    response: int
    """Tokens of the longest response; 1 if the data has none."""
    num: int = 1
    """Number of candidate responses, which are padded to the longest."""

    @property
    def tokens(self) -> int:
        """Number of tokens in a forward of the row alone."""
        return (self.prompt + self.response) * self.num


def row_shape(prompt: Prompt, encoder: TokenizerMixin, columns: Iterable[str]) -> RowShape:
    """Return the shape of a row of the data, whose responses are in these columns of
    `prompt.meta`."""
    texts: list[str] = []
    for name in columns:
        value = prompt.meta[name]
        texts += value if name == "candidates" else ["".join(value)]
    lengths = [len(encoder.encode_response(text, prompt)) for text in texts]
    return RowShape(len(encoder.encode(prompt)), max(lengths, default=1), max(1, len(lengths)))


class Preflight:
    """Forward and backward of the largest microbatches before training, so that a lack of memory
    shows at once and not after hours; and the overrides to type where memory runs out."""

    def __init__(self, learner: LearnerView) -> None:
        self.learner = learner

    # Rows

    @property
    def num_candidates(self) -> int:
        """Number of sampled responses that make one row."""
        batch = self.learner.batch
        return batch.samples // self.learner.rows_per_prompt(batch)

    @cached_property
    def num_added_tokens(self) -> int:
        """Number of tokens that an environment adds to prompts."""
        learner = self.learner
        return num_added_tokens(learner.policy, learner.rollout, learner.splits.train)

    @cached_property
    def shapes(self) -> list[RowShape]:
        """Shape of each training prompt's row. A sampled response has as many tokens as the rollout
        allows."""
        learner = self.learner
        encoder: Any = next(iter(learner.networks.values()))
        columns = learner.columns(learner.settings)
        shapes = []
        for prompt in learner.splits.train:
            shape = row_shape(prompt, encoder, columns)
            shape = shape._replace(prompt=learner.prompt_length(prompt))
            if learner.samples_responses:
                longest = max(shape.response, learner.rollout.max_tokens)
                length = shape.prompt + self.num_added_tokens
                shape = RowShape(length, longest, self.num_candidates)
            shapes.append(shape)
        return shapes

    @property
    def rows_per_step(self) -> int:
        """Largest number of rows of an optimizer step on one rank."""
        batch, learner = self.learner.batch, self.learner
        rows = batch.prompts // learner.ranks.world_size * learner.rows_per_prompt(batch)
        return round(-(-rows // batch.minibatches) * (1 + self._added_fraction))

    @property
    def _added_fraction(self) -> float:
        """Number of rows that extensions add to an iteration, by its own number of rows."""
        return float(sum(extension.added_fraction for extension in self.learner.extensions))

    def largest_rows(self) -> Iterator[Any]:
        """Yield rows of the largest microbatches that the settings and the data allow, the same on
        every rank."""
        learner = self.learner
        if learner.samples_responses:
            for responses in self.synthetic_responses():
                group = torch.arange(len(responses)) // self._group_size
                yield learner.example_rows(responses, group)
            return
        prompts = learner.splits.train
        order = sorted(range(len(prompts)), key=lambda i: -self.shapes[i].tokens)
        sizes = [self.shapes[i].tokens for i in order]
        budget = learner.batch.token_budget
        for rows in largest_microbatches(sizes, budget, self.rows_per_step):
            yield learner.rows([prompts[i] for i in order[rows]])

    @property
    def _group_size(self) -> int:
        """Responses to one prompt in a microbatch. The rows of a group share the forward of their
        prompt, unless an optimizer step takes rows of groups at random."""
        batch = self.learner.batch
        if self.num_candidates > 1:
            return self.num_candidates
        whole_groups = batch.minibatches == 1 and not self._added_fraction
        return batch.samples if whole_groups else 1

    def synthetic_responses(self) -> Iterator[list[Response]]:
        """Yield the responses of the largest microbatches of sampled responses: to the longest
        prompts, with token ids in turn. Each response begins with another id, because forwards
        compute equal prefixes once."""
        policy, prompts = self.learner.policy, self.learner.splits.train
        order = sorted(range(len(prompts)), key=lambda i: -self.shapes[i].prompt)
        if not order:
            return
        vocabulary = policy.model.config.get_text_config().vocab_size
        added = [policy.pad_id] * self.num_added_tokens
        budget, group_size = self.learner.batch.token_budget, self._group_size
        for num, length in largest_shapes(self.shapes[order[0]], budget, self.rows_per_step):
            num_responses = num * self.num_candidates
            longest = islice(cycle(order), -(-num_responses // group_size))
            repeated = [prompts[i] for i in longest for _ in range(group_size)]
            responses = []
            for k, prompt in enumerate(repeated[:num_responses]):
                tokens = [(k + t) % vocabulary for t in range(length)]
                responses.append(
                    Response(
                        prompt,
                        [*added, *policy.encode(prompt)],
                        tokens,
                        [0.0] * length,
                        finish="length",
                    )
                )
            yield responses

    # The trial

    def __call__(self) -> str:
        """Run forward and backward of `largest_rows()` with the learner's own loss, with gradients
        and optimizer state in memory, and return a line with the peak and the memory of the device,
        the largest of all ranks.

        Afterwards weights, optimizer, random state, metrics and extensions are as before. Every
        rank calls this.

        Raises:
            UserError: out of memory, with the override that needs less.
        """
        learner = self.learner
        device = learner.device
        optimizer = learner.optimizers().optimizer
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with ExitStack() as blocks:
            blocks.enter_context(learner.timer.within("preflight"))
            blocks.enter_context(unchanged(learner))
            allocate_gradients(optimizer)
            blocks.enter_context(allocated_state(optimizer))
            # Before the first training step Lightning has not entered the precision context.
            blocks.enter_context(learner.trainer.precision_plugin.forward_context())
            blocks.enter_context(learner.update_mode())
            sizes: list[int] = []
            for rows in self.largest_rows():
                sizes += self._try(rows)
            peak_mb = learner.ranks.reduce(torch.tensor(peak_memory_mb(device)), "max")
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)  # the metrics are of training
        peak = float(peak_mb) / MIB_PER_GIB
        total = device_memory(device) / 2**30
        plural = "" if len(sizes) == 1 else "es"
        size = f"{len(sizes)} microbatch{plural} of up to {max(sizes, default=0)} tokens"
        memory = f"peak {peak:.2f} of {total:.1f} GiB on {device} ({peak / total:.0%})"
        return f"preflight: {size}, {memory}"

    def _try(self, rows: Any) -> list[int]:
        """Run forward and backward of an optimizer step, and return the number of tokens of each
        microbatch."""
        learner = self.learner
        sources = [(rows, learner.loss)]
        for extension in learner.extensions:
            sources += extension.largest_step(rows)
        sizes = []
        for source, loss in sources:
            tokens, sequences = source.loss_counts
            totals = Totals(tokens.clamp(min=1), sequences.clamp(min=1))
            for micro, _ in learner.microbatches(source):
                with learner.step.gradient_sync(is_last=False):
                    learner.manual_backward(loss(micro, totals))
                sizes.append(int(micro.forward_tokens.sum()))
        return sizes

    # Advice

    def advise(self, stage: str) -> str:
        """Return overrides that lower the memory of a stage, the cheapest first, at most two."""
        learner = self.learner
        num_ranks = learner.ranks.world_size
        strategy = learner.trainer.strategy
        is_sharded = isinstance(strategy, FSDP2)
        devices = f"trainer.devices={2 * num_ranks}"
        advice = [f"more devices, {devices}" if is_sharded else f"trainer=fsdp {devices}"]
        if "adapter" in learner.groups and not adapter_bases(learner.networks):
            advice.append("adapter=lora")
        if stage in ("rollout", "validation") and learner.rollout is not None:
            limit = "environment" if isinstance(learner.rollout, MultiTurn) else "rollout"
            now = learner.rollout.max_tokens
            advice = ["a smaller rollout.batch_size", f"{limit}.max_tokens={max(1, now // 2)}"]
        elif stage == "checkpoint" and isinstance(strategy, FSDP2):
            if not strategy._save_distributed_checkpoint:
                advice.insert(0, "trainer.strategy.sharded_checkpoints=true")
        elif stage in ("preflight", "score", "update", "validation"):
            longest = max((shape.tokens for shape in self.shapes), default=1)
            size = min(learner.batch.token_budget, longest * self.rows_per_step)
            trunks = [x for x in learner.networks.values() if isinstance(x, Policy | ScalarModel)]
            if not all(trunk.gradient_checkpointing for trunk in trunks):
                advice.insert(0, "policy.gradient_checkpointing=true")
            if size > longest:
                row = f"the longest row has {longest} tokens"
                advice.insert(0, f"batch.token_budget={max(longest, size // 2)} ({row})")
        return ", or ".join(advice[:2])


def device_memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def unchanged(learner: LearnerView) -> Iterator[None]:
    """Restore the metrics, and the tensors and containers that are attributes of the learner and
    its extensions, after the block, and drop all gradients. Containers are copied one level deep;
    other objects, such as the rollout, must not change in the block."""
    metrics = learner.meter.metrics
    learner.meter.metrics = {}
    tensors = {name: x.clone() for name, x in vars(learner).items() if isinstance(x, Tensor)}
    before = [_snapshot(extension) for extension in learner.extensions]
    try:
        yield
    finally:
        learner.meter.metrics = metrics
        vars(learner).update(tensors)
        for extension, values in zip(learner.extensions, before, strict=True):
            vars(extension).clear()
            vars(extension).update(values)
        for network in learner.networks.values():
            network.zero_grad(set_to_none=True)


def _snapshot(extension: object) -> dict[str, Any]:
    return {name: _copied(x) for name, x in vars(extension).items()}


def _copied(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.clone()
    return copy.copy(x) if isinstance(x, list | dict | set) else x


def allocate_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Set the gradients of all trained weights to 0: from the second microbatch of an optimizer
    step on, all of them are in memory."""
    for p in _parameters(optimizer):
        p.grad = torch.zeros_like(p)


@contextmanager
@torch.no_grad()
def allocated_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Allocate the state of an optimizer that has made no step, and drop it after the block.

    The optimizer makes one step with the gradients of `allocate_gradients`, whose temporary tensors
    count too. Weights are copied to the CPU before, because weight decay changes them, and
    restored."""
    if optimizer.state:
        yield
        return
    parameters = _parameters(optimizer)
    groups = [dict(group) for group in optimizer.param_groups]
    weights = [_local(p).to("cpu", copy=True) for p in parameters]
    type(optimizer).step(optimizer)  # not the instance's, by which schedules count steps
    for p, weight in zip(parameters, weights, strict=True):
        _local(p).copy_(weight)
    del weights
    try:
        with torch.enable_grad():
            yield
    finally:
        optimizer.state.clear()
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(values)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _local(p: Tensor) -> Tensor:
    return p.to_local().detach() if isinstance(p, DTensor) else p.detach()


def largest_microbatches(tokens: Sequence[int], token_budget: int, max_rows: int) -> list[slice]:
    """Return slices of rows that are sorted by decreasing number of `tokens`: the microbatch with
    the longest rows and, if it is another, the one with the most tokens, padding included."""

    def size(rows: slice) -> int:
        return int(tokens[rows.start]) * int(rows.stop - rows.start)

    microbatches = []
    for start, length in enumerate(tokens):
        num = max(1, min(max_rows, token_budget // length))
        microbatches.append(slice(start, min(len(tokens), start + num)))
    largest = max(microbatches, key=size, default=slice(0, 0))  # of equal ones the longest
    return [*microbatches[:1], largest] if largest.start else microbatches[:1]


def largest_shapes(longest: RowShape, token_budget: int, max_rows: int) -> list[tuple[int, int]]:
    """Return the numbers of rows, and of tokens of their responses, of the largest microbatches of
    sampled responses, which may have any length up to the `longest` row's: of as many of these as
    fit and, if that has more tokens, of one row more but shorter ones."""
    num = min(max_rows, max(1, token_budget // longest.tokens))
    shapes = [(num, longest.response)]
    more = min(max_rows, num + 1)
    response = min(longest.response, token_budget // (more * longest.num) - longest.prompt)
    size = num * (longest.prompt + longest.response)
    if response > 0 and more * (longest.prompt + response) > size:
        shapes.append((more, response))
    return shapes
