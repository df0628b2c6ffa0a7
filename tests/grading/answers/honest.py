"""Right answers, in the styles in which models write them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import gcd
from random import Random

from tests.grading.answers import Row, boxed, texts

MARKERS = (
    "<|im_end|>",
    "<|eot_id|>",
    "</s>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|im_end|>\n<|im_start|>user\nNext",
    "<eos>",
    "<|end|>",
)
WRAPPERS = (
    r"\boxed{%s}",
    r"\fbox{%s}",
    r"\color{red}{%s}",
    r"\color{blue} %s",
    r"\textcolor{red}{%s}",
    r"\underline{%s}",
    r"\large %s",
    r"\Large{%s}",
    r"\mathbf{%s}",
    r"\boldsymbol{%s}",
    r"\bm{%s}",
    r"\displaystyle %s",
    r"\ %s\ ",
    r"\;%s\;",
    r"\textbf{%s}",
    r"\text{%s}",
    r"\colorbox{yellow}{%s}",
    r"{%s}",
    r"{\bf %s}",
    r"\textcolor{blue}{\boxed{%s}}",
    r"\underline{\textbf{%s}}",
    r"\left(%s\right)",
    r"\large{\color{red}{%s}}",
    r"\mathrm{%s}",
    r"\quad %s",
    r"\,%s\,",
)
FORMS = (
    r"\boxed{%s}",
    r"Hence $\boxed{%s}$ is the answer.",
    r"\[ \boxed{%s} \]",
    "<answer>%s</answer>",
    "<answer> $%s$ </answer>",
    "#### %s",
    "Answer: %s",
    "**Answer:** %s",
    "**Final Answer**\n\n%s",
    "### Answer\n%s",
    "## Final Answer:\n\n$%s$",
    "The answer is $%s$.",
    "The final answer is: $\\boxed{%s}$",
    "**Final Answer**: $%s$",
    "### Answer: %s",
    "Final answer: %s",
    "Thus\n$$\\boxed{%s}.$$",
    r"<think>\boxed{0}, no.</think>The answer is \boxed{%s}.",
    "Answer:\n\n%s",
    "#### Answer: %s",
    "The answer is **%s**.",
)


def rows(seed: int) -> Iterator[Row]:
    rng = Random(f"honest-{seed}")
    for family in (
        formats,
        wrappers,
        numbers,
        units,
        names,
        sets,
        points,
        lists,
        expressions,
        words,
        calculus,
    ):
        yield from family(rng)


def formats(rng: Random) -> Iterator[Row]:
    n = rng.randint(2, 999)
    for form in FORMS:
        yield from texts("format", str(n), form % n)
    for marker in MARKERS:
        yield from texts(
            "end marker",
            str(n),
            f"#### {n}{marker}",
            f"The answer is {n}.{marker}",
            rf"\boxed{{{n}}}{marker}",
            f"Answer: {n}{marker}",
        )


def wrappers(rng: Random) -> Iterator[Row]:
    golds = (
        str(rng.randint(2, 999)),
        rf"\frac{{{rng.randint(1, 9)}}}{{11}}",
        rf"{rng.randint(2, 9)}\sqrt{{{rng.choice((2, 3, 5, 7))}}}",
    )
    for gold in golds:
        for wrapper in WRAPPERS:
            if "\\" not in gold or "text" not in wrapper:
                yield from boxed("wrapper", gold, wrapper % gold)


def numbers(rng: Random) -> Iterator[Row]:
    a, b = rng.randint(2, 9), rng.randint(10, 30)
    while gcd(a, b) > 1 or b % 2 == b % 5 == 0:
        b += 1
    over = (
        "{%d\\over%d}",
        "{%d \\over %d}",
        "\\frac{%d}{%d}",
        "\\dfrac{%d}{%d}",
        "\\tfrac{%d}{%d}",
        "%d/%d",
        "\\frac %d{%d}",
        "\\cfrac{%d}{%d}",
    )
    yield from boxed("fraction", rf"\frac{{{a}}}{{{b}}}", *(form % (a, b) for form in over))
    yield from boxed(
        "fraction",
        f"-{a}/{b}",
        rf"-\frac{{{a}}}{{{b}}}",
        rf"\frac{{-{a}}}{{{b}}}",
        rf"-{{{a}\over{b}}}",
        rf"\frac{{{a}}}{{-{b}}}",
    )
    n = rng.randint(10_000, 999_999)
    commas = f"{n:,}"
    for mark in (",", "{,}", r"\,", r"\ ", " ", r",\!", "~", "{ , }"):
        yield from boxed("thousands", str(n), commas.replace(",", mark))
    x = rng.randint(101, 999)
    yield from boxed(
        "decimal",
        f"{x / 100:.2f}",
        f"{x / 100:.2f}0",
        f"+{x / 100:.2f}",
        str(Fraction(x, 100)),
        rf"{x / 100:.2f}\ ",
    )
    yield from boxed(
        "scientific",
        str(x * 10**6),
        rf"{x / 100:.2f} \times 10^{{8}}",
        rf"{x / 100:.2f}\cdot10^8",
        f"{x / 100:.2f}e8",
    )
    yield from boxed(
        "percent",
        rf"{x % 90 + 5}\%",
        f"{x % 90 + 5}%",
        rf"{x % 90 + 5}\ \%",
        f"{x % 90 + 5} percent",
        str(x % 90 + 5),
    )
    yield from boxed("percent", rf"{x % 90 + 5}\%", rf"{x % 90 + 5} \text{{ percent}}")
    yield from boxed(
        "mixed number",
        rf"{a}\frac{{1}}{{3}}",
        rf"{a}\tfrac13",
        f"{a} 1/3",
        rf"\frac{{{3 * a + 1}}}{{3}}",
        rf"{a}\,\frac{{1}}{{3}}",
    )
    yield from (
        boxed("rounded", r"\frac{1}{3}", "0.333", "0.3333")
        if a % 2
        else boxed("rounded", r"\frac{2}{3}", "0.667", "0.66667")
    )
    yield from (
        boxed("rounded", r"\pi", "3.1416", "3.14159")
        if a % 2
        else boxed("rounded", r"\sqrt2", "1.4142", "1.414214")
    )
    h, m = rng.randint(1, 12), rng.randint(10, 59)
    yield from boxed("time", f"{h}:{m}", f"{h}{{:}}{m}", rf"{h}:{m}", rf"\text{{{h}:{m}}}")
    yield from boxed(
        "degrees",
        str(b),
        rf"{b}^\circ",
        rf"{b}^{{\circ}}",
        f"{b}°",
        rf"{b}\degree",
        rf"{b} \text{{ degrees}}",
        rf"\angle A = {b}^\circ",
    )
    yield from boxed(
        "money", f"{n}", rf"\${n}", rf"\${commas}", rf"{n}\text{{ dollars}}", rf"\${n}.00"
    )


UNIT_PAIRS = (
    ("m", "meters", "km", 1000),
    ("cm", "centimeters", "m", 100),
    ("kg", "kilograms", "kg", 1),
    ("g", "grams", "kg", 1000),
    ("minutes", "min", "hours", 60),
    ("seconds", "s", "minutes", 60),
    ("inches", "in", "feet", 12),
    ("cents", "cent", "dollars", 100),
    ("mL", "milliliters", "liters", 1000),
)


def units(rng: Random) -> Iterator[Row]:
    for small, alias, large, factor in UNIT_PAIRS:
        n = rng.randint(2, 40)
        gold = rf"{n * factor} \text{{ {small}}}"
        yield from boxed(
            "unit",
            gold,
            rf"{n * factor}\text{{ {alias}}}",
            rf"{n}\,\text{{{large}}}",
            str(n * factor),
            rf"{n}\ \mathrm{{{large}}}",
        )
        yield from boxed(
            "unit",
            str(n),
            rf"{n}\text{{ {small}}}",
            rf"{n} \mathrm{{~{small}}}",
            rf"{n}\,\textrm{{{alias}}}",
        )
    n = rng.randint(2, 99)
    forms = (
        "km/h",
        "square meters",
        "cm^2",
        "cubic feet",
        "miles per hour",
        "m/s",
        "square units",
        "units",
        "mph",
        "sq cm",
        "meters per second",
    )
    yield from boxed("unit", str(n), *(rf"{n}\text{{ {form}}}" for form in forms))
    yield from boxed(
        "unit",
        str(n),
        rf"{n}\text{{ cm}}^2",
        rf"{n} \text{{ m}}^{{3}}",
        rf"{n} \, \text{{km}} / \text{{h}}",
        rf"{n} \text{{cm}}^{{2}}",
    )
    nouns = (
        "apples",
        "people",
        "students",
        "ways",
        "cookies",
        "books",
        "days",
        "solutions",
        "hours",
        "eggs",
        "dollars",
        "miles",
        "cards",
    )
    yield from boxed(
        "noun",
        str(n),
        *(rf"{n} \text{{ {noun}}}" for noun in nouns),
        *(f"{n} {noun}" for noun in nouns),
    )
    yield from texts("noun", str(n), *(f"Answer: {n} {noun}." for noun in nouns[:4]))
    yield from boxed("noun", rf"{n} \text{{ blue widgets}}", rf"{n}\text{{ blue widgets}}", str(n))
    v = rng.randint(2, 30)
    yield from boxed(
        "unit",
        rf"{5 * v}\text{{ m/s}}",
        rf"{18 * v}\text{{ km/h}}",
        rf"{5 * v}\text{{ meters per second}}",
        rf"{5 * v}",
    )


def names(rng: Random) -> Iterator[Row]:
    n = rng.randint(11, 99)
    left = (
        "x",
        "S",
        "S_{max}",
        r"S_{\max}",
        r"S_{\text{max}}",
        r"V_{cone}",
        r"S_{\triangle ABC}",
        r"\angle ABC",
        r"\text{Area}",
        "P(A)",
        "f(3)",
        "|AB|",
        "AB",
        "a_1",
        "a_{10}",
        r"\overline{AB}",
        r"m\angle A",
        r"\text{Total cost}",
        "g(x)",
        r"\vec v",
        "n",
    )
    for name in left:
        yield from boxed("name", str(n), f"{name} = {n}", f"{name}={n}")
        yield from boxed("named gold", f"{name} = {n}", str(n), f"{n}.0")
    yield from boxed(
        "chain",
        str(n),
        f"x = {n - 5} + 5 = {n}",
        rf"\frac{{{2 * n}}}{{2}} = {n}",
        f"{n - 7}+7={n}",
        rf"A = \pi r^2 = {n}",
    )


def sets(rng: Random) -> Iterator[Row]:
    a = rng.randint(-9, 5)
    b = a + rng.randint(2, 9)
    yield from boxed(
        "interval",
        f"({a}, {b}]",
        f"x>{a} \\text{{ and }} x\\le{b}",
        f"{a} < x \\le {b}",
        rf"x \in ({a}, {b}]",
        rf"x > {a}, x \leq {b}",
    )
    yield from boxed(
        "interval",
        f"({a}, {b}]",
        rf"\left({a},{b}\right]",
        rf"\begin{{cases}} x > {a} \\ x \le {b} \end{{cases}}",
    )
    yield from boxed(
        "interval",
        rf"[-{b + 20}, {b + 20}]",
        rf"|x|\le{b + 20}",
        rf"-{b + 20} \le x \le {b + 20}",
        rf"\left|x\right| \leq {b + 20}",
    )
    yield from boxed(
        "interval",
        rf"(-\infty,{a})\cup({b},\infty)",
        rf"x<{a} \text{{ or }} x>{b}",
        rf"x > {b} \text{{ or }} x < {a}",
    )
    yield from boxed(
        "interval",
        rf"(-\infty,{a})\cup({a},\infty)",
        rf"\mathbb{{R}} \setminus \{{{a}\}}",
        rf"x \ne {a}",
        rf"\mathbb R-\{{{a}\}}",
    )
    yield from boxed(
        "interval",
        rf"(-\infty,{a})\cup({a},\infty)",
        rf"x\in\mathbb{{R}}\setminus\{{{a}\}}",
        rf"x \in \mathbb{{R}}, x \neq {a}",
    )
    yield from boxed(
        "interval",
        r"(-\infty, \infty)",
        r"\mathbb{R}",
        r"x \in \mathbb{R}",
        r"\mathbb R",
        "ℝ",
        r"(-\infty,+\infty)",
        r"\R",
    )
    yield from boxed("interval", r"\mathbb{R}", r"(-\infty,\infty)")
    yield from boxed(
        "interval",
        rf"[{b},\infty)",
        rf"x \ge {b}",
        rf"{b} \le x",
        rf"x \geqslant {b}",
        rf"[{b},+\infty)",
        rf"\{{x : x \ge {b}\}}",
        rf"x\geq {b}",
    )


def points(rng: Random) -> Iterator[Row]:
    a, b, c = rng.randint(-9, 9), rng.randint(10, 20), rng.randint(21, 30)
    yield from boxed(
        "point",
        f"({a}, {b})",
        f"x={a}, y={b}",
        rf"x={a} \text{{ and }} y={b}",
        f"(x,y)=({a},{b})",
        rf"\left({a},\,{b}\right)",
    )
    yield from boxed(
        "point",
        f"({a}, {b})",
        rf"\begin{{cases}} x={a} \\ y={b} \end{{cases}}",
        rf"y={b},\ x={a}",
        rf"\vec v=({a},{b})",
    )
    yield from boxed(
        "point",
        f"({a}, {b}, {c})",
        f"a={a}, b={b}, c={c}",
        rf"x={a},\quad y={b},\quad z={c}",
        f"(a,b,c) = ({a}, {b}, {c})",
    )
    yield from boxed(
        "point",
        f"x={a}, y={b}",
        f"({a},{b})",
        f"(x, y) = ({a}, {b})",
        f"y={b}, x={a}",
        f"x = {a}; y = {b}",
    )
    matrix = rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}"
    yield from boxed(
        "vector",
        matrix,
        matrix.replace("pmatrix", "bmatrix"),
        rf"\vec{{v}} = {matrix}",
        rf"\mathbf{{v}} = {matrix}",
    )


def lists(rng: Random) -> Iterator[Row]:
    a, b, c = rng.sample(range(1, 50), 3)
    gold = f"{a}, {b}, {c}"
    yield from boxed(
        "list",
        gold,
        f"{c}, {a}, {b}",
        rf"\{{{a},{b},{c}\}}",
        rf"{a}, {b} \text{{ and }} {c}",
        rf"{b},\ {c},\ {a}",
        f"{a};{b};{c}",
    )
    yield from texts(
        "boxes",
        f"{a}, {b}",
        rf"\boxed{{{a}}} and \boxed{{{b}}}",
        rf"$x = \boxed{{{a}}}$ or $x = \boxed{{{b}}}$",
        rf"$\boxed{{{b}}}, \boxed{{{a}}}$",
        rf"\boxed{{x={a}}} \quad \text{{and}} \quad \boxed{{x={b}}}",
        rf"\boxed{{{a}}} \boxed{{{b}}}",
        f"The answers: answer is ${a}$ and ${b}$.",
        f"<answer>{a} and {b}</answer>",
        f"#### {a}, {b}",
    )
    yield from boxed(
        "plus-minus",
        rf"{a} \pm \sqrt{{{b}}}",
        rf"{a}+\sqrt{{{b}}}, {a}-\sqrt{{{b}}}",
        rf"x = {a} \pm \sqrt{{{b}}}",
        rf"{a}\pm {b}^{{1/2}}",
    )


def expressions(rng: Random) -> Iterator[Row]:
    a, b = rng.randint(2, 9), rng.randint(10, 20)
    yield from boxed(
        "polynomial",
        f"(x+{a})(x-{b})",
        f"x^2 + {a - b}x - {a * b}".replace("+ -", "- "),
        f"(x-{b})(x+{a})",
    )
    yield from boxed(
        "polynomial", f"y = {a}x+{b}", f"{a}x+{b}", f"y={b}+{a}x", f"{a}x - y + {b} = 0"
    )
    yield from boxed(
        "root",
        rf"{a}\sqrt{{3}}",
        rf"\sqrt{{{3 * a * a}}}",
        rf"{a}\cdot\sqrt3",
        rf"{a}{{\sqrt{{3}}}}",
        rf"{a} \cdot 3^{{1/2}}",
    )
    yield from boxed(
        "trigonometric",
        r"\frac{\sqrt{3}}{2}",
        r"\sin 60^\circ",
        r"\cos(30^\circ)",
        r"\sin{60°}",
        r"\cos 30^{\circ}",
    )
    yield from boxed(
        "pi", rf"{a}\pi", rf"{a} \pi", rf"\pi \cdot {a}", rf"{a}π", rf"{a} \pi \text{{ cm}}"
    )
    yield from boxed(
        "power",
        f"{a}^{{{b * 10}}}",
        f"{a}^{{{b * 10}}}",
        rf"{a}\cdot {a}^{{{b * 10 - 1}}}",
        rf"({a})^{{{b * 10}}}",
    )
    yield from boxed("complex", f"{a}+{b}i", f"{b}i+{a}", f"{a} + i{b}", rf"{a}+{b}\,i")
    yield from boxed("base", f"1011_{a + 1}", f"1011_{{{a + 1}}}", rf"1011_{{{a + 1}}}\ ")
    yield from boxed(
        "ratio",
        f"{a}:{b * 10 + 1}",
        f"{a} : {b * 10 + 1}",
        f"{a}{{:}}{b * 10 + 1}",
        rf"{a}\colon {b * 10 + 1}",
    )
    yield from boxed(
        "inequality",
        rf"x \le {a}",
        rf"{a} \ge x",
        rf"x\leqslant {a}",
        rf"(-\infty, {a}]",
        rf"x\leq {a}",
    )


def words(rng: Random) -> Iterator[Row]:
    letter = rng.choice("ABCDE")
    yield from boxed(
        "choice",
        letter,
        letter,
        f"({letter})",
        rf"\text{{{letter}}}",
        rf"\textbf{{({letter})}}",
        rf"\text{{({letter})}} 17",
        f"{letter}) 17",
    )
    yield from texts(
        "choice",
        letter,
        f"The answer is ({letter}).",
        f"Answer: {letter}",
        f"**Answer: {letter}**",
        f"Answer: {letter}. 17",
    )
    word = rng.choice(("parallelogram", "Evelyn", "hyperbola", "Tuesday", "isosceles"))
    yield from boxed(
        "word",
        rf"\text{{{word}}}",
        word,
        rf"\text{{{word}}}",
        rf"\textbf{{{word}}}",
        rf"\text{{\textbf{{{word}}}}}",
        rf"\mathrm{{{word}}}",
    )
    yield from texts(
        "word",
        word,
        f"Answer: {word}",
        f"The answer is {word}.",
        f"<answer>{word.upper()}</answer>",
    )
    order = "".join(rng.sample("ABCD", 4))
    yield from boxed("letters", order, order, rf"\text{{{order}}}", rf"\mathrm{{{order}}}")


def calculus(rng: Random) -> Iterator[Row]:
    n = rng.randint(2, 6)
    yield from boxed(
        "integral",
        r"\pi",
        r"\int_{-1}^{1} \frac{1}{\sqrt{1-x^2}} dx",
        r"\int_{-\infty}^{\infty} \frac{1}{1+x^2} \, dx",
    )
    yield from boxed(
        "integral",
        rf"\frac{{e^{n}-1}}{{{n}}}",
        rf"\int_0^1 e^{{{n}x}} \, dx",
        rf"\int_{{0}}^{{1}} e^{{{n}t}}\,\mathrm{{d}}t",
    )
    yield from boxed(
        "integral",
        rf"\int_0^1 x^{{{n}}} dx",
        rf"\frac{{1}}{{{n + 1}}}",
        rf"\int_0^1 t^{{{n}}} \, dt",
    )
    yield from boxed(
        "series",
        r"\frac{\pi^2}{6}",
        r"\sum_{n=1}^{\infty} \frac{1}{n^2}",
        r"\sum_{k=1}^\infty k^{-2}",
    )
    yield from boxed("series", r"e", r"\sum_{n=0}^{\infty} \frac{1}{n!}")
    yield from boxed("series", r"\ln 2", r"\sum_{n=1}^{\infty} \frac{(-1)^{n+1}}{n}")
    yield from boxed("gcd", rf"x + {6 * n}", rf"x+\gcd({12 * n},{18 * n})")
