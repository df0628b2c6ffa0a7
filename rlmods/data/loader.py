"""Loader of prompt batches: an endless stream that can be saved and resumed at any batch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from rlmods.data.pools import DifficultyPools
from rlmods.data.stream import Interleaving, PromptStream
from rlmods.errors import UserError
from rlmods.types import Prompt


class PromptLoader:
    """Endless stream of prompts, split into global batches of `batch_size`. Each pass over the data
    is a new permutation, a function of (seed, pass). Batches may span two passes, so every prompt
    is seen once per pass and none is dropped; if `batch_size` exceeds the data, a batch holds
    prompts twice. Each rank gets its own slice of every global batch. With `weights`, sources
    (`Prompt.source`) take turns in proportion to them, and each has its own passes.

    Every `iter()` continues the stream and ends after `len()` batches, the length of an epoch. The
    position advances before a batch is returned: a checkpoint written during batch k resumes at k +
    1.

    Raises: UserError if a batch cannot be split evenly over the ranks."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        weights: Mapping[str, float] | None = None,
        pools: DifficultyPools | None = None,
    ) -> None:
        """
        Args:
            weights: weight of each source; None: one stream of all prompts.
            pools: retires prompts from the passes that begin later.
        """
        if not prompts:
            raise UserError("the data set has no prompts to train on")
        if batch_size < 1 or batch_size % world_size:
            raise UserError(
                f"a batch of {batch_size} prompts cannot be shared evenly by {world_size} "
                f"ranks; use a multiple of {world_size}"
            )
        self.prompts = prompts
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.pools = pools
        self.interleaving = None if weights is None else Interleaving(weights)
        # prompts on all ranks, so that it is valid for another batch size or number of ranks
        self._num_taken = 0
        if self.interleaving is None:
            self._streams = {"": PromptStream(prompts, str(seed), pools, batch_size)}
            return
        sources: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            sources.setdefault(str(prompt.source), []).append(prompt)
        self._streams = {}
        for name, share in self.interleaving.shares.items():
            min_prompts = math.ceil(share * batch_size)
            self._streams[name] = PromptStream(sources[name], f"{seed}-{name}", pools, min_prompts)

    def __len__(self) -> int:
        """Number of batches per epoch. Without a length Lightning prefetches one batch, and
        rollouts would use an outdated policy."""
        return math.ceil(len(self.prompts) / self.batch_size)

    def __iter__(self) -> Iterator[list[Prompt]]:
        for _ in range(len(self)):
            batch = self.next_batch()
            self._num_taken += self.batch_size
            yield batch

    def next_batch(self) -> list[Prompt]:
        """Return this rank's slice of the next batch without advancing. With pools, only `iter()`
        may do so: a pass begins with it."""
        # All of the global batch on every rank: with pools, passes begin in the same batch on each.
        positions = range(self._num_taken, self._num_taken + self.batch_size)
        batch = [self.prompt_at(position) for position in positions]
        size = self.batch_size // self.world_size
        return batch[self.rank * size : (self.rank + 1) * size]

    def prompt_at(self, position: int) -> Prompt:
        """Return the prompt at a position of the endless stream; with pools, positions must be read
        in ascending order."""
        if self.interleaving is None:
            return self._streams[""][position]
        source, index = self.interleaving(position)
        return self._streams[source][index]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is the same on every rank. It is kept in every iteration, so only
        the first call reads the rows."""
        state: dict[str, Any] = {
            "taken": self._num_taken,
            "seed": self.seed,
            "prompts": len(self.prompts),
            "fingerprint": self._fingerprint,
        }
        if self.pools is not None:
            state["streams"] = {name: stream.state_dict() for name, stream in self._streams.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises: UserError if data or seed changed, as the rest of the pass
        would repeat and skip prompts."""
        current = self.state_dict()
        if (state["prompts"], state["fingerprint"]) != (current["prompts"], current["fingerprint"]):
            counts = f"{state['prompts']} prompts then, {current['prompts']} now"
            raise UserError(
                f"the data changed between save and resume ({counts}); restore it, or start "
                "anew with resume=null"
            )
        if state["seed"] != self.seed:
            raise UserError(
                f"the seed changed between save and resume; type seed={state['seed']}, or "
                "start anew with resume=null"
            )
        self._num_taken = int(state["taken"])
        if self.pools is not None:
            for name, stream in self._streams.items():
                stream.load_state_dict(state["streams"][name])

    @cached_property
    def _fingerprint(self) -> int:
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(_encode(prompt))
        if self.interleaving is not None:
            digest.update(json.dumps(self.interleaving.shares).encode())
        return int.from_bytes(digest.digest()[:7], "big")


def _encode(prompt: Prompt) -> bytes:
    """Return everything that the fingerprint covers of a row."""
    row: list[Any] = [prompt.id, prompt.text, None, prompt.answer, dict(prompt.meta)]
    if prompt.messages is not None:
        row[2] = [dict(message) for message in prompt.messages]
    if prompt.source is not None:
        row.append(prompt.source)
    return json.dumps(row, default=str, sort_keys=True).encode()
