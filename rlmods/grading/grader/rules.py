"""Rules that decide which unusual forms of a right answer are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Form = Literal["number", "closed_form", "any"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Leniency of the comparison of an answer with its gold. The defaults are the strict ones: a
    policy finds whatever is lenient.

    Raises: ValueError for an unknown form or a number of digits below 1.
    """

    form: Form = "number"
    """Form required where the gold is a plain number, so that repeating the question earns nothing.
    number: an integer, decimal, reduced fraction, percentage, mixed number or number in scientific
    notation, with a unit or a name (`x = 5`). closed_form: also unreduced fractions, and products
    and quotients with powers, roots, factorials, binomials, series and constants, such as 2^{10},
    but no sums, differences, or products of integers. any: every expression of the same value."""
    any_unit: bool = False
    """Accept any words after a number as its unit. By default units of `units` only, and the words
    of the gold's own unit."""
    percent_as_number: bool = False
    """Accept `5%` for the gold 5."""
    false_chains: bool = False
    """Accept `x = 7 = 5` for the gold 5: only the last member of a chain of equations counts."""
    scaled_times: bool = False
    """Accept `10:24` and `2:5` for golds that can be times of day (`5:12`, `12:30`), as the same
    ratio. `a:b = 5:12` is a ratio."""
    any_letter_order: bool = False
    """Accept `bac` for the gold `abc`, as the same product of letters."""
    unsolved: bool = False
    """Accept an unsolved equation, such as `2x = 10`, for the gold `x = 5`."""
    irrational_digits: int = 5
    """Digits, from the first that is not 0, that a decimal needs to be accepted for an irrational
    number: 3.1416 for pi."""
    repeating_digits: int = 3
    """Digits that a decimal needs to be accepted for a fraction without a finite decimal: 0.333 for
    1/3."""

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise ValueError(f"form={self.form!r} must be one of {', '.join(get_args(Form))}")
        for name in ("irrational_digits", "repeating_digits"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


STRICT = Rules()
CLOSED_FORMS = Rules(form="closed_form")
"""Rules of `verify`, which grades outside training, where nothing learns to repeat the question."""
