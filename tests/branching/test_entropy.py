"""Branching of rollouts over turns, exactly, on scripted policies."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.branching import Entropy
from rlmods.branching.entropy import BranchPlan, Decision
from rlmods.ops import keyed_uniforms
from rlmods.types import Branch
from tests.support.batches import few

NEVER = Entropy(num_initial=2, tau=math.inf)


ALWAYS = Entropy(num_initial=1, tau=-math.inf)


Script = Callable[[int, int], float]


"""H of a response after its tool result number 1, 2, ...; number 0: H_initial."""


def flat(row: int, turn: int) -> float:
    """Entropies that tool results do not change."""
    return 0.3


def position(turn: int) -> int:
    """Tokens up to a tool result: turns of ten tokens."""
    return 10 * turn


def play(
    rule: Entropy,
    num_responses: int,
    script: Script = flat,
    turns: int = 3,
    key: tuple[Any, ...] = (0, "p", 0),
) -> BranchPlan:
    """Sample responses of that many tool results, all of them one turn after the other."""
    plan = BranchPlan(rule, num_responses, key)
    reached = dict.fromkeys(range(len(plan)), 0)
    while reached:
        for row in sorted(reached):
            if plan.branches[row] is None and reached[row] == 0:
                plan.on_start(row, script(row, 0))
            reached[row] += 1
            new = (
                plan.on_tool_result(row, position(reached[row]), script(row, reached[row]))
                if reached[row] <= turns
                else []
            )
            reached |= dict.fromkeys(new, reached[row])
        for row in [row for row, turn in reached.items() if turn > turns]:
            del reached[row]
            reached |= dict.fromkeys(plan.on_end(row), 0)
    return plan


class TestLimits:
    @pytest.mark.parametrize("num_responses", [1, 2, 7])
    def test_never_branching_is_independent_responses(self, num_responses: int) -> None:
        plan = play(NEVER, num_responses)
        assert plan.branches == [None] * num_responses
        assert not any(decision.num_branches for decision in plan.decisions)

    @pytest.mark.parametrize("turns", [1, 2, 3])
    def test_always_branching_is_a_full_tree(self, turns: int) -> None:
        """Each response branches once at each tool result: 2^turns leaves, from one root."""
        plan = play(ALWAYS, 2**turns, turns=turns)
        expected: list[Branch | None] = [None]
        for turn in range(1, turns + 1):
            expected += [Branch(row, position(turn)) for row in range(2 ** (turn - 1))]
        assert plan.branches == expected

    def test_always_branching_ends_with_the_budget(self) -> None:
        """The first rows of the last level get what is left of it."""
        plan = play(ALWAYS, 6)
        assert plan.branches == [
            None,
            Branch(0, 10),
            Branch(0, 20),
            Branch(1, 20),
            Branch(0, 30),
            Branch(1, 30),
        ]
        assert [decision.num_branches for decision in plan.decisions] == [1, 1, 1, 1, 1, 0, 0]

    def test_several_branches_at_one_point(self) -> None:
        plan = play(replace(ALWAYS, num_branches=3), 6, turns=2)
        assert plan.branches == [None, *[Branch(0, 10)] * 3, *[Branch(0, 20)] * 2]
        assert [decision.num_branches for decision in plan.decisions] == [3, 2, 0, 0, 0]


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
        plan = play(
            rule, num_responses, lambda row, turn: keyed_uniforms(1, seed, row, turn)[0], turns
        )
        assert len(plan) == num_responses
        for row, branch in enumerate(plan.branches):
            assert branch is None or (
                branch.parent < row and branch.shared in map(position, range(1, turns + 1))
            )
        assert sum(decision.num_branches for decision in plan.decisions) == sum(
            branch is not None for branch in plan.branches
        )

    def test_what_branches_leave_goes_to_responses_from_the_prompt_on_after_the_last_has_ended(
        self,
    ) -> None:
        plan = BranchPlan(NEVER, 5, ())
        assert len(plan) == 2
        assert plan.on_end(1) == []
        assert plan.on_end(0) == [2, 3, 4]
        assert plan.branches == [None] * 5
        assert [plan.on_end(row) for row in (3, 2, 4)] == [[], [], []]


class TestRule:
    RULE = Entropy(num_initial=1, alpha=0.5, beta=0.25, tau=0.5625)

    @pytest.mark.parametrize(
        ("entropy", "branches"), [(0.25, 0), (0.5, 0), (0.5 + 1e-9, 1), (1.0, 1)]
    )
    def test_branches_where_the_probability_exceeds_the_threshold(
        self, entropy: float, branches: int
    ) -> None:
        """P = 0.5 + 0.25 (H - 0.25) > 0.5625, where H > 0.5."""
        plan = BranchPlan(self.RULE, 2, ())
        plan.on_start(0, 0.25)
        assert len(plan.on_tool_result(0, 7, entropy)) == branches
        assert plan.decisions == [
            Decision(0, 7, entropy, 0.25, 0.5 + 0.25 * (entropy - 0.25), branches)
        ]

    def test_a_branch_has_the_initial_entropy_of_its_root(self) -> None:
        plan = play(
            replace(ALWAYS, num_initial=2),
            6,
            lambda row, turn: 0.1 * (row + 1) if turn == 0 else 0.9,
            turns=2,
        )
        roots = [0.1, 0.2]
        for decision in plan.decisions:
            root = decision.row
            while (branch := plan.branches[root]) is not None:
                root = branch.parent
            assert decision.initial_entropy == pytest.approx(roots[root])

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
            plan = BranchPlan(rule, 2, (3, f"p{prompt}", 5))
            plan.on_start(0, 0.25)
            found.append(bool(plan.on_tool_result(0, 10, entropy)))
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

        def decisions(key: tuple[Any, ...]) -> list[int]:
            return [
                decision.num_branches for decision in play(rule, 64, turns=4, key=key).decisions
            ]

        found = decisions((1, "p", 2))
        assert found == decisions((1, "p", 2))
        assert found != decisions((1, "p", 3))
        assert {*found[:4]} == {0, 1} or {*found[4:8]} == {0, 1}
