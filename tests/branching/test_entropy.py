"""Branching of rollouts over turns, exactly, on scripted policies."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rlmods.branching import Entropy
from rlmods.ops import keyed_uniforms
from rlmods.policy.conversation import Conversation
from rlmods.rollout.base import EncodedPrompt
from rlmods.rollout.trajectory import Limits, Row, Tree
from rlmods.types import Branch, Prompt, Turn
from tests.support.batches import few
from tests.support.environments import Script

NEVER = Entropy(num_initial=2, tau=1e9)
ALWAYS = Entropy(num_initial=1, tau=-1e9)
VOCABULARY = 50
UNIT = math.log(VOCABULARY)
Entropies = Callable[[int, int], float]
"""H of a response after its tool result number 1, 2, ...; number 0: H_initial."""


def flat(row: int, turn: int) -> float:
    """Entropies that tool results do not change."""
    return 0.3


def position(turn: int) -> int:
    """Tokens up to a tool result: turns of ten tokens."""
    return 10 * turn


def begin(sample: int) -> Row:
    prompt = Prompt(id="p", text="1+1=")
    episode = Script(["a"]).start(prompt, key=())
    encoded = EncodedPrompt(prompt, [1], 0, 9)
    return Row(prompt, encoded, sample, Limits(9, 9, 9, 9), episode, Conversation(None, ""))


def say(row: Row, entropy: float, *, ends: bool = False) -> None:
    """Add a turn whose first tokens have this entropy."""
    start = position(len(row.trajectory.turns))
    row.trajectory.turns.append(Turn(start, start + 5))
    row.entropies = [entropy * UNIT]
    row.status = "ended" if ends else "running"


def play(
    rule: Entropy,
    num_responses: int,
    entropies: Entropies = flat,
    turns: int = 3,
    key: tuple[Any, ...] = (0, "p", 0),
) -> Tree:
    """Sample responses of that many tool results."""
    tree = Tree(begin, num_responses, rule, VOCABULARY, key)
    active = tree.active
    while active:
        tree.keep_starts()
        for row in active:
            turn = len(row.trajectory.turns)
            say(row, entropies(row.sample, turn), ends=turn == turns)
        active = tree.next_rows()
    return tree


def branches(tree: Tree) -> list[Branch | None]:
    return [row.branch for row in tree.rows]


def decided(tree: Tree) -> list[list[int]]:
    """Number of branches at each tool result of each response."""
    return [[decision["num_branches"] for decision in row.decisions] for row in tree.rows]


class TestLimits:
    @pytest.mark.parametrize("num_responses", [1, 2, 7])
    def test_never_branching_is_independent_responses(self, num_responses: int) -> None:
        tree = play(NEVER, num_responses)
        assert branches(tree) == [None] * num_responses
        assert decided(tree) == [[0, 0, 0]] * num_responses

    @pytest.mark.parametrize("turns", [1, 2, 3])
    def test_always_branching_is_a_full_tree(self, turns: int) -> None:
        """Each response branches once at each tool result: 2^turns leaves, from one root."""
        tree = play(ALWAYS, 2**turns, turns=turns)
        assert len(tree.rows) == 2**turns
        expected = []
        for row in tree.rows:
            first = 1 if row.branch is None else row.branch.shared // 10 + 1
            expected += [Branch(row.sample, position(t)) for t in range(first, turns + 1)]
        root, *others = branches(tree)
        assert root is None
        assert set(others) == set(expected)
        assert len(others) == len(expected)

    def test_always_branching_ends_with_the_budget(self) -> None:
        """The first rows of the last round get what is left of it."""
        tree = play(ALWAYS, 6)
        assert branches(tree) == [
            None,
            Branch(0, 10),
            Branch(0, 20),
            Branch(0, 30),
            Branch(1, 20),
            Branch(1, 30),
        ]
        assert decided(tree) == [[1, 1, 1], [1, 1], [0], [], [0], []]

    def test_several_branches_at_one_point(self) -> None:
        tree = play(replace(ALWAYS, num_branches=3), 6, turns=2)
        assert branches(tree) == [None, *[Branch(0, 10)] * 3, *[Branch(0, 20)] * 2]
        assert decided(tree) == [[3, 2], [0], [0], [0], [], []]


class TestBudget:
    @few
    @given(
        st.integers(1, 12),
        st.integers(1, 12),
        st.integers(1, 3),
        st.integers(0, 4),
        st.integers(0, 99),
        st.sampled_from(["threshold", "probability"]),
    )
    def test_is_spent_exactly(
        self,
        num_responses: int,
        num_initial: int,
        num_branches: int,
        turns: int,
        seed: int,
        mode: Any,
    ) -> None:
        rule = Entropy(num_initial, num_branches, alpha=0.0, beta=1.0, tau=0.0, mode=mode)
        tree = play(
            rule, num_responses, lambda row, turn: keyed_uniforms(1, seed, row, turn)[0], turns
        )
        assert len(tree.rows) == num_responses
        for row, branch in enumerate(branches(tree)):
            assert branch is None or (
                branch.parent < row and branch.shared in map(position, range(1, turns + 1))
            )
        num_branched = sum(branch is not None for branch in branches(tree))
        assert sum(map(sum, decided(tree))) == num_branched

    def test_what_branches_leave_goes_to_responses_from_the_prompt_on_after_the_last_has_ended(
        self,
    ) -> None:
        tree = Tree(begin, 5, NEVER, VOCABULARY, ())
        first, second = tree.rows
        say(first, 0.3)
        say(second, 0.3, ends=True)
        assert tree.next_rows() == [first]
        say(first, 0.3, ends=True)
        new = tree.next_rows()
        assert [row.sample for row in new] == [2, 3, 4]
        assert branches(tree) == [None] * 5
        for row in new:
            say(row, 0.3, ends=True)
        assert tree.next_rows() == []


class TestRule:
    RULE = Entropy(num_initial=1, alpha=0.5, beta=0.25, tau=0.5625)

    @pytest.mark.parametrize(
        ("entropy", "branches_off"), [(0.25, 0), (0.5, 0), (0.5 + 1e-9, 1), (1.0, 1)]
    )
    def test_branches_where_the_probability_exceeds_the_threshold(
        self, entropy: float, branches_off: int
    ) -> None:
        """P = 0.5 + 0.25 (H - 0.25) > 0.5625, where H > 0.5."""
        tree = play(self.RULE, 2, lambda row, turn: 0.25 if turn == 0 else entropy, turns=1)
        assert [branch for branch in branches(tree) if branch] == [Branch(0, 10)] * branches_off
        [decision] = tree.rows[0].decisions
        assert decision == pytest.approx(
            {
                "row": 0,
                "position": 10,
                "entropy": entropy,
                "initial_entropy": 0.25,
                "probability": 0.5 + 0.25 * (entropy - 0.25),
                "num_branches": branches_off,
            }
        )

    def test_a_branch_has_the_initial_entropy_of_its_root(self) -> None:
        tree = play(
            replace(ALWAYS, num_initial=2),
            6,
            lambda row, turn: 0.1 * (row + 1) if turn == 0 else 0.9,
            turns=2,
        )
        roots = [0.1, 0.2]
        for row in tree.rows:
            root = row
            while root.branch is not None:
                root = tree.rows[root.branch.parent]
            for decision in row.decisions:
                assert decision["initial_entropy"] == pytest.approx(roots[root.sample])

    def test_entropy_is_the_mean_of_the_first_tokens_in_units_of_the_uniform_distribution(
        self,
    ) -> None:
        rule = Entropy(num_tokens=3)
        unit = math.log(50)
        assert rule.normalized_entropy([unit, 0.0, unit / 2, 99.0], 50) == pytest.approx(0.5)
        assert rule.normalized_entropy([unit], 50) == pytest.approx(1.0)


class TestProbability:
    """A coin for each decision, which depends on the key, the response and the position alone."""

    COIN = Entropy(num_initial=1, alpha=0.2, beta=1.0, tau=0.0, mode="probability")

    def branched(self, rule: Entropy, entropy: float, prompts: int = 400) -> list[bool]:
        """Decisions at one tool result of many prompts."""
        found = []
        for prompt in range(prompts):
            key = (3, f"p{prompt}", 5)
            tree = play(rule, 2, lambda row, turn: 0.25 if turn == 0 else entropy, 1, key)
            found.append(tree.rows[0].decisions[0]["num_branches"] == 1)
        return found

    @pytest.mark.parametrize("entropy", [0.25, 0.75])
    def test_branches_with_probability_p(self, entropy: float) -> None:
        p = 0.2 + entropy - 0.25
        found = self.branched(self.COIN, entropy)
        assert found == [
            keyed_uniforms(1, 3, f"p{prompt}", 5, "branch", 0, 10)[0] < p for prompt in range(400)
        ]
        assert sum(found) / 400 == pytest.approx(p, abs=4 * (p * (1 - p) / 400) ** 0.5)

    def test_coins_differ_by_response_and_position_and_are_repeated_by_the_key(self) -> None:
        rule = replace(self.COIN, alpha=0.5, num_initial=4)

        def decisions(key: tuple[Any, ...]) -> list[list[int]]:
            return decided(play(rule, 64, turns=4, key=key))

        found = decisions((1, "p", 2))
        assert found == decisions((1, "p", 2))
        assert found != decisions((1, "p", 3))
        at_results = [{found[row][turn] for row in range(4)} for turn in range(2)]
        assert {0, 1} in at_results
