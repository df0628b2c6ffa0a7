"""Rankings from pairwise comparisons, K(K-1)/2 pairs of K candidates, and agreement of judges."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, islice

from rlmods.protocols import Candidate, Judge, compare
from rlmods.types import Prompt


def rankings(
    judge: Judge, rows: Sequence[tuple[Prompt, Sequence[Candidate]]]
) -> list[tuple[list[int | None], list[float | None]]]:
    """Return, for each row, the ranks of its candidates and the verdicts on its pairs in the order
    of `itertools.combinations`. Rank 0 is the best, equal ranks are ties, None is the rank of a
    candidate without any verdict.

    All rows share one call of `compare`.
    """
    pairs: list[tuple[Prompt, Candidate, Candidate]] = []
    for prompt, candidates in rows:
        pairs += [(prompt, *pair) for pair in combinations(candidates, 2)]
    verdicts = iter(compare(judge, pairs))
    found = []
    for _, candidates in rows:
        own = list(islice(verdicts, math.comb(len(candidates), 2)))
        found.append((copeland(len(candidates), own), own))
    return found


def copeland(num_candidates: int, verdicts: Sequence[float | None]) -> list[int | None]:
    """Return ranks by score(i) = (wins of i + ties of i / 2) / verdicts on i.

    Equal scores are a tie. Pairs without a verdict are skipped, and a candidate without any verdict
    is not ranked (None). With a verdict on every pair this is the order of the Copeland score, wins
    + ties / 2 (Copeland 1951, "A reasonable social welfare function"). For the pairs of a single
    judge it is also the order of the Borda count.

    Args:
        verdicts: on the pairs in the order of `itertools.combinations(range(num_candidates), 2)`.
    """
    points: list[list[float]] = [[] for _ in range(num_candidates)]
    for (i, j), verdict in zip(combinations(range(num_candidates), 2), verdicts, strict=True):
        if verdict is not None:
            points[i].append(verdict)
            points[j].append(1 - verdict)
    scores = [sum(p) / len(p) if p else None for p in points]
    best_first = sorted({score for score in scores if score is not None}, reverse=True)
    return [None if score is None else best_first.index(score) for score in scores]


def cohens_kappa(first: Sequence[float | None], second: Sequence[float | None]) -> float:
    """Cohen's kappa of two judges' verdicts on the same pairs: kappa = (p_o - p_e) / (1 - p_e).

    p_o is the fraction of pairs with equal verdicts; p_e = sum over categories of the product of
    both judges' frequencies, the agreement expected by chance. There are three categories: first
    better, second better, tie. Pairs without a verdict from both judges are skipped. 1 is perfect
    agreement, 0 chance level. Returns 1 if both judges use one and the same category only (p_e =
    1), NaN without any pair.

    torchmetrics' `multiclass_cohen_kappa` is not used because it returns NaN for p_e = 1 and
    computes in float32.

    Source: Cohen 1960, "A coefficient of agreement for nominal scales", Educational and
    Psychological Measurement 20(1), 37-46."""
    both = zip(first, second, strict=True)
    pairs = [(category(a), category(b)) for a, b in both if a is not None and b is not None]
    if not pairs:
        return math.nan
    n = len(pairs)
    num_equal = sum(a == b for a, b in pairs)
    first_counts, second_counts = map(Counter, zip(*pairs, strict=True))
    # in units of 1 / n^2, so that "p_e = 1" is exact
    expected = sum(first_counts[c] * second_counts[c] for c in first_counts)
    return 1.0 if expected == n * n else (num_equal * n - expected) / (n * n - expected)


def category(verdict: float) -> str:
    """Return "first", "second" or "tie" for a verdict."""
    if verdict == 0.5:
        return "tie"
    return "first" if verdict > 0.5 else "second"
