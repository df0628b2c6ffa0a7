"""Reward models with random weights, saved in the format of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlmods.policy import Policy, ScalarModel
from rlmods.types import Finish, Prompt, Response
from tests.support.models import llama


def save(run: Path, seed: int = 0, tokenizer: Any = None, **metadata: Any) -> str:
    """Save a reward model as a run directory, and return its path."""
    model = ScalarModel.from_policy(reader(tokenizer))
    model.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    model.metadata.update(metadata)
    model.export(run / "export")
    return str(run)


def reader(tokenizer: Any = None) -> Policy:
    from rlmods.policy.tiny import character_tokenizer

    return Policy(llama(), tokenizer or character_tokenizer())


def said(
    text: str,
    *,
    prompt: str = "1+2=",
    finish: Finish = "stop",
    tokens: Sequence[int] | None = None,
    **more: Any,
) -> Response:
    """Response with the tokens of the tiny policy's tokenizer, unless other tokens are given."""
    policy = reader()
    ids = policy.encode_response(text, finished=finish == "stop") if tokens is None else tokens
    request = Prompt(id=prompt, text=prompt, **more)
    return Response(request, policy.encode(request), ids, [0.0] * len(ids), text, finish)
