"""Loader of prompt batches, an endless stream that can be saved and resumed at any batch, and the
Lightning data module that owns it."""

import hashlib
import heapq
import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

import lightning as L
import torch

from rlmods.data.file_rows import FileRows
from rlmods.data.pools import DifficultyPools
from rlmods.data.schema import Splits
from rlmods.errors import UserError
from rlmods.types import Prompt


class PromptStream:
    """Endless stream of the prompts of one source. Each pass over them is a new permutation, a
    function of (seed, pass).

    With `pools`, a pass leaves out the prompts that are retired when it begins, and positions must
    be read in ascending order."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: str,
        pools: DifficultyPools | None = None,
        min_prompts: int = 1,
    ) -> None:
        """
        Args:
            min_prompts: number of prompts that stay in every pass, however many are retired.
        """
        self.prompts = prompts
        self.seed = seed
        self.pools = pools
        self.min_prompts = min_prompts
        self._pass_number = -1
        self._start = 0  # position at which the current pass begins
        self._order: Sequence[int] = ()  # indices of the prompts of the current pass
        self._retired: list[str] = []  # sorted, as states hold them in every iteration

    def __getitem__(self, position: int) -> Prompt:
        """Return the prompt at a position; its `time` is the number of the pass."""
        if self.pools is None and not 0 <= position - self._start < len(self._order):
            number, index = divmod(position, len(self.prompts))
            self._shuffle(number, position - index)
        while position >= self._start + len(self._order):
            assert self.pools is not None
            number = self._pass_number + 1
            retired = self.pools.begin_pass(
                self._indices.keys(), f"{self.seed}-{number}", self.min_prompts
            )
            self._retired = sorted(retired)
            self._shuffle(number, self._start + len(self._order))
        prompt = self.prompts[self._order[position - self._start]]
        return replace(prompt, time=self._pass_number) if self._pass_number else prompt

    def _shuffle(self, number: int, start: int) -> None:
        order = array("q", range(len(self.prompts)))
        Random(f"{self.seed}-{number}").shuffle(order)
        if self._retired:
            retired = {self._indices[prompt_id] for prompt_id in self._retired}
            order = array("q", (index for index in order if index not in retired))
        self._order = order
        self._pass_number = number
        self._start = start

    @cached_property
    def _indices(self) -> dict[str, int]:
        """Index of each prompt by id; only retirement needs it."""
        return {prompt.id: index for index, prompt in enumerate(self.prompts)}

    def state_dict(self) -> dict[str, Any]:
        """Return the current pass, which with `pools` depends on what was retired when it and the
        earlier ones began."""
        return {"pass": self._pass_number, "start": self._start, "retired": self._retired}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._retired = list(state["retired"])
        if state["pass"] >= 0:
            self._shuffle(state["pass"], state["start"])


def source_at(position: int, shares: Mapping[str, float]) -> tuple[str, int]:
    """Return the source whose turn is at a position, and the number of earlier positions that are
    its own. With w_i the share of source i, its item number k comes at time (k + 1/2) / w_i
    (Webster's method), so that after n positions it has had n * w_i items, up to rounding.

    Args:
        shares: share of each source, which together are 1.
    """
    before = position - len(shares)  # fewer than `position` items come before this time
    heads = []
    for order, (name, share) in enumerate(shares.items()):
        taken = max(0, math.ceil(share * before - 0.5))
        position -= taken
        heads.append(((taken + 0.5) / share, order, name, taken))
    heapq.heapify(heads)
    for _ in range(position):
        _, order, name, taken = heads[0]
        heapq.heapreplace(heads, ((taken + 1.5) / shares[name], order, name, taken + 1))
    return heads[0][2], heads[0][3]


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
        given = weights or {"": 1.0}
        total = sum(given.values())
        self.shares = {name: weight / total for name, weight in given.items()}
        self.is_mixed = weights is not None
        # prompts on all ranks, so that it is valid for another batch size or number of ranks
        self._num_taken = 0
        self._streams: dict[str, PromptStream] = {}
        for name, share in self.shares.items():
            own = [x for x in prompts if x.source == name] if self.is_mixed else prompts
            if not own:
                raise UserError(f"the source {name} has no rows to train on: leave it out")
            stream_seed = f"{seed}-{name}" if self.is_mixed else str(seed)
            min_prompts = math.ceil(share * batch_size)
            self._streams[name] = PromptStream(own, stream_seed, pools, min_prompts)

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
        batch = list(map(self.prompt_at, positions))
        size = self.batch_size // self.world_size
        return batch[self.rank * size : (self.rank + 1) * size]

    def prompt_at(self, position: int) -> Prompt:
        """Return the prompt at a position of the endless stream; with pools, positions must be read
        in ascending order."""
        source, index = source_at(position, self.shares)
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
        if isinstance(self.prompts, FileRows):
            digest.update(self.prompts.digest)
        else:
            for prompt in self.prompts:
                digest.update(_encode(prompt))
        if self.is_mixed:
            digest.update(json.dumps(self.shares).encode())
        return int.from_bytes(digest.digest()[:7], "big")


def _encode(prompt: Prompt) -> bytes:
    """Return everything that the fingerprint covers of a row."""
    messages = prompt.messages and list(map(dict, prompt.messages))
    row = [prompt.id, prompt.text, messages, prompt.answer, dict(prompt.meta)]
    if prompt.source is not None:
        row.append(prompt.source)
    return json.dumps(row, default=str, sort_keys=True).encode()


class PromptModule(L.LightningDataModule):
    """Data module of the train prompts; evaluation reads `splits.val`. The strategy determines
    which ranks are data-parallel, so that tensor-parallel ranks get the same prompts. Raises:
    UserError, from the loader.

    The loader's position is saved here, because Lightning drops it in checkpoints at the end of an
    epoch or of training."""

    def __init__(self, splits: Splits, batch_size: int, seed: int = 0) -> None:
        super().__init__()
        self.splits = splits
        self.batch_size = batch_size
        self.seed = seed
        self.pools: DifficultyPools | None = None
        """Retires prompts; set by `PromptRetirement.on_fit_start`."""
        self._loader: PromptLoader | None = None
        self._position: dict[str, Any] = {}

    def train_dataloader(self) -> PromptLoader:
        replica = self.trainer and self.trainer.distributed_sampler_kwargs
        replica = replica or {"rank": 0, "num_replicas": 1}
        self._loader = PromptLoader(
            self.splits.train,
            self.batch_size,
            self.seed,
            replica["rank"],
            replica["num_replicas"],
            self.splits.weights,
            self.pools,
        )
        if self._position:
            self._loader.load_state_dict(self._position)
        return self._loader

    def next_prompts(self) -> list[Prompt]:
        """Return the prompts of the batch that the loader will return next, on this rank."""
        assert self._loader is not None
        return self._loader.next_batch()

    def state_dict(self) -> dict[str, Any]:
        return self._position if self._loader is None else self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._position = state_dict

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Return the batch unchanged: prompts hold no tensors, and Lightning cannot map over frozen
        dataclasses."""
        return batch
