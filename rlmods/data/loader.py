"""Prompts in batches, as an endless stream that can be saved and resumed anywhere."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from rlmods.types import Prompt, UserError


class PromptLoader:
    """One stream: a fresh permutation of the prompts per pass, each a function of (seed, pass), laid end to end and cut into global batches
    of `batch_size`. What does not fill a batch opens the next one, so every prompt is seen once per pass and none is dropped; where
    `batch_size` exceeds the data, a batch holds a prompt twice. Each rank gets its own slice of every global batch.

    Every `iter()` goes on where the stream stands and ends after `len()` batches, which is all that an epoch means here. The position
    moves before a batch is handed out: a checkpoint written while batch k is worked on resumes at k + 1.

    Raises: UserError if the ranks cannot share a batch evenly."""

    def __init__(self, prompts: Sequence[Prompt], batch_size: int, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if not prompts:
            raise UserError("the data set has no prompts to train on")
        if batch_size < 1 or batch_size % world_size:
            raise UserError(f"a batch of {batch_size} prompts cannot be shared evenly by {world_size} ranks; take a multiple")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        self.prompts, self.batch_size, self.seed, self.rank, self.world_size = prompts, batch_size, seed, rank, world_size
        self._taken = 0  # prompts, on all ranks: another batch size or another number of ranks can go on from it
        self._pass: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        """Batches per epoch. Without a length Lightning would fetch one batch ahead: rollouts one policy stale."""
        return math.ceil(len(self.prompts) / self.batch_size)

    def __iter__(self) -> Iterator[list[Prompt]]:
        share = self.batch_size // self.world_size
        for _ in range(len(self)):
            start = self._taken + self.rank * share
            self._taken += self.batch_size
            yield [self.at(position) for position in range(start, start + share)]

    def at(self, position: int) -> Prompt:
        """The prompt at a place of the endless stream."""
        number, place = divmod(position, len(self.prompts))
        if self._pass[0] != number:
            order = list(range(len(self.prompts)))
            Random(f"{self.seed}-{number}").shuffle(order)
            self._pass = (number, order)
        prompt = self.prompts[self._pass[1][place]]
        return replace(prompt, time=number) if number else prompt

    def state_dict(self) -> dict[str, int]:
        """The same on every rank."""
        return {"taken": self._taken, "seed": self.seed, "prompts": len(self.prompts), "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises: UserError if the data or the seed is not what the state was saved with: the rest of the pass would repeat and skip."""
        mine = self.state_dict()
        if (state["prompts"], state["fingerprint"]) != (mine["prompts"], mine["fingerprint"]):
            counts = f"{state['prompts']} prompts then, {mine['prompts']} now"
            raise UserError(f"the data changed between save and resume ({counts}); restore it, or start anew with resume=null")
        if state["seed"] != self.seed:
            raise UserError(f"the seed changed between save and resume; type seed={state['seed']}, or start anew with resume=null")
        self._taken = int(state["taken"])

    def _fingerprint(self) -> int:
        digest = hashlib.sha256()
        for p in self.prompts:
            messages = None if p.messages is None else [dict(m) for m in p.messages]
            digest.update(json.dumps([p.id, p.text, messages, p.answer, dict(p.meta)], default=str, sort_keys=True).encode())
        return int.from_bytes(digest.digest()[:7], "big")
