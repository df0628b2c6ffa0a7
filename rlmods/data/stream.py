"""Endless streams of prompts: permutations of one source, and sources that take turns by weight."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from rlmods.data.pools import DifficultyPools
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
        self._order: list[Prompt] = []  # prompts of the current pass
        self._retired: list[str] = []  # sorted, as states hold them in every iteration

    def __getitem__(self, position: int) -> Prompt:
        """Return the prompt at a position; its `time` is the number of the pass."""
        if self.pools is None and not 0 <= position - self._start < len(self._order):
            number, index = divmod(position, len(self.prompts))
            self._shuffle(number, position - index)
        while position >= self._start + len(self._order):
            assert self.pools is not None
            number = self._pass_number + 1
            ids = [prompt.id for prompt in self.prompts]
            retired = self.pools.begin_pass(ids, f"{self.seed}-{number}", self.min_prompts)
            self._retired = sorted(retired)
            self._shuffle(number, self._start + len(self._order))
        prompt = self._order[position - self._start]
        return replace(prompt, time=self._pass_number) if self._pass_number else prompt

    def _shuffle(self, number: int, start: int) -> None:
        order = list(self.prompts)
        Random(f"{self.seed}-{number}").shuffle(order)
        retired = set(self._retired)
        self._order = [prompt for prompt in order if prompt.id not in retired]
        self._pass_number = number
        self._start = start

    def state_dict(self) -> dict[str, Any]:
        """Return the current pass, which with `pools` depends on what was retired when it and the
        earlier ones began."""
        return {"pass": self._pass_number, "start": self._start, "retired": self._retired}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self._retired = list(state["retired"])
        if state["pass"] >= 0:
            self._shuffle(state["pass"], state["start"])


class Interleaving:
    """Order in which sources take turns. With w_i the share of source i, its item number k comes at
    time (k + 1/2) / w_i (Webster's method), so that after n positions it has had n * w_i items, up
    to rounding."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """
        Args:
            weights: weight of each source, above 0; its share is the weight divided by their sum.
        """
        total = sum(weights.values())
        self.shares = {name: weight / total for name, weight in weights.items()}

    def __call__(self, position: int) -> tuple[str, int]:
        """Return the source at a position, and the number of earlier positions that are its own."""
        before = position - len(self.shares)  # fewer than `position` items come before this time
        heads = []
        for order, (name, share) in enumerate(self.shares.items()):
            taken = max(0, math.ceil(share * before - 0.5))
            position -= taken
            heads.append(((taken + 0.5) / share, order, name, taken))
        heapq.heapify(heads)
        for _ in range(position):
            _, order, name, taken = heads[0]
            heapq.heapreplace(heads, ((taken + 1.5) / self.shares[name], order, name, taken + 1))
        return heads[0][2], heads[0][3]
