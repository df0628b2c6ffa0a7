"""Gold answers of many kinds, with equal and with wrong answers, as hypothesis strategies.

A `Case` is a gold answer, other ways to write it, and answers with another value, all made from the
same random numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st

each_kind = settings(max_examples=30, deadline=None, derandomize=True)
"""Settings of a property of each kind of gold, of which there are about 40."""
any_text = settings(max_examples=100, deadline=None, derandomize=True)
"""Settings of a property of all kinds or texts."""


@dataclass(frozen=True)
class Case:
    gold: str
    same: Sequence[str]
    wrong: Sequence[str]


def case(gold: str, same: Iterable[str], wrong: Iterable[str], **values: object) -> Case:
    """Replace «a+1» in the texts by the value of that expression, and «+b» by b with its sign, as a
    term of a sum."""

    def fill(text: str) -> str:
        return re.sub("«([^»]+)»", lambda match: term(match[1]), text)

    def term(expression: str) -> str:
        value = eval(expression, {"abs": abs}, values)
        return f"+{value}" if expression.startswith("+") and value >= 0 else str(value)

    return Case(fill(gold), [*map(fill, same)], [*map(fill, wrong)])


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def frac(x: Fraction) -> str:
    return (
        rf"{'-' * (x < 0)}\frac{{{abs(x.numerator)}}}{{{x.denominator}}}"
        if x.denominator > 1
        else str(x)
    )


def replaced(items: Sequence[str], at: int, *by: str) -> list[str]:
    return [*items[:at], *by, *items[at + 1 :]]


def integer(n: int, d: int) -> Case:
    commas = f"{n:,}"
    same = ["«n».0", "«n».", "x=«n»", "n = «n»", "(«n»)", "«n-d»+«d»=«n»", r"\text{«n»}"]
    same += [
        commas,
        commas.replace(",", "{,}"),
        commas.replace(",", r"\,"),
        commas.replace(",", r",\!"),
        r"\$" + commas,
    ]
    same += ["+«n»", "+ «n»"] if n >= 0 else ["- «-n»"]
    wrong = [
        "«n+d»",
        "«n-d»",
        "«n».5",
        "«n».000001",
        "«n», «n+d»",
        "«n» or «n+d»",
        "x=«n+d»",
        "(«n»,«n»)",
    ]
    wrong += ["«-n»", "«n»0", "«n» million", r"\pm «n»", "«n»x", "|«n»|i", ".«abs(n)»"] if n else []
    return case(str(n), same, wrong, n=n, d=d)


def decimal(n: int, places: str) -> Case:
    same = [
        "«n».«p»0",
        "+«n».«p»",
        "x = «n».«p»",
        f"{n:,}.{places}",
        frac(Fraction(f"{n}.{places}")),
    ]
    wrong = [
        "«n».«p[:-1]»«last»",
        "«n+1».«p»",
        "«n».«p»1",
        "«n».«p», «n»",
        "-«n».«p»",
        "«n»«p».5",
        "«n»",
    ]
    return case("«n».«p»", same, wrong, n=n, p=places, last=(int(places[-1]) + 1) % 10)


def fraction(a: int, b: int, d: int, slash: bool) -> Case:
    sign, a = "-" * (a < 0), abs(a)
    same = [
        r"\frac{«a»}{«b»}",
        r"\dfrac{«a»}{«b»}",
        r"\tfrac{«a»}{«b»}",
        r"\frac{«3*a»}{«3*b»}",
        "«a»/«b»",
    ]
    same += ["«a»/(«b»)"]
    wrong = [
        r"\frac{«a+d»}{«b»}",
        r"\frac{«a»}{«b+d»}",
        "«a+d*b»/«b»",
        "«a», «b»",
        "0.00",
        "(«a», «b»)",
    ]
    wrong += [r"\frac{«b»}{«a»}"] if a != b else []
    wrong += ["«a»", "«a*b»"] if b > 1 else []
    others = [
        r"x = «s»\frac{«a»}{«b»}",
        r"\left(«s»\frac{«a»}{«b»}\right)",
        r"\frac{«s»«a»}{«b»}",
        r"«s»\frac {«a»} {«b»}",
    ]
    opposite = r"\frac{«a»}{«b»}" if sign else r"-\frac{«a»}{«b»}"
    signed = [sign + text for text in wrong]
    return case(
        sign + same[-2 if slash else 0],
        [*(sign + text for text in same), *others],
        [*signed, opposite],
        a=a,
        b=b,
        d=d,
        s=sign,
    )


def scientific(a: int, places: int, power: int) -> Case:
    value = Fraction(f"{a}.{places}") * Fraction(10) ** power
    same = [
        r"«a».«p» \cdot 10^{«k»}",
        "«a».«p»e«k»",
        "«a».«p»E«k»",
        r"10^{«k»} \cdot «a».«p»",
        r"10^{«k»}(«a».«p»)",
        frac(value),
    ]
    wrong = [
        r"«a».«p» \times 11^{«k»}",
        r"«a».«p» \times 10^{«k+1»}",
        r"-«a».«p» \times 10^{«k»}",
        r"«a+1».«p» \times 10^{«k»}",
    ]
    wrong += ["«a».«p»e«k-1»"]
    return case(
        r"«a».«p» \times 10^{«k»}",
        same,
        [*wrong, r"«a».«p» + 10^{«k»}", "«a».«p»"],
        a=a,
        p=places,
        k=power,
    )


def percent(n: int, d: int) -> Case:
    same = [
        "«n»%",
        r"«n» \%",
        "«n» percent",
        r"«n» \text{ percent}",
        r"x = «n»\%",
        r"\frac{«n»}{100}",
        "0.«'%02d' % n»",
        "«n»",
        r"«n».0\%",
    ]
    wrong = [
        r"«n+d»\%",
        r"-«n»\%",
        r"«n»0\%",
        "«n+d»",
        r"«n».«n»\%",
        r"0.«n»\%",
        "0.0«'%02d' % n»",
        "«n» km",
    ]
    return case(r"«n»\%", same, wrong, n=n, d=d)


UNITS = {
    "cm": "centimeters",
    "kg": "kilograms",
    "km": "kilometers",
    "ft": "feet",
    "hours": "hrs",
    "dollars": "dollar",
    "minutes": "minute",
}


def unit(n: int, d: int, name: str, other: str) -> Case:
    names = {"u": name, "v": other, "long": UNITS[name], "other": UNITS[other]}
    same = [
        "«n» «u»",
        "«n»«u»",
        r"«n» \mathrm{«u»}",
        r"«n»\ \text{«long»}",
        r"«n»\,\text{ «u»}",
        "«n»",
        "x = «n» «u»",
        "«n».0 «long»",
    ]
    wrong = [
        r"«n+d»\text{ «u»}",
        r"-«n»\text{ «u»}",
        r"«n»\text{ «v»}",
        "«n» «other»",
        "«n» «u»^2",
        "«n+d»",
        "«n» «u»/«v»",
    ]
    wrong += ["(«n» «u», «n» «u»)"]
    wrong += ["1 «u»/«n»"] if n > 1 else []
    return case(r"«n»\text{ «u»}", same, wrong, n=n, d=d, **names)


def power_of_a_unit(n: int, name: str, power: int) -> Case:
    same = [
        "«n» «u»^«p»",
        r"«n»\text{ «u»}^{ «p» }",
        r"«n»\text{ «u»}^«p»",
        "«n» «long»^«p»",
        "«n»",
    ]
    wrong = [
        r"«n»\text{ «u»}^{«p+1»}",
        "«n» «u»^«p-1»",
        "«n» «u»",
        "«n»0 «u»^«p»",
        r"«n»\text{ «u»}^{-«p»}",
    ]
    return case(r"«n»\text{ «u»}^{«p»}", same, wrong, n=n, u=name, p=power, long=UNITS[name])


def mixed(n: int, top: int, rest: int) -> Case:
    bottom = top + rest
    assume(bottom not in (10, 100))  # 1 3/10 is 13/10
    same = [
        "«n» «a»/«b»",
        r"\frac{«n*b+a»}{«b»}",
        r"x = «n»\frac{«a»}{«b»}",
        r"«n» \dfrac{«a»}{«b»}",
    ]
    wrong = [
        r"«n+1»\frac{«a»}{«b»}",
        r"«n»\frac{«a»}{«b+1»}",
        r"-«n»\frac{«a»}{«b»}",
        r"\frac{«a»}{«b»}",
        "«n»«a»/«b»",
        "«n»",
    ]
    wrong += [
        r"«n», \frac{«a»}{«b»}",
        r"«n» \cdot \frac{«a»}{«b»}",
        r"«n» - \frac{«a»}{«b»}",
        r"«n»\frac{«a+1»}{«b»}",
    ]
    return case(r"«n»\frac{«a»}{«b»}", same, wrong, n=n, a=top, b=bottom)


def words(a: str, b: str, c: str) -> Case:
    same = [
        "«a.upper()» «b»",
        "«a.title()» «b.title()»",
        r"\text{«a» «b»}",
        r"\textbf{«a» «b».}",
        "«a»   «b»",
        r"\text{«a»} \text{«b»}",
    ]
    same += ["{«a» «b»}"]
    wrong = [
        "«a» «c»",
        "«a»",
        "«b» «a»",
        "not «a» «b»",
        "«a» «b» «c»",
        r"\text{«c» «b»}",
        "«a»«b»",
        "«a» or «b»",
        "«a» «b[:-1]»",
    ]
    return case("«a» «b»", same, wrong, a=a, b=b, c=c)


def choice(a: str, b: str) -> Case:
    styles = [
        "«a»",
        "(«a»)",
        r"\text{«a»}",
        r"\text{(«a»)}",
        r"\textbf{(«a»)}",
        "«a».",
        "«a»)",
        "«a») 17",
        r"\textbf{(«a»)}\ 17",
    ]
    wrong = [
        "«a.lower()»",
        "«a» or «b»",
        "«a», «b»",
        "«a»«b»",
        "«b», not «a»",
        "(«a»)(«b»)",
        "«a») or «b»)",
        "«a» and «b»",
    ]
    return case(
        "«a»", styles, [*(style.replace("«a»", "«b»") for style in styles), *wrong], a=a, b=b
    )


def point(xs: list[Fraction], at: int, d: int) -> Case:
    at, items = at % len(xs), [*map(frac, xs)]
    other, all_ = frac(xs[at] + d), ", ".join(items)
    same = [
        rf"\left({','.join(items)}\right)",
        f"({' , '.join(map(str, xs))})",
        f"(+0+{all_})",
        f"( {all_} )",
    ]
    same += [f"(x, y) = ({all_})"] if len(xs) == 2 else []
    wrong = [
        replaced(items, at, other),
        replaced(items, at),
        replaced(items, at, items[at], other),
        [*items, items[0]],
        [*items, "0"],
    ]
    brackets = [rf"\{{{all_}\}}", all_, f"[{all_})", f"({all_}]"]
    return Case(f"({all_})", same, [f"({', '.join(one)})" for one in wrong] + brackets)


def members(xs: list[Fraction], at: int, d: int, braces: bool) -> Case:
    at, items = at % len(xs), [*map(frac, xs)]
    other, all_ = frac(max(xs) + d), ", ".join(items)
    orders = [items, items[::-1], items[at:] + items[:at]]
    same = [
        separator.join(order)
        for order in orders
        for separator in (", ", ",", r",\ ", " and ", r"\text{ and }", " or ", "; ")
    ]
    same += [rf"\{{{', '.join(order)}\}}" for order in orders] + [
        rf"\left\{{{','.join(items)}\right\}}",
        f"x = {all_}",
    ]
    changed = [
        replaced(items, at, other),
        replaced(items, at),
        [*items, other],
        [*items, items[at]],
        replaced(items, 0, items[1]),
    ]
    lists = [", ".join(one) for one in changed] + ["-" + all_ if xs[0] else "0"]
    wrong = [
        *lists,
        *(rf"\{{{one}\}}" for one in lists),
        f"({all_})",
        f"[{items[0]}, {items[1]})",
        rf"\{{\{{{all_}\}}\}}",
    ]
    return Case(rf"\{{{all_}\}}" if braces else all_, same, wrong)


def sets(xs: list[int]) -> Case:
    a, b, c, d = xs
    same = [r"\{\{«c»,«d»\},\{«b»,«a»\}\}", r"\{ \{ «b», «a» \}, \{ «d», «c» \} \}"]
    wrong = [
        r"\{\{«a»,«c»\},\{«b»,«d»\}\}",
        r"\{\{«a»\},\{«b»,«c»,«d»\}\}",
        r"\{«a»,«b»,«c»,«d»\}",
        r"\{\{«a»,«b»\}\}",
    ]
    wrong += [r"\{(«a»,«b»),(«c»,«d»)\}"]
    return case(r"\{\{«a»,«b»\},\{«c»,«d»\}\}", same, wrong, a=a, b=b, c=c, d=d)


LESS = {"(": "<", "[": r"\le", ")": "<", "]": r"\leq"}
MORE = {"(": ">", "[": r"\ge", ")": ">", "]": r"\geq"}
OPPOSITE = {"(": "[", "[": "(", ")": "]", "]": ")"}


def brackets(left: str, right: str) -> dict[str, str]:
    """Brackets l and r, their opposites m and s (open for closed), and the inequality signs they
    correspond to."""
    sides = {"l": left, "r": right, "m": OPPOSITE[left], "s": OPPOSITE[right]}
    signs = {
        f"{name}_{key}": table[side]
        for key, side in sides.items()
        for name, table in (("less", LESS), ("more", MORE))
    }
    return {**sides, **signs}


def interval(xs: list[int], left: str, right: str) -> Case:
    same = [
        "«l»«a»+0, «b»«r»",
        r"«l»\frac{«2*a»}{2},«b»«r»",
        r"x \in «l»«a», «b»«r»",
        r"\left«l»«a»,«b»\right«r»",
        "«l» +0+«a» , «b» «r»",
    ]
    same += ["«a» «less_l» x «less_r» «b»"] if (left, right) != ("(", ")") else []
    wrong = [
        "«m»«a», «b»«r»",
        "«l»«a», «b»«s»",
        "«m»«a», «b»«s»",
        "«l»«a-1», «b»«r»",
        "«l»«a», «b+1»«r»",
        "«l»«b», «a»«r»",
    ]
    wrong += ["«l»«c», «b»«r»"]
    wrong += [
        "«a», «b»",
        r"\{«a», «b»\}",
        r"«l»«a», \infty)",
        "x «less_r» «b»",
        "«l»«a», «b», «b+1»«r»",
        r"«l»«a», «c») \cup («c», «b»«r»",
    ]
    return case("«l»«a», «b»«r»", same, wrong, a=xs[0], c=xs[1], b=xs[-1], **brackets(left, right))


def half_line(n: int, d: int, side: str) -> Case:
    if side in ")]":
        gold, sides = r"(-\infty, «n»«r»", brackets("(", side)
        same = [
            r"x «less_r» «n»",
            r"«n» «more_r» x",
            r"x \in (-\infty,«n»«r»",
            "(-oo, «n»«r»",
            r"(-\infty, «n-d»] \cup («n-d», «n»«r»",
        ]
        wrong = [
            r"(-\infty, «n»«s»",
            r"(-\infty, «n+d»«r»",
            "x «less_s» «n»",
            "(«n-d», «n»«r»",
            r"[«n», \infty)",
            "x «more_r» «n»",
        ]
    else:
        gold, sides = r"«l»«n», \infty)", brackets(side, ")")
        same = [
            r"x «more_l» «n»",
            r"«n» «less_l» x",
            r"x \in «l»«n»,\infty)",
            r"«l»«n», +\infty)",
            r"\left«l»«n»,\infty\right)",
        ]
        same += ["«l»«n», oo)"]
        wrong = [
            r"«m»«n», \infty)",
            r"«l»«n+d», \infty)",
            "x «more_m» «n»",
            "«l»«n», «n+d»)",
            r"(-\infty, «n»]",
            "x «less_l» «n»",
        ]
    return case(
        gold,
        same,
        [*wrong, r"(-\infty, \infty)", "«n»", "x = «n»", r"x \ne «n»"],
        n=n,
        d=d,
        **sides,
    )


def union(xs: list[int], left: str, right: str) -> Case:
    a, b, c, d = xs
    same = [
        r"«l»«c», «d»«r» \cup «l»«a», «b»«r»",
        r"\left«l»«a»,«b»\right«r»\cup\left«l»«c»,«d»\right«r»",
    ]
    same += [r"x \in «l»«a», «b»«r» \cup «l»«c», «d»«r»"]
    same += [r"[«a», «d») \setminus [«b», «c»)"] if (left, right) == ("[", ")") else []
    wrong = [
        r"«l»«a», «b»«r» \cap «l»«c», «d»«r»",
        r"«m»«a», «b»«r» \cup «l»«c», «d»«r»",
        r"«l»«a», «b»«r» \cup «l»«c», «d»«s»",
    ]
    wrong += [
        r"«l»«a», «b»«s» \cup «l»«c», «d»«r»",
        r"«l»«a», «b»«r» \cup «m»«c», «d»«r»",
        r"«l»«a», «b»«r» \cup «l»«c», «d+1»«r»",
    ]
    wrong += [
        r"«l»«a-1», «b»«r» \cup «l»«c», «d»«r»",
        "«l»«a», «d»«r»",
        "«l»«a», «b»«r»",
        "«l»«c», «d»«r»",
    ]
    wrong += [r"\{«a», «b»\} \cup \{«c», «d»\}"]
    return case(
        r"«l»«a», «b»«r» \cup «l»«c», «d»«r»",
        same,
        wrong,
        a=a,
        b=b,
        c=c,
        d=d,
        **brackets(left, right),
    )


def inequality(n: int, d: int, side: str) -> Case:
    same = ["«n» «less_l» x", "2x «more_l» «2*n»", "-x «less_l» «-n»", "x «+-n» «more_l» 0"]
    wrong = [
        "x «less_l» «n»",
        "x «more_m» «n»",
        "x «more_l» «n+d»",
        "y «more_l» «n»",
        "x = «n»",
        "«n»",
        r"x \ne «n»",
    ]
    wrong += [
        "-x «more_l» «-n»",
        "-2x «more_l» «-2*n»",
        r"x «more_l» \infty",
        r"x «more_l» -\infty",
        r"\infty x «more_l» «n»",
    ]
    return case("x «more_l» «n»", same, wrong, n=n, d=d, **brackets(side, ")"))


def chain(xs: list[int], left: str, right: str) -> Case:
    same = [
        "«b» «more_r» x «more_l» «a»",
        "«l»«a», «b»«r»",
        r"x \in «l»«a»,«b»«r»",
        "«a»+0 «less_l» x «less_r» «b»",
    ]
    wrong = [
        "«a» «less_m» x «less_r» «b»",
        "«a» «less_l» x «less_s» «b»",
        "«a» «less_l» x «less_r» «b+1»",
        "«a» «less_l» y «less_r» «b»",
    ]
    wrong += [
        "«a» «less_l» x_1 «less_r» «b»",
        "x «less_r» «b»",
        "«a» «more_l» x «more_r» «b»",
        "«b» «less_l» x «less_r» «a»",
        "«a», «b»",
    ]
    return case(
        "«a» «less_l» x «less_r» «b»", same, wrong, a=xs[0], b=xs[-1], **brackets(left, right)
    )


def equation(n: int, d: int) -> Case:
    same = ["«n»", "x=«n».0", "«n» = x", "x = «n-d» + «d» = «n»"]
    wrong = [
        "x = «n+d»",
        "«n+d»",
        "y = «n»",
        r"x \neq «n»",
        "x < «n»",
        "x = «n», «n+d»",
        "x^2 = «n*n»",
        "x = «n» + x",
        "x = «-n»",
    ]
    wrong += ["x = «n» = «n+d»"]
    return case("x = «n»", same, wrong, n=n, d=d)


def line(a: int, b: int, d: int) -> Case:
    same = [
        "y=«+b»«+a»x",
        "«a»x«+b» = y",
        "«a»x-y«+b»=0",
        "y«+-b»=«a»x",
        "«3*a»x«+3*b»=3y",
        "«a»x«+b»",
        "y = «+b» «+a» x",
    ]
    wrong = [
        "y=«a+d»x«+b»",
        "y=«a»x«+b+d»",
        "y=«-a»x«+b»",
        "«a»x-y«+b+d»=0",
        "y<«a»x«+b»",
        "z=«a»x«+b»",
        "y=«a»z«+b»",
        "y^2=«a»x«+b»",
    ]
    wrong += ["x=«a»y«+b»"] if abs(a) > 1 else []
    wrong += ["y=«a»x", "y=«a»x«+-b»", "«b»"] if b else []
    return case("y = «a»x«+b»", same, wrong, a=a, b=b, d=d)


def matrix_text(rows: Iterable[Iterable[object]], environment: str = "pmatrix") -> str:
    body = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
    return rf"\begin{{{environment}}} {body} \end{{{environment}}}"


def matrix(rows: list[list[int]], at: int, d: int) -> Case:
    height, width = len(rows), len(rows[0])
    gold, columns = matrix_text(rows), [[*column] for column in zip(*rows, strict=True)]
    changed = [
        [x + d * (row * width + column == at % (height * width)) for column, x in enumerate(xs)]
        for row, xs in enumerate(rows)
    ]
    flat = ", ".join(str(x) for row in rows for x in row)
    same = [matrix_text(rows, "bmatrix"), gold.replace(" ", ""), rf"{gold} \cdot 1"]
    same += ["2" + matrix_text([[frac(Fraction(x, 2)) for x in row] for row in rows])]
    wrong = [
        matrix_text(changed),
        matrix_text([*rows, rows[0]]),
        matrix_text([[*row, 0] for row in rows]),
        "2" + matrix_text(changed),
    ]
    wrong += [flat, f"({flat})"]
    wrong += [matrix_text(columns)] if columns != rows else []
    wrong += [f"-{gold}", f"2{gold}"] if any(map(any, rows)) else []
    wrong += [matrix_text(rows[::-1])] if rows[::-1] != rows else []
    return Case(gold, same, wrong)


def product_of_matrices(a: int, b: int) -> Case:
    one, other = matrix_text([[1, a], [0, 1]]), matrix_text([[1, 0], [b, 1]])
    return Case(
        one + other, [rf"{one} \cdot {other}", matrix_text([[1 + a * b, a], [b, 1]])], [other + one]
    )


def ratio(a: int, b: int, d: int) -> Case:
    same = ["«a» : «b»", r"«a» \colon «b»", "(«a»):(«b»)"]
    same += [] if a <= 24 and 10 <= b < 60 else ["«2*a»:«2*b»"]
    wrong = [
        "«a+d»:«b»",
        "«a»:«b+d»",
        "«a»:«b»:«d»",
        "«a», «b»",
        "-«a»:«b»",
        "(«a», «b»)",
        "«a»«b»",
    ]
    return case("«a»:«b»", same, [*wrong, "«b»:«a»"] if a != b else wrong, a=a, b=b, d=d)


def ratio_of_three(a: int, b: int, c: int) -> Case:
    wrong = ["«a+1»:«b»:«c»", "«a»:«b+1»:«c»", "«a»:«b»", "«a»:«b»:«c»:«c»", "«a», «b», «c»"]
    return case(
        "«a»:«b»:«c»",
        ["«a» : «b» : «c»", "«3*a»:«3*b»:«3*c»"],
        [*wrong, "«c»:«b»:«a»"] if a != c else wrong,
        a=a,
        b=b,
        c=c,
    )


def polynomial(a: int, b: int, c: int, d: int) -> Case:
    same = [
        "«q»«+p»x«+a»x^{2}",
        "(«a»x«+b»)(x«+c»)",
        r"(x«+c») \cdot («a»x«+b»)",
        "x(«a»x«+p»)«+q»",
        r"«a» \cdot x^2«+p» x«+q»",
    ]
    same += ["«a»x^2«+p»x«+q»+0"]
    wrong = [
        "«a+d»x^2«+p»x«+q»",
        "«a»x^2«+p+d»x«+q»",
        "«a»x^2«+p»x«+q»+«d»",
        "«a»x^3«+p»x«+q»",
        "«a»y^2«+p»y«+q»",
        "-(«a»x^2«+p»x«+q»)",
    ]
    wrong += [
        "«q»",
        "«a»x^2«+p»x«+q»=0",
        "«a»x^2«+p»x«+q», «d»",
        "(«a»x«+b»)(x«+c+d»)",
        "«a»x^2«+-p»x«+q»" if a * c + b else "0",
    ]
    wrong += ["«a»x^2«+p»x«+-q»", "«a»x^2«+p»x"]
    return case("«a»x^2«+p»x«+q»", same, wrong, a=a, b=b, c=c, d=d, p=a * c + b, q=b * c)


def trigonometric(a: int, b: int, c: int) -> Case:
    same = [
        r"«c»\cos x + «a»\sin(«b»x)",
        r"\sin(«b»x) \cdot «a» + \cos(x) «c»",
        r"«a»\sin «b»x + «c»\cos{x}",
    ]
    same += [r"«c»\cos x - «a»\sin(-«b»x)"]
    same += [
        r"«a»\sin\left(«b»x\right)+«c»\sin\left(\frac{\pi}{2}-x\right)",
        r"«a»\sin(«b»x) + «c»\cos x + \sin^2 x + \cos^2 x - 1",
    ]
    wrong = [
        r"«a»\cos(«b»x) + «c»\sin x",
        r"«a+1»\sin(«b»x) + «c»\cos x",
        r"«a»\sin(«b+1»x) + «c»\cos x",
        r"«a»\sin(«b»x) - «c»\cos x",
    ]
    wrong += [
        r"«a»\sin(«b»y) + «c»\cos x",
        r"«a*b»\sin(x) + «c»\cos x",
        r"«a»\sin(«b»x)",
        r"«a»\tan(«b»x) + «c»\cos x",
    ]
    wrong += [r"«a»\sin(«b»x) «c»\cos x"]
    return case(r"«a»\sin(«b»x) + «c»\cos x", same, wrong, a=a, b=b, c=c)


def argument(a: int, function: str) -> Case:
    r"""Expressions that differ in the end of a brace: \sqrt{2 x} and \sqrt{2} x."""
    same, wrong = (
        ["«a»x", "x«a»", r"«a» \cdot x"],
        ["«a»} x{", "x} «a»{", "«a» x} x{", "«a» y", "«a»/x"],
    )
    gold, *others = (function.replace("?", text) for text in ("«a» x", *same, *wrong))
    return case(gold, others[: len(same)], others[len(same) :], a=a)


def letters(a: int, upper: str) -> Case:
    """Sums with a capital letter, which is a different symbol from the lower-case one."""
    return case(
        "«a»«u»+x",
        ["x+«a»«u»", "«u»«a»+x"],
        ["«a»«u.lower()»+x", "«a»«u»+X", "«a»«u»-x", "«a»«u»x", ".«a»«u»+x"],
        a=a,
        u=upper,
    )


def differences(a: str, b: str) -> Case:
    """Differences of symbols, which look like hyphenated words."""
    wrong = ["«b» - «a»", "«a.swapcase()» - «b»", "«a» + «b»", "«a»«b»"]
    return case("«a» - «b»", ["«a»-«b»", "-«b»+«a»", "-(«b» - «a»)"], wrong, a=a, b=b)


def root(a: int, b: int, c: int) -> Case:
    assume(math.isqrt(b) ** 2 != b)
    same = [
        r"«a»\sqrt{«b»} + «c»",
        r"\sqrt{«a*a*b»} + «c»",
        r"«c» + «a» \cdot \sqrt {«b»}",
        r"«c» + \sqrt{«b»} \cdot «a»",
    ]
    same += [r"x = «c» + «a»\sqrt{«b»}"]
    same += [
        "«c» + «a»(«b»)^{1/2}",
        f"{c + a * math.sqrt(b):.6f}",
        r"«c» + «a»\sqrt{«b»} + 0",
        r"«c» - (-«a»)\sqrt{«b»}",
    ]
    wrong = [
        r"«c» + «a»\sqrt{«b+1»}",
        r"«c» + «a+1»\sqrt{«b»}",
        r"«c» - «a»\sqrt{«b»}",
        r"«c+1» + «a»\sqrt{«b»}",
    ]
    wrong += [r"-(«c» + «a»\sqrt{«b»})"]
    wrong += [
        r"«c» + «a»\sqrt[3]{«b»}",
        f"{c + a * math.sqrt(b) + 0.01:.6f}",
        r"«c» \pm «a»\sqrt{«b»}",
        r"«c» + «a»\sqrt{«b»}x",
    ]
    wrong += [r"«c», «a»\sqrt{«b»}"]
    return case(r"«c» + «a»\sqrt{«b»}", same, wrong, a=a, b=b, c=c)


def two_roots(a: int, b: int) -> Case:
    same = [
        r"«a» + \sqrt{«b»}, «a» - \sqrt{«b»}",
        r"\{«a» - \sqrt{«b»}, «a» + \sqrt{«b»}\}",
        r"x = «a» \pm \sqrt{«b»}",
    ]
    same += [r"«a» \mp \sqrt{«b»}"]
    wrong = [
        r"«a» + \sqrt{«b»}",
        r"«a» - \sqrt{«b»}",
        r"«a» \pm \sqrt{«b+1»}",
        r"«a+1» \pm \sqrt{«b»}",
        r"«a» \pm \sqrt{«b»}, «a»",
    ]
    wrong += [r"«a»\sqrt{«b»}"]
    return case(
        r"«a» \pm \sqrt{«b»}", same, [*wrong, r"«a» + \sqrt{«b»}, «a» + \sqrt{«b»}"], a=a, b=b
    )


def complex_number(a: int, b: int, d: int) -> Case:
    same = [
        "«b»i«+a»",
        "«a»«+b» i",
        r"«a»«+b» \cdot i",
        "i(«b»«+-a»i)",
        "z = «a»«+b»i",
        "«a»«+b»i+0",
        "-(«-a»«+-b»i)",
    ]
    wrong = [
        "«a»«+-b»i",
        "«a+d»«+b»i",
        "«a»«+b»j",
        "«a»",
        "«a»«+b»",
        "(«a», «b»)",
        "«a»«+b»i + «d»i",
        "«a», «b»i",
    ]
    wrong += ["«b»«+a»i"] if a != b else []
    return case("«a»«+b»i", same, [*wrong, "«-a»«+b»i"] if a else wrong, a=a, b=b, d=d)


def pi_multiple(a: int, b: int) -> Case:
    value = a * math.pi / b
    same = [
        r"\frac{«a»}{«b»}\pi",
        r"«a»\pi/«b»",
        r"\dfrac{«a» \pi}{«b»}",
        r"\pi \cdot \frac{«a»}{«b»}",
        "«a»π/«b»",
    ]
    same += [r"x = \frac{«a»\pi}{«b»}", f"{value:.6f}"]
    wrong = [
        r"\frac{«a+1»\pi}{«b»}",
        r"\frac{«a»\pi}{«b+1»}",
        r"-\frac{«a»\pi}{«b»}",
        r"\frac{«a»}{«b»}",
        r"\frac{«a»\pi^2}{«b»}",
    ]
    wrong += [
        r"\frac{«a»e}{«b»}",
        f"{value + 0.01:.4f}",
        f"{value * 1.01:.4f}",
        "0.00",
        r"\frac{«a» p i}{«b»}",
    ]
    return case(r"\frac{«a»\pi}{«b»}", same, wrong, a=a, b=b)


def base(n: int, radix: int, d: int) -> Case:
    def digits(n: int) -> str:
        return (digits(n // radix) if n >= radix else "") + str(n % radix)

    wrong = ["«m»_{«b»}", "«n»_{«b+1»}", "«m»", "-«n»_{«b»}", "«n»1_{«b»}", "«n», «b»", "«n»^{«b»}"]
    return case(
        "«n»_{«b»}",
        ["«n»_«b»", "«n»_{ «b» }.", "x = «n»_{«b»}"],
        wrong,
        n=digits(n),
        m=digits(n + d),
        b=radix,
    )


def factorial(n: int) -> Case:
    value = math.factorial(n)
    same = [
        "«v»",
        r"«n» \cdot «n-1»!",
        "(«n»)!",
        f"{value:,}",
        r"\frac{«n+1»!}{«n+1»}",
        "x = «n»!",
        "«n»! + 0",
    ]
    return case(
        "«n»!",
        same,
        ["«n+1»!", "«n»", "«n»!+1", "-«n»!", "«v+1»", "«n»!!", "(«n»!)!", "«n»! «n»", "«n-1»!"],
        n=n,
        v=value,
    )


def modulus(n: int, m: int, d: int) -> Case:
    wrong = [r"«n» \pmod{«m+d»}", r"«n+d» \pmod{«m»}", r"-«n» \pmod{«m»}", "«n+d»"]
    return case(
        r"«n» \pmod{«m»}", [r"«n»\pmod «m»", "«n»", r"x = «n» \pmod{ «m» }"], wrong, n=n, m=m, d=d
    )


def binomial(n: int, k: int) -> Case:
    k, m = k % (n - 1) + 1, n - k % (n - 1) - 1
    same = [
        "«v»",
        r"\dbinom{«n»}{«k»}",
        r"\binom{«n»}{«m»}",
        r"{«n» \choose «k»}",
        r"\frac{«n»!}{«k»!«m»!}",
        r"\binom{«n»}{«k»}+0",
    ]
    same += [r"\binom{«n-1»}{«k»} + \binom{«n-1»}{«k-1»}"]
    wrong = [
        r"\binom{«n+1»}{«k»}",
        r"\binom{«n»}{«k»}+1",
        r"-\binom{«n»}{«k»}",
        "«v+1»",
        r"\binom{«k»}{«n»}",
        "(«n», «k»)",
    ]
    wrong += [r"\frac{«n»!}{«k»!}"] if m > 1 else []
    return case(
        r"\binom{«n»}{«k»}",
        same,
        [*wrong, r"\frac{«n»}{«k»}"] if k > 1 else wrong,
        n=n,
        k=k,
        m=m,
        v=math.comb(n, k),
    )


def power(a: int, b: int, n: int) -> Case:
    """Powers larger than any float."""
    same = [
        r"«a» \cdot «a»^{«n-1»}",
        "«a»^«n»",
        "«a»^{«n-1»+1}",
        r"\frac{«a»^{«n+1»}}{«a»}",
        r"«a»^{«n-2»} \cdot «a*a»",
    ]
    wrong = [
        "«a»^{«n+1»}",
        "«a+1»^{«n»}",
        "«a»^{«n»}+1",
        r"«a» \cdot «n»",
        "«a»^{«b»^{«n»}}",
        "«n»^{«a»}",
        ".«a»^{«n»}",
        "-«a»^{«n»}",
    ]
    return case(
        "«a»^{«n»}",
        same,
        [*wrong, r"«a»^{«n»}+\sqrt{«a»}"] if n < 60 and a not in (4, 9) else wrong,
        a=a,
        b=b,
        n=n,
    )


def power_of_a_power(a: int, n: int) -> Case:
    wrong = ["(«a»^2)^«n»", "{«a»^2}^{«n»}", "«a»^{2«n»}", "«a»^{2^«n+1»}"]
    return case("«a»^{2^«n»}", ["«a**(2**n)»", "«a»^2^«n»", "«a»^{2^{«n»}}"], wrong, a=a, n=n)


def tiny(n: int, d: int) -> Case:
    """Numbers so small that they could be taken for 0."""
    return case(
        "e^{-«n»}",
        [r"\frac{1}{e^{«n»}}", r"\exp(-«n»)", "e^{-«n-d»}e^{-«d»}"],
        ["0", "e^{-«n+d»}", "e^{«n»}", "-e^{-«n»}", "0.00"],
        n=n,
        d=d,
    )


def conjugates(a: int, n: int) -> Case:
    """Integers that their first term approximates to many decimals."""
    last, value = 2, 2 * a
    for _ in range(n - 1):
        last, value = value, 2 * a * value - last
    one, other = r"(«a»+\sqrt{«a*a-1»})^{«n»}", r"(«a»-\sqrt{«a*a-1»})^{«n»}"
    wrong = [one, f"{one} - {other}", f"{one} + {other} {other}", "«v+1»"]
    return case(f"{one} + {other}", [f"{other} + {one}", "«v»"], wrong, a=a, n=n, v=value)


small, positive, digit = st.integers(-99, 99), st.integers(1, 99), st.integers(2, 9)
nonzero = small.filter(bool)
fractions = st.builds(Fraction, st.integers(-999, 999), st.integers(1, 12))
number_lists = {
    "xs": st.lists(fractions, min_size=2, max_size=5, unique=True),
    "at": st.integers(0, 4),
    "d": positive,
}
ascending = st.lists(st.integers(-50, 50), min_size=4, max_size=4, unique=True).map(sorted)
left, right = st.sampled_from("(["), st.sampled_from(")]")
rows = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(small, min_size=width, max_size=width), min_size=2, max_size=4)
)
word = st.text("abcdefghijklmnopqrstuvwxyz", min_size=4, max_size=9)
FUNCTIONS = [
    r"\sqrt{?}",
    r"e^{?}",
    r"\frac{1}{?}",
    r"\log_{?} 7",
    r"y^{?}",
    r"\sqrt[3]{?}",
    r"\frac{?}{7}+y",
]
KINDS: dict[str, st.SearchStrategy[Case]] = {
    "integer": st.builds(integer, st.integers(-(10**7), 10**7), positive),
    "digit": st.builds(integer, st.integers(-9, 9), positive),
    "decimal": st.builds(
        decimal, st.integers(1, 10**6), st.from_regex("[0-9]{0,5}[1-9]", fullmatch=True)
    ),
    "fraction": st.builds(fraction, nonzero, positive, positive, st.booleans()),
    "scientific": st.builds(
        scientific, st.integers(1, 8), st.integers(0, 99), st.integers(-12, 15).filter(bool)
    ),
    "percent": st.builds(percent, positive, positive),
    "unit": st.tuples(positive, positive, st.permutations(sorted(UNITS))).map(
        lambda drawn: unit(*drawn[:2], *drawn[2][:2])
    ),
    "power of a unit": st.builds(
        power_of_a_unit, positive, st.sampled_from(["cm", "km", "ft"]), st.integers(2, 3)
    ),
    "mixed number": st.builds(mixed, positive, positive, positive),
    "words": st.lists(word, min_size=3, max_size=3, unique=True).map(lambda three: words(*three)),
    "choice": st.permutations("ABCDEFGHIJ").map(lambda order: choice(*order[:2])),
    "tuple": st.builds(
        point, st.lists(fractions, min_size=2, max_size=5), number_lists["at"], number_lists["d"]
    ),
    "list": st.builds(members, **number_lists, braces=st.just(False)),
    "set": st.builds(members, **number_lists, braces=st.just(True)),
    "set of sets": st.builds(sets, ascending),
    "interval": st.builds(interval, ascending, left, right),
    "half-line": st.builds(half_line, small, positive, left | right),
    "union": st.builds(union, ascending, left, right),
    "inequality": st.builds(inequality, nonzero, positive, left),
    "chain": st.builds(chain, ascending, left, right),
    "equation": st.builds(equation, nonzero, positive),
    "line": st.builds(line, nonzero, small, positive),
    "matrix": st.builds(matrix, rows, st.integers(0, 11), positive),
    "product of matrices": st.builds(product_of_matrices, nonzero, nonzero),
    "ratio": st.builds(ratio, positive, positive, positive),
    "ratio of three": st.builds(ratio_of_three, positive, positive, positive),
    "polynomial": st.builds(polynomial, digit, nonzero, nonzero, positive),
    "trigonometric": st.builds(trigonometric, digit, digit, digit),
    "argument": st.builds(argument, digit, st.sampled_from(FUNCTIONS)),
    "letters": st.builds(letters, digit, st.sampled_from("ABCYZ")),
    "difference": st.permutations(["a", "b", "x", "y", "A", "B", "xy", "ab"]).map(
        lambda order: differences(*order[:2])
    ),
    "root": st.builds(root, digit, st.integers(2, 50), st.integers(0, 20)),
    "plus-minus": st.builds(two_roots, small, st.integers(1, 50)),
    "complex": st.builds(complex_number, small, nonzero, positive),
    "pi": st.builds(pi_multiple, positive, positive),
    "base": st.builds(base, st.integers(1, 10**4), st.integers(2, 9), st.integers(1, 50)),
    "modulus": st.builds(modulus, positive, positive.filter(lambda m: m > 1), positive),
    "factorial": st.builds(factorial, st.integers(4, 60)),
    "binomial": st.builds(binomial, st.integers(3, 40), st.integers(0, 40)),
    "power": st.builds(power, digit, digit, st.integers(20, 3000)),
    "power of a power": st.builds(power_of_a_power, digit, st.integers(3, 5)),
    "tiny": st.builds(tiny, st.integers(2, 150), positive),
    "conjugates": st.builds(conjugates, st.integers(2, 3), st.integers(5, 50)),
}
PROSE = ("words", "choice")
"""Kinds of gold that are not formulas."""
each = pytest.mark.parametrize("kind", KINDS)
