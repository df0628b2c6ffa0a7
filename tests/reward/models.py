"""Trained models to score with: random ones, saved as a run saves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlmods.policy import Policy, ScalarModel
from rlmods.types import Finish, Prompt, Response
from tests.policy.test_base import llama


def save(run: Path, seed: int = 0, tokenizer: Any = None, **facts: Any) -> str:
    """A run directory with a reward model in it."""
    made = ScalarModel.from_policy(reader(tokenizer))
    made.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    made.metadata.update(facts)
    made.export(run / "export")
    return str(run)


def reader(tokenizer: Any = None) -> Policy:
    from rlmods.policy.tiny import character_tokenizer

    return Policy(llama(), tokenizer or character_tokenizer())


def said(text: str, *, prompt: str = "1+2=", finish: Finish = "stop", tokens: Sequence[int] | None = None, **more: Any) -> Response:
    """A response as the tiny policy samples it, unless other tokens are given."""
    policy = reader()
    ids = policy.encode_response(text, finished=finish == "stop") if tokens is None else tokens
    asked = Prompt(id=prompt, text=prompt, **more)
    return Response(asked, policy.encode(asked), ids, [0.0] * len(ids), text, finish)
