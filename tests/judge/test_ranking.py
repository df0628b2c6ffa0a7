from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmods.judge import Rule, compare, rank, rankings
from rlmods.judge.ranking import copeland
from rlmods.types import Prompt

PROMPT = Prompt(id="0", text="?")
VERDICT = st.sampled_from([0.0, 0.5, 1.0, None])


@st.composite
def tournaments(draw):
    k = draw(st.integers(0, 5))
    return k, draw(st.lists(VERDICT, min_size=k * (k - 1) // 2, max_size=k * (k - 1) // 2))


def alphabetical(prompt, first, second):
    return 0.5 if first == second else float(first < second)


class TestCopeland:
    def test_matches_ranks_computed_by_hand(self):
        # pairs 0-1, 0-2, 0-3, 1-2, 1-3, 2-3; scores 2.5, 1.5, 1, 1 of 3 each
        assert copeland(4, [1.0, 1.0, 0.5, 0.5, 1.0, 0.5]) == [0, 1, 2, 2]

    def test_a_cycle_is_a_tie(self):
        assert copeland(3, [1.0, 0.0, 1.0]) == [0, 0, 0]

    def test_skips_pairs_without_a_verdict(self):
        assert copeland(3, [1.0, None, 1.0]) == [0, 1, 2]  # 1 of 1, 1 of 2, 0 of 1
        assert copeland(3, [1.0, None, None]) == [0, 1, None]
        assert copeland(3, [None, None, None]) == [None, None, None]
        assert copeland(1, []) == [None]

    @given(tournaments())
    def test_matches_a_reference_loop_over_wins_and_half_ties(self, tournament):
        k, verdicts = tournament
        matrix = dict(zip(combinations(range(k), 2), verdicts, strict=True))
        expected = []
        for i in range(k):
            row = [
                matrix[i, j] if i < j else None if matrix[j, i] is None else 1 - matrix[j, i]
                for j in range(k)
                if j != i
            ]
            known = [v for v in row if v is not None]
            expected.append(sum(known) / len(known) if known else None)
        ranks = copeland(k, verdicts)
        assert [rank is None for rank in ranks] == [score is None for score in expected]
        for i, j in combinations([i for i in range(k) if expected[i] is not None], 2):
            assert (ranks[i] < ranks[j], ranks[i] == ranks[j]) == (
                expected[i] > expected[j],
                expected[i] == expected[j],
            )
        known = {rank for rank in ranks if rank is not None}
        assert known == set(range(len(known)))

    @given(st.permutations(range(6)))
    def test_transitive_verdicts_give_the_sorted_order(self, order):
        verdicts = [float(a < b) for a, b in combinations(order, 2)]
        assert copeland(6, verdicts) == list(order)


class TestRankings:
    def test_rows_may_have_any_length(self):
        rows = [
            (PROMPT, ["b", "a", "c"]),
            (PROMPT, []),
            (PROMPT, ["z"]),
            (PROMPT, ["y", "x"]),
            (PROMPT, ["q", "q"]),
        ]
        expected = [
            ([1, 0, 2], [0.0, 1.0, 1.0]),
            ([], []),
            ([None], []),
            ([1, 0], [0.0]),
            ([0, 0], [0.5]),
        ]
        assert rankings(alphabetical, rows) == expected
        assert [rank(alphabetical, *row) for row in rows] == [ranks for ranks, _ in expected]

    def test_calls_compare_once_for_all_rows(self):
        calls = []

        class BatchJudge:
            def __call__(self, prompt, first, second):
                raise AssertionError

            def compare(self, pairs):
                calls.append(pairs)
                return [alphabetical(*pair) for pair in pairs]

        other = Prompt(id="1", text="?")
        assert [
            r for r, _ in rankings(BatchJudge(), [(PROMPT, ["b", "a"]), (other, ["c", "d"])])
        ] == [[1, 0], [0, 1]]
        assert calls == [[(PROMPT, "b", "a"), (other, "c", "d")]]

    def test_rejects_a_verdict_out_of_range(self):
        with pytest.raises(ValueError, match="returned the verdict -1"):
            compare(lambda *_: -1.0, [(PROMPT, "a", "b")])

    def test_reversing_the_candidates_reverses_the_ranks(self):
        judge = Rule(reward=lambda responses: [float(len(r.text)) for r in responses])
        texts = ["aaa", "b", "cc", "ddd"]
        assert rank(judge, PROMPT, texts) == [0, 2, 1, 0]
        assert rank(judge, PROMPT, texts[::-1]) == [0, 2, 1, 0][::-1]
