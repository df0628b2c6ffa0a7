"""Agreement between two judges."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


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
    first_counts = Counter(a for a, _ in pairs)
    second_counts = Counter(b for _, b in pairs)
    # in units of 1 / n^2, so that "p_e = 1" is exact
    expected = sum(first_counts[c] * second_counts[c] for c in first_counts)
    return 1.0 if expected == n * n else (num_equal * n - expected) / (n * n - expected)


def category(verdict: float) -> str:
    """Return "first", "second" or "tie" for a verdict."""
    if verdict == 0.5:
        return "tie"
    return "first" if verdict > 0.5 else "second"
