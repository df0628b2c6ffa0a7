"""Checks of what a part returns, at the place where it is called."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlmods.errors import UserError


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
