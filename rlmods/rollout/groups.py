"""The responses to a prompt while they are sampled, with and without branches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from rlmods.branching import Entropy
from rlmods.branching.plan import BranchPlan
from rlmods.rollout.trajectory import Row
from rlmods.types import Branch


class Group:
    """The responses to a prompt, none of which branch."""

    def __init__(self, begin: Callable[[int], Row], num_responses: int) -> None:
        """
        Args:
            begin: returns the response of this index, before its first turn.
        """
        self.begin = begin
        self.rows = [begin(sample) for sample in range(num_responses)]

    def keep_starts(self) -> None:
        """Copy what branches of the next turns need."""

    def next_rows(self) -> list[Row]:
        """Return the responses that go on, after each has had a turn."""
        return [row for row in self.rows if not row.done]


class Tree(Group):
    """The responses to a prompt, which branch by a rule."""

    def __init__(
        self,
        begin: Callable[[int], Row],
        num_responses: int,
        rule: Entropy,
        vocabulary: int,
        key: tuple[int | str, ...],
    ) -> None:
        self.plan = BranchPlan(rule, num_responses, key)
        self.vocabulary = vocabulary
        super().__init__(begin, len(self.plan))
        self.active = list(self.rows)
        self.starts: dict[int, Row] = {}
        """Responses as they were before the turn that is being sampled, by index."""

    def keep_starts(self) -> None:
        if len(self.plan) < self.plan.num_responses:
            started = [row for row in self.active if row.trajectory.turns]
            self.starts = {row.sample: row.copied() for row in started}

    def next_rows(self) -> list[Row]:
        new = []
        for row in self.active:
            new += self._branches(row)
        for row in self.active:
            if row.done:
                new += [self.begin(sample) for sample in self.plan.on_end(row.sample)]
        self.rows += new
        self.active = [row for row in self.active if not row.done] + new
        return self.active

    def _branches(self, row: Row) -> list[Row]:
        """Return the branches that leave a response before the turn that it has had."""
        turn = row.trajectory.turns[-1]
        entropies = () if row.last is None else row.last.entropies
        entropy = self.plan.rule.normalized_entropy(entropies, self.vocabulary)
        if len(row.trajectory.turns) == 1:
            self.plan.on_start(row.sample, entropy)
            return []
        # the observation at which it branched off itself
        if row.branch is not None and row.branch.shared == turn.start:
            return []
        samples = self.plan.on_tool_result(row.sample, turn.start, entropy)
        row.decisions.append(self.plan.decisions[-1]._asdict())
        branches = []
        for sample in samples:
            branch = self.starts[row.sample].copied()
            branch.sample = sample
            branch.branch = Branch(row.sample, turn.start)
            branch.last = row.last
            branches.append(branch)
        return branches


def shared_contexts(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each context: all rows before their first turn whose prompts are the same,
    whose ids are then processed once, and one row in a later turn."""
    shared: dict[Hashable, list[Row]] = {}
    for row in rows:
        key: Hashable = id(row)
        if not row.trajectory.tokens:
            key = (id(row.prompt), row.encoded.occurrence, tuple(row.encoded.tokens))
        shared.setdefault(key, []).append(row)
    return list(shared.values())
