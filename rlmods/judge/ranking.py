"""From comparisons to rankings: K candidates, K(K-1)/2 pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from rlmods.judge.scored import Pair
from rlmods.protocols import Judge
from rlmods.types import Prompt

Verdicts = list[float | None]


def compare(judge: Judge, pairs: Sequence[Pair]) -> Verdicts:
    """A verdict a pair: in one call of a judge that has `compare(pairs)`, else one after the other.

    Raises:
        ValueError: a verdict outside 0 to 1.
    """
    verdicts = judge.compare(pairs) if hasattr(judge, "compare") else [judge(*pair) for pair in pairs]
    for found in verdicts:
        if found is not None and not 0 <= found <= 1:
            raise ValueError(f"{type(judge).__name__} said {found}: a verdict is 1.0, 0.5, 0.0 or None")
    return list(verdicts)


def rank(judge: Judge, prompt: Prompt, candidates: Sequence[str]) -> list[int | None]:
    """Ranks of the candidates, 0 the best, equal ranks a tie, None without any verdict."""
    return rankings(judge, [(prompt, candidates)])[0][0]


def rankings(judge: Judge, rows: Sequence[tuple[Prompt, Sequence[str]]]) -> list[tuple[list[int | None], Verdicts]]:
    """Ranks of each row's candidates, and the verdicts on its pairs in the order of `itertools.combinations`. One `compare` for all."""
    pairs = [(prompt, *pair) for prompt, candidates in rows for pair in combinations(candidates, 2)]
    verdicts = compare(judge, pairs)
    counts = [len(candidates) * (len(candidates) - 1) // 2 for _, candidates in rows]
    ends = [sum(counts[:i]) for i in range(len(counts) + 1)]
    own = [verdicts[start:end] for start, end in pairwise(ends)]
    return [(copeland(len(candidates), said), said) for (_, candidates), said in zip(rows, own, strict=True)]


def copeland(num_candidates: int, verdicts: Sequence[float | None]) -> list[int | None]:
    """Ranks by score: score(i) = (wins of i + ties of i / 2) / verdicts on i. Equal scores are a tie, pairs without a verdict do not count,
    and a candidate without any is not ranked (None).

    With a verdict on every pair this is the order of the Copeland score, wins + ties / 2 (Copeland 1951, "A reasonable social welfare
    function"), which over pairs of one judge is Borda's too.

    Args:
        verdicts: on the pairs in the order of `itertools.combinations(range(num_candidates), 2)`.
    """
    points: list[list[float]] = [[] for _ in range(num_candidates)]
    for (i, j), found in zip(combinations(range(num_candidates), 2), verdicts, strict=True):
        if found is not None:
            points[i].append(found)
            points[j].append(1 - found)
    scores = [sum(p) / len(p) if p else None for p in points]
    best_first = sorted({score for score in scores if score is not None}, reverse=True)
    return [None if score is None else best_first.index(score) for score in scores]
