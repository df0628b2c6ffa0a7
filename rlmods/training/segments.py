"""Forwards of responses with cuts (`Response.cuts`): each segment under its own context, the
results in the columns of the response.

A row of `Experience` is a whole response, also with cuts, so that credit, ratios of a sequence,
aggregation and the filters treat its segments as one response. Only the networks see the segments,
as rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from rlmods.policy.base import PolicyOutput
from rlmods.types import Experience, TokenFloats, TokenMask


@dataclass(frozen=True)
class Segments:
    """The segments of N rows of T columns as M rows of S columns, in the order of the rows, padded
    on the right."""

    used: TokenMask
    """True on the columns of the N rows that are no padding, k of them."""
    row: Int[Tensor, " k"]
    """Segment of each of them."""
    column: Int[Tensor, " k"]
    """Column of each of them in its segment."""
    shape: tuple[int, int]
    """(M, S)."""

    @staticmethod
    def of(rows: Experience) -> Segments | None:
        """Split rows where their `cuts` are True; None if there are none."""
        cuts = rows.cuts
        if cuts is None or not cuts.any():
            return None
        columns = torch.arange(cuts.shape[1], device=cuts.device).expand_as(cuts)
        used = columns < rows.lengths[:, None]
        begins = used & (cuts | (columns == 0))
        first = torch.where(begins, columns, 0).cummax(1).values
        row = begins.flatten().cumsum(0).view_as(columns)[used] - 1
        column = (columns - first)[used]
        return Segments(used, row, column, (int(begins.sum()), int(column.max()) + 1))

    def split(self, x: Tensor, fill: float = 0) -> Tensor:
        """Return the values [N, T, ...] by segment [M, S, ...], `fill` in the padding."""
        return x.new_full((*self.shape, *x.shape[2:]), fill).index_put(
            (self.row, self.column), x[self.used]
        )

    def join(self, x: Tensor, fill: float = 0) -> Tensor:
        """Return the values [M, S, ...] of segments by row [N, T, ...], `fill` in the padding."""
        joined = x.new_full((*self.used.shape, *x.shape[2:]), fill)
        return joined.index_put(self.used.nonzero(as_tuple=True), x[self.row, self.column])


def forward(
    policy: Callable[..., PolicyOutput],
    rows: Experience,
    routed_experts: Tensor | None = None,
) -> PolicyOutput:
    """Run the policy on each row. Attention is causal and restricted to the token's own segment.
    `PolicyOutput.states` are in the same order with and without cuts."""
    segments = Segments.of(rows)
    if segments is None:
        return policy(rows.tokens, rows.mask, routed_experts=routed_experts)
    experts = None if routed_experts is None else segments.split(routed_experts, -1)
    output = policy(segments.split(rows.tokens), segments.split(rows.mask), routed_experts=experts)
    joined = output._asdict()
    for name in ("logprobs", "entropy", "values", "divergence", "routed_experts"):
        if joined[name] is not None:
            joined[name] = segments.join(joined[name], -1 if name == "routed_experts" else 0)
    if output.router_logits is not None:
        logits = []
        for x in output.router_logits:
            by_segment = x.view(*segments.shape, -1)
            logits.append(segments.join(by_segment).flatten(0, 1))
        joined["router_logits"] = tuple(logits)
    return PolicyOutput(**joined)


def values(critic: Callable[[Tensor, Tensor], TokenFloats], rows: Experience) -> TokenFloats:
    """Return the values of a critic with a network of its own, also restricted to segments."""
    segments = Segments.of(rows)
    if segments is None:
        return critic(rows.tokens, rows.mask)
    return segments.join(critic(segments.split(rows.tokens), segments.split(rows.mask)))
