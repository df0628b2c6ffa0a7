"""How far two judges agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def cohens_kappa(first: Sequence[float | None], second: Sequence[float | None]) -> float:
    """kappa = (p_o - p_e) / (1 - p_e) over two judges' verdicts on the same pairs.

    p_o is the share of pairs on which they agree; p_e = sum over categories of the product of both judges' shares, what they would agree on
    by chance. Three categories: the first is better, the second is, a tie. Pairs on which either has no verdict do not count. 1: they
    agree on all, 0: no more than by chance; 1 where both say the same one thing throughout (p_e = 1); NaN without pairs.

    Source: Cohen 1960, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20(1), 37-46.
    """
    pairs = [(category(a), category(b)) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return math.nan
    n = len(pairs)
    agreed = sum(a == b for a, b in pairs)
    one, other = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    by_chance = sum(one[c] * other[c] for c in one)  # in units of 1 / n^2, where "p_e = 1" is exact
    return 1.0 if by_chance == n * n else (agreed * n - by_chance) / (n * n - by_chance)


def category(verdict: float) -> str:
    """first, second or tie."""
    return "tie" if verdict == 0.5 else "first" if verdict > 0.5 else "second"
