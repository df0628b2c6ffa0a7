"""Loader of prompt batches: an endless stream that can be saved and resumed at any batch."""

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
    """Endless stream of prompts, split into global batches of `batch_size`. Each pass over the data is a new permutation, a function of
    (seed, pass). Batches may span two passes, so every prompt is seen once per pass and none is dropped; if `batch_size` exceeds the data,
    a batch holds prompts twice. Each rank gets its own slice of every global batch.

    Every `iter()` continues the stream and ends after `len()` batches, the length of an epoch. The position advances before a batch is
    returned: a checkpoint written during batch k resumes at k + 1.

    Raises: UserError if a batch cannot be split evenly over the ranks."""

    def __init__(self, prompts: Sequence[Prompt], batch_size: int, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        if not prompts:
            raise UserError("the data set has no prompts to train on")
        if batch_size < 1 or batch_size % world_size:
            raise UserError(
                f"a batch of {batch_size} prompts cannot be shared evenly by {world_size} ranks; use a multiple of {world_size}"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not below the world size {world_size}")
        self.prompts, self.batch_size, self.seed, self.rank, self.world_size = prompts, batch_size, seed, rank, world_size
        self._num_taken = 0  # prompts on all ranks, so that it is valid for another batch size or number of ranks
        self._permutation: tuple[int, list[int]] = (-1, [])  # number of the pass, and its order

    def __len__(self) -> int:
        """Number of batches per epoch. Without a length Lightning prefetches one batch, and rollouts would use an outdated policy."""
        return math.ceil(len(self.prompts) / self.batch_size)

    def __iter__(self) -> Iterator[list[Prompt]]:
        rank_batch_size = self.batch_size // self.world_size
        for _ in range(len(self)):
            start = self._num_taken + self.rank * rank_batch_size
            self._num_taken += self.batch_size
            yield [self.prompt_at(position) for position in range(start, start + rank_batch_size)]

    def prompt_at(self, position: int) -> Prompt:
        """Return the prompt at a position of the endless stream."""
        pass_number, index = divmod(position, len(self.prompts))
        if self._permutation[0] != pass_number:
            order = list(range(len(self.prompts)))
            Random(f"{self.seed}-{pass_number}").shuffle(order)
            self._permutation = (pass_number, order)
        prompt = self.prompts[self._permutation[1][index]]
        return replace(prompt, time=pass_number) if pass_number else prompt

    def state_dict(self) -> dict[str, int]:
        """Return the state, which is the same on every rank."""
        return {"taken": self._num_taken, "seed": self.seed, "prompts": len(self.prompts), "fingerprint": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises: UserError if data or seed changed, as the rest of the pass would repeat and skip prompts."""
        current = self.state_dict()
        if (state["prompts"], state["fingerprint"]) != (current["prompts"], current["fingerprint"]):
            counts = f"{state['prompts']} prompts then, {current['prompts']} now"
            raise UserError(f"the data changed between save and resume ({counts}); restore it, or start anew with resume=null")
        if state["seed"] != self.seed:
            raise UserError(f"the seed changed between save and resume; type seed={state['seed']}, or start anew with resume=null")
        self._num_taken = int(state["taken"])

    def _fingerprint(self) -> int:
        digest = hashlib.sha256()
        for p in self.prompts:
            messages = None if p.messages is None else [dict(m) for m in p.messages]
            digest.update(json.dumps([p.id, p.text, messages, p.answer, dict(p.meta)], default=str, sort_keys=True).encode())
        return int.from_bytes(digest.digest()[:7], "big")
