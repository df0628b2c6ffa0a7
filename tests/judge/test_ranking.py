import math
from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from rlmods.judge import cohens_kappa, compare, rankings
from rlmods.judge.ranking import copeland
from rlmods.needs import JudgeNeeds
from rlmods.types import Prompt, Response, as_response

PROMPT = Prompt(id="0", text="?")
A, T, B = 1.0, 0.5, 0.0
VERDICT = st.sampled_from([A, T, B, None])
VERDICTS = st.lists(st.tuples(VERDICT, VERDICT), min_size=1, max_size=30)


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


class TestCandidates:
    PAIR = (PROMPT, Response(PROMPT, text="a", finish="length"), "b")

    def test_a_judge_of_texts_gets_texts(self) -> None:
        seen = []
        assert compare(lambda prompt, *texts: seen.append(texts) or 0.5, [self.PAIR]) == [0.5]
        assert seen == [("a", "b")]

    def test_a_judge_that_accepts_responses_gets_them(self) -> None:
        class Strict:
            needs = JudgeNeeds(responses=True)

            def __call__(self, prompt, first, second):
                finishes = [as_response(prompt, x).finish for x in (first, second)]
                return float(finishes[0] == "stop") if finishes[0] != finishes[1] else 0.5

        assert compare(Strict(), [self.PAIR, (PROMPT, "a", "b")]) == [0.0, 0.5]
        assert rankings(Strict(), [(PROMPT, [self.PAIR[1], "b"])]) == [([1, 0], [0.0])]


def verdicts_from_table(table):
    """Expand a contingency table, [first judge's category][second judge's category], into the
    verdicts of both judges."""
    pairs = [
        (a, b)
        for row, a in zip(table, (A, T, B), strict=True)
        for n, b in zip(row, (A, T, B), strict=True)
        for _ in range(n)
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]


class TestCohensKappa:
    @pytest.mark.parametrize(
        ("table", "kappa"),
        [
            # p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
            ([[20, 0, 5], [0, 0, 0], [10, 0, 15]], 0.4),
            # p_o = 0.6, p_e = 0.6 * 0.7 + 0.4 * 0.3 = 0.54
            ([[45, 0, 15], [0, 0, 0], [25, 0, 15]], 0.06 / 0.46),
            # p_o = 0.6, p_e = 0.6 * 0.3 + 0.4 * 0.7 = 0.46
            ([[25, 0, 35], [0, 0, 0], [5, 0, 35]], 0.14 / 0.54),
            # p_o = 8/12, p_e = (5 * 5 + 4 * 4 + 3 * 3) / 144 = 50/144
            ([[4, 1, 0], [1, 2, 1], [0, 1, 2]], 23 / 47),
            ([[0, 0, 3], [0, 0, 0], [3, 0, 0]], -1.0),
            # each uses a single category, and they differ
            ([[0, 5, 0], [0, 0, 0], [0, 0, 0]], 0.0),
            ([[7, 0, 0], [0, 0, 0], [0, 0, 0]], 1.0),  # p_e = 1
        ],
    )
    def test_matches_values_computed_by_hand(self, table, kappa):
        assert cohens_kappa(*verdicts_from_table(table)) == pytest.approx(kappa, abs=1e-12)

    @given(VERDICTS)
    def test_matches_a_reference_loop(self, pairs):
        known = [(a, b) for a, b in pairs if None not in (a, b)]
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        if not known:
            assert math.isnan(cohens_kappa(first, second))
            return
        observed = sum(a == b for a, b in known) / len(known)
        chance = (
            sum(sum(a == c for a, _ in known) * sum(b == c for _, b in known) for c in (A, T, B))
            / len(known) ** 2
        )
        expected = 1.0 if chance == 1 else (observed - chance) / (1 - chance)
        assert cohens_kappa(first, second) == pytest.approx(expected, abs=1e-12)
