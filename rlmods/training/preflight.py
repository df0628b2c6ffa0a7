"""Forward and backward of the largest microbatches before training, so that a lack of memory shows
at once and not after hours."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlmods.training.metrics import peak_memory_mb
from rlmods.training.row_shape import RowShape
from rlmods.types import Prompt, Response, Totals

MIB_PER_GIB = 1024


def preflight(learner: Any) -> str:
    """Run forward and backward of `learner.largest_rows()` with the learner's own loss, with
    gradients and optimizer state in memory, and return a line with the peak and the memory of the
    device, the largest of all ranks.

    Afterwards weights, optimizer, random state, metrics and extensions are as before. Every rank
    calls this.

    Raises:
        UserError: out of memory, with the override that needs less.
    """
    device, num_microbatches, num_tokens = learner.device, 0, 0
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
        for rows in learner.largest_rows():
            more = [
                source
                for extension in learner.extensions
                for source in extension.largest_step(rows)
            ]
            for source, loss in ((rows, learner.loss), *more):
                totals = Totals(*(count.clamp(min=1) for count in source.loss_counts))
                for micro, _ in learner.microbatches(source):
                    with learner.step.gradient_sync(is_last=False):
                        learner.manual_backward(loss(micro, totals))
                    num_microbatches, num_tokens = (
                        num_microbatches + 1,
                        max(num_tokens, int(micro.forward_tokens.sum())),
                    )
        peak = (
            float(learner.ranks.reduce(torch.tensor(peak_memory_mb(device)), "max")) / MIB_PER_GIB
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # the metrics are of training
    total = device_memory(device) / 2**30
    size = (
        f"{num_microbatches} microbatch{'es' * (num_microbatches != 1)} of up to {num_tokens} "
        "tokens"
    )
    return f"preflight: {size}, peak {peak:.2f} of {total:.1f} GiB on {device} ({peak / total:.0%})"


def device_memory(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of this machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def unchanged(learner: Any) -> Iterator[None]:
    """Restore the metrics, and the tensors and containers that are attributes of the learner and
    its extensions, after the block, and drop all gradients. Containers are copied one level deep;
    other objects, such as the rollout, must not change in the block."""
    metrics, learner.meter.metrics = learner.meter.metrics, {}
    tensors = {name: x.clone() for name, x in vars(learner).items() if isinstance(x, Tensor)}
    extensions = [
        {name: _copied(x) for name, x in vars(extension).items()}
        for extension in learner.extensions
    ]
    try:
        yield
    finally:
        learner.meter.metrics = metrics
        vars(learner).update(tensors)
        for extension, values in zip(learner.extensions, extensions, strict=True):
            vars(extension).clear()
            vars(extension).update(values)
        for network in learner.networks.values():
            network.zero_grad(set_to_none=True)


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

    microbatches = [
        slice(i, min(len(tokens), i + max(1, min(max_rows, token_budget // length))))
        for i, length in enumerate(tokens)
    ]
    largest = max(microbatches, key=size, default=slice(0, 0))  # of equal ones the longest
    return [*microbatches[:1], *([largest] if largest.start else [])]


def largest_shapes(longest: RowShape, token_budget: int, max_rows: int) -> list[tuple[int, int]]:
    """Return the numbers of rows, and of tokens of their responses, of the largest microbatches of
    sampled responses, which may have any length up to that of the `longest` row: of as many of
    these as fit and, if that has more tokens, of one row more but shorter ones."""
    num = min(max_rows, max(1, token_budget // longest.tokens))
    shapes = [(num, longest.response)]
    more = min(max_rows, num + 1)
    response = min(longest.response, token_budget // (more * longest.num) - longest.prompt)
    if response > 0 and more * (longest.prompt + response) > num * (
        longest.prompt + longest.response
    ):
        shapes.append((more, response))
    return shapes


def synthetic_responses(
    learner: Any, max_rows: int, samples: int, group_size: int
) -> Iterator[list[Response]]:
    """Yield the responses of the largest microbatches of sampled responses: those to the longest
    prompts, with token ids in turn. Each response begins with another id, because forwards compute
    equal prefixes once.

    Args:
        max_rows: largest number of rows of an optimizer step on one rank.
        samples: responses of one row.
        group_size: responses to one prompt in a microbatch.
    """
    policy, prompts = learner.policy, learner.splits.train
    shapes = learner.shapes
    order = sorted(range(len(prompts)), key=lambda i: -shapes[i].prompt)
    vocabulary = policy.model.config.get_text_config().vocab_size
    for num, length in (
        largest_shapes(shapes[order[0]], learner.batch.token_budget, max_rows) if order else ()
    ):
        longest = islice(cycle(order), -(-num * samples // group_size))
        repeated = [prompts[i] for i in longest for _ in range(group_size)][: num * samples]
        added = [policy.pad_id] * learner.num_added_tokens
        yield [
            response(
                prompt,
                [*added, *policy.encode(prompt)],
                [(k + t) % vocabulary for t in range(length)],
            )
            for k, prompt in enumerate(repeated)
        ]


def response(prompt: Prompt, prompt_tokens: list[int], tokens: list[int]) -> Response:
    """Return a response of these tokens that the token limit has truncated."""
    return Response(prompt, prompt_tokens, tokens, [0.0] * len(tokens), finish="length")
