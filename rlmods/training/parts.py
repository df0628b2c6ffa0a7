"""Checks of what a part returns, at the place where it is called, and the selection of the tokens
that an optimizer step trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlmods.errors import UserError
from rlmods.needs import TokenNeeds, needs_of
from rlmods.policy.base import PolicyOutput
from rlmods.protocols import Controller, KeepsOthers, Tokens
from rlmods.types import Experience, TokenFloats, TokenMask

MIXERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Odd 64-bit constants of splitmix64, as signed integers."""


def check_returned(
    part: object,
    group: str,
    name: str,
    value: object,
    shape: Sequence[int],
    *,
    is_mask: bool = False,
) -> None:
    """Check type and shape of a tensor that a part of `group` returns, without reading its
    elements.

    Raises:
        UserError: it is something else; the message names part and field.
    """
    kind = "bool" if is_mask else "float"
    if isinstance(value, Tensor):
        has_kind = value.dtype == torch.bool if is_mask else value.is_floating_point()
        if has_kind and value.shape == torch.Size(shape):
            return
        found = f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}"
    else:
        found = type(value).__name__
    raise UserError(
        f"{group} {type(part).__name__}: {name} must be a {kind} tensor of shape {list(shape)}, "
        f"not {found}"
    )


def field_of(part: object, group: str, name: str, result: object) -> object:
    """Return a field of what a part returns.

    Raises:
        UserError: it has no such field.
    """
    if hasattr(result, name):
        return getattr(result, name)
    raise UserError(
        f"{group} {type(part).__name__} returned {type(result).__name__}, which has no `{name}`"
    )


def controllers_in(part: object, key: str) -> dict[str, Controller]:
    """Return a part if it changes while training, and such parts among the fields of dataclasses,
    the values of mappings and the items of lists in it, by dotted key: `advantage`, or
    `advantage.terms.NAME.estimator`."""
    found: dict[str, Controller] = {}
    if isinstance(part, type):
        return found
    if isinstance(part, Controller):
        found[key] = part
    inner: Mapping[Any, object] = {}
    if is_dataclass(part):
        inner = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    elif isinstance(part, Mapping):
        inner = part
    elif isinstance(part, list | tuple):
        inner = dict(enumerate(part))
    for name, value in inner.items():
        found |= controllers_in(value, f"{key}.{name}")
    return found


def check_gradient(extension: object, term: Tensor) -> None:
    """Raise UserError if the loss term of an extension would train nothing."""
    if torch.is_grad_enabled() and not term.requires_grad:
        raise UserError(
            f"{type(extension).__name__}: loss_term has no gradient; set needs_entropy = True if "
            "it reads output.entropy, or return None"
        )


def check_finite(part: object, group: str, name: str, value: Tensor, mask: Tensor) -> None:
    """Raise UserError for an element that is not finite where `mask` is True."""
    count = int((mask & ~value.isfinite()).sum())
    if count:
        raise UserError(
            f"{group} {type(part).__name__}: {name} is NaN or infinite on {count} of "
            f"{int(mask.sum())} tokens"
        )


@dataclass(frozen=True)
class TokenSelection:
    """Calls a part of the group `tokens` with the arguments that it declares
    (`rlmods.needs.TokenNeeds`)."""

    part: Tokens

    @cached_property
    def needs(self) -> TokenNeeds:
        """The declarations of the part."""
        return needs_of(self.part, TokenNeeds)

    def before_step(self, rows: Experience, output: PolicyOutput, step: int) -> Experience:
        """Store the selection among the rows of this rank in an optimizer step, the number `step`
        of the run, given a forward of the current policy."""
        return replace(rows, trained=self._select(rows, output, step))

    def __call__(self, micro: Experience, output: PolicyOutput) -> TokenMask | None:
        """Return the selected tokens of a microbatch; None: all of them."""
        return micro.trained if self.needs.step else self._select(micro, output, 0)

    def objective(
        self, objective: TokenFloats, log_ratio: TokenFloats, trained: TokenMask
    ) -> TokenFloats:
        """Return the objective of the ratio where `trained` is True, and elsewhere the part's other
        one, or 0."""
        if isinstance(self.part, KeepsOthers):
            other = self.part.others(objective, log_ratio)
            return torch.where(trained, objective, other)
        return torch.where(trained, objective, 0.0)

    def _select(self, rows: Experience, output: PolicyOutput, step: int) -> TokenMask | None:
        options: dict[str, Tensor] = {}
        if self.needs.behavior:
            options["behavior_logprobs"] = rows.behavior_logprobs
        if self.needs.entropy:
            options["entropy"] = output.entropy.detach()
        if self.needs.draws:
            options["draws"] = token_draws(rows, step)
        part: Any = self.part
        selected: TokenMask | None = part(
            output.logprobs.detach(), rows.advantages, rows.mask, **options
        )
        if selected is not None:
            shape = rows.mask.shape
            check_returned(part, "tokens", "the selection", selected, shape, is_mask=True)
        return selected


def token_draws(rows: Experience, key: int) -> TokenFloats:
    """Return uniform numbers in [0, 1) from a hash of the key, the tokens of the row and the
    column: independent of the other rows, of padding, of ranks and of a generator."""
    columns = torch.arange(rows.tokens.shape[1], device=rows.tokens.device).expand_as(rows.tokens)
    used = columns < rows.lengths[:, None]
    of_columns = _mix(columns + 1)
    of_rows = torch.where(used, (rows.tokens + 1) * of_columns, 0).sum(1, keepdim=True)
    hashed = _mix(_mix(of_rows + key) ^ of_columns)
    return (hashed & (2**24 - 1)).float() / 2**24


def _mix(x: Tensor) -> Tensor:
    """Return the finalizer of splitmix64, an integer hash; products wrap around."""
    x = x * MIXERS[0]
    x = (x ^ (x >> 30)) * MIXERS[1]
    x = (x ^ (x >> 27)) * MIXERS[2]
    return x ^ (x >> 31)
