"""Columns of a batch for responses that branch off from others, or that have cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlmods.errors import UserError
from rlmods.types import Response


def segment_starts(responses: Sequence[Response], shape: tuple[int, int]) -> Tensor:
    """Return `Experience.cuts`.

    Raises:
        UserError: no context begins at a cut.
    """
    starts = torch.zeros(shape, dtype=torch.bool)
    for row, response in enumerate(responses):
        last = 0
        for cut in response.cuts:
            is_inside = last < cut < len(response.tokens)
            if not is_inside or response.mask is None or response.mask[cut]:
                raise UserError(
                    f"rollout: a response to prompt {response.prompt.id!r} has a cut at token "
                    f"{cut}, where no context begins: return the indices at which tokens that "
                    "were not sampled begin a segment"
                )
            starts[row, len(response.prompt_tokens) + cut] = True
            last = cut
    return starts


def branch_origins(
    responses: Sequence[Response], group: Sequence[int], shape: tuple[int, int]
) -> Tensor:
    """Return `Experience.origin`: for each response token, the index within its group of the
    response that sampled it. Prompt and padding slots hold the row's own index.

    Raises:
        UserError: a branch that is not a prefix of its parent.
    """
    members: dict[int, list[Response]] = {}
    origin = torch.empty(shape, dtype=torch.long)
    for row, response in enumerate(responses):
        siblings = members.setdefault(group[row], [])
        origin[row] = len(siblings)
        siblings.append(response)
    for row, response in enumerate(responses):
        siblings = members[group[row]]
        start, shared = len(response.prompt_tokens), shape[1]
        for child, parent, length in _ancestors(siblings, int(origin[row, 0])):
            _check_branch(siblings[child], siblings[parent], length)
            shared = min(shared, length)
            origin[row, start : start + shared] = parent
    return origin


def _ancestors(siblings: Sequence[Response], index: int) -> Iterator[tuple[int, int, int]]:
    """Yield (child, parent, shared tokens) from a response up to the root of its tree.

    Raises:
        UserError: a parent does not exist, or is a descendant.
    """
    seen = {index}
    branch = siblings[index].branch
    while branch is not None:
        if branch.parent in seen or not 0 <= branch.parent < len(siblings):
            raise UserError(
                f"rollout: response {index} to prompt {siblings[index].prompt.id!r} branches off "
                f"from response {branch.parent}, which is not another response to the prompt or "
                "branches off from this one"
            )
        yield index, branch.parent, branch.shared
        index = branch.parent
        seen.add(index)
        branch = siblings[index].branch


def _check_branch(child: Response, parent: Response, shared: int) -> None:
    """Raise UserError unless the first `shared` tokens of a response are the parent's."""

    def prefix(response: Response) -> tuple[list[int], list[int], list[int]]:
        cuts = [cut for cut in response.cuts if cut < shared]
        return list(response.prompt_tokens), list(response.tokens[:shared]), cuts

    if prefix(child) != prefix(parent) or not 0 <= shared <= len(child.tokens):
        raise UserError(
            f"rollout: a response to prompt {child.prompt.id!r} does not share its first "
            f"{shared} tokens with its parent"
        )
