"""Generators of honest mathematical answers by style: right answers as language models write them,
which must be paid.

Each style yields (gold, answer, reason); those in `WHOLE` yield whole responses. All of it is
determined by the seed. Left out is what two people could disagree about: unevaluated expressions,
unreduced fractions, rounded decimals, missing units that the question may ask for."""

# fmt: off
import re
from collections.abc import Callable
from fractions import Fraction
from random import Random

from tests.grading.redteam import asked_honest
from tests.grading.redteam.rows import Draws, Row, draw_rows, pick

SOLUTION = "First we add the two numbers. Then we check the result."


def responses(rng: Random) -> Draws:
    """Whole responses that state a number."""
    forms = (
        r"\boxed{N}", r"$\boxed{N}$", r"\[\boxed{N}\]", r"\(\boxed{N}\)", r"$$\boxed{N}$$", r"\boxed{N}.", r"**\boxed{N}**",
        r"**Final Answer:** $\boxed{N}$", "The answer is N.", "The answer is: N", "The answer is $N$.", "The final answer is $N$.",
        "So the final answer is **N**.", "**Final Answer:** N", "**Answer:** N", "**Answer**: N", "### Answer\nN", "### Answer\n\n$N$",
        "### Answer: N", "### Final Answer\n$\\boxed{N}$", "## Answer\n\n**N**", "Answer: N", "answer: N", "ANSWER: N", "#### N", "####N",
        "#### $N$", "<answer>N</answer>", "<answer> N </answer>", "<answer>\nN\n</answer>", "<answer>$N$</answer>",
        r"<answer>\boxed{N}</answer>", "<answer>**N**</answer>", "<answer>The answer is N</answer>",
        "<think>Let me see.</think>\n<answer>N</answer>", r"<think>\boxed{3}? No.</think> So it is \boxed{N}.",
        "<think>1 or 2?</think>\n\nThe answer is N.", "Final Answer: The final answer is $N$. I hope it is correct.",
        "Therefore, the answer is **$N$**.", r"Hence the answer is \(N\).", r"The answer is \[N\]",
        "Thus, the answer is $\\boxed{N}$ as required.", "N", "$N$", "**N**", r"\boxed{N}" + "\n\nLet me know if you have any questions!",
        r"$x = \boxed{N}$", r"$$x + 1 = \boxed{N}$$", r"\boxed{\text{N}}", "The answer is: **N**.", r"\boxed{N}<|im_end|>",
        r"\boxed{N}<|endoftext|>", r"\boxed{N}<|eot_id|>", r"\boxed{N}</s>", r"\boxed{N}<end_of_turn>", r"\boxed{N}<eos>",
        r"\boxed{N}<|end|>", "The answer is N.<|im_end|>", "The answer is $N$.</s>", "#### N<|eot_id|>", "#### N</s>",
        "#### N<end_of_turn>", "Answer: N<|end|>", "N<|im_end|>", "N</s>", "<answer>N</answer><|im_end|>", "<answer>N</answer></s>",
        "<|im_start|>assistant\nThe answer is N.<|im_end|>", "The answer is N.<｜end▁of▁sentence｜>", f"{SOLUTION} The answer is N.",
        f"{SOLUTION * 6} " + r"\boxed{N}", f"{SOLUTION * 6}\n#### N", f"{SOLUTION * 6} The final answer is $N$.",
        f"{SOLUTION * 6}\n\n### Final Answer\n\nN", "Step 1: 2 + 3 = 5.\nStep 2: done.\n\n**Answer: N**", "- so the answer is N",
        "_Answer:_ N", "The answer is\n\nN", "The correct answer is N.", "Our answer is N.", "The answer is therefore N.",
        r"We get $\boxed{N}$ apples? No: \boxed{N}.", r"The answer is $\mathbf{N}$.",
    )
    n = rng.choice((rng.randint(4, 99), rng.randint(100, 999), -rng.randint(4, 99)))
    yield from pick(rng, str(n), *(re.sub(r"\bN\b", str(n), form) for form in forms), num=3)


def wrappers_of_style(rng: Random) -> Draws:
    """Commands around the answer that change how it looks."""
    golds = ("17", "-8", r"\frac{3}{4}", r"2\sqrt{3}", "x^2 + 1", "(1, 2)", r"\frac{\pi}{6}")
    forms = (
        r"\boxed{N}", r"\fbox{N}", r"\color{red} N", r"\color{blue}{N}", r"\textcolor{red}{N}", r"{\color{red} N}", r"\underline{N}",
        r"\large N", r"\Large{N}", r"\mathbf{N}", r"\displaystyle N", r"\displaystyle{N}", r"\mathrm{N}", r"\bm{N}", r"\boldsymbol{N}",
        r"\ N", r"N\ ", r"\,N\,", r"\;N\;", r"\quad N", r"~N~", r"{N}", r"{{N}}", r"\! N", r"N.", r" N ", r"\bf N", r"\huge N",
        r"\LARGE{N}", r"\small N", r"\underline{\underline{N}}", r"\ensuremath{N}", r"\mathbf{\color{red}{N}}",
        r"\textcolor{blue}{\boxed{N}}", r"\tiny N", r"\normalsize N", r"\,\, N \,\,", r"\hspace{1mm} N", r"\thinspace N", r"\textstyle N",
        r"\mbox{$N$}", r"\text{$N$}", r"\strut N", r"\boxed{\color{red} N}",
    )
    gold = rng.choice(golds)
    yield from pick(rng, gold, *(re.sub(r"\bN\b", lambda match, gold=gold: gold, form) for form in forms), num=3)


def integers(rng: Random) -> Draws:
    n = rng.randint(2, 999)
    forms = (
        f"x = {n}", f"x={n}", f"n = {n}", f"{n}.0", f"{n}.", f"+{n}", f"({n})", rf"\text{{{n}}}", f"x \\ = \\ {n}", f"S = {n}",
        f"AB = {n}", f"a_1 = {n}", rf"\theta = {n}", f"f(3) = {n}", f"{n}.00", rf"\angle ABC = {n}", f"P(x) = {n}", f"|AB| = {n}",
        rf"S_{{max}} = {n}", rf"x_{{\min}} = {n}", f"N = {n}", f"y' = {n}", f"2 + {n - 2} = {n}", f"x = {n - 1} + 1 = {n}",
        rf"\text{{Area}} = {n}", f"k={n}.", f"m={n}",
    )
    yield from pick(rng, str(n), *forms, num=4)
    yield from pick(rng, str(-n), f"-{n}", f"- {n}", f"−{n}", f"x = -{n}", f"(-{n})", f"-{n}.0", f"{{-}}{n}")


def thousands(rng: Random) -> Draws:
    n = rng.choice((rng.randint(1000, 9999), rng.randint(10000, 999999), rng.randint(10**6, 10**9)))
    commas = f"{n:,}"
    forms = (
        commas, commas.replace(",", "{,}"), commas.replace(",", r"\,"), commas.replace(",", r",\!"), commas.replace(",", r"\ "),
        commas.replace(",", " "), commas.replace(",", "~"), commas.replace(",", r"\;"), f"{commas}.00", commas.replace(",", "\u202f"),
        commas.replace(",", "\u00a0"), rf"\${commas}", rf"\text{{{commas}}}", str(n), rf"\mathbf{{{commas}}}", f"x = {commas}",
        commas.replace(",", r"\,") + ".",
    )
    yield from pick(rng, str(n), *forms, num=4)
    yield from pick(rng, commas, str(n), commas.replace(",", "{,}"), commas.replace(",", r"\,"), f"{n}.0")


def units_in_text(rng: Random) -> Draws:
    n = rng.randint(2, 99)
    for gold_unit, *others in rng.sample(
        (
            ("cm", "centimeters", r"\mathrm{cm}", "cm"), ("km", "kilometers", r"\mathrm{km}"), ("kg", "kilograms", r"\mathrm{kg}"),
            ("hours", "hours", "hr", "h"), ("minutes", "minutes", "min"), ("dollars", "dollars"), ("m", "meters", r"\mathrm{m}"),
            ("inches", "inches", "in."), ("feet", "feet", "ft"), ("seconds", "seconds", "s"), ("mph", "mph", "miles per hour"),
            ("km/h", "km/h", r"\mathrm{km/h}"), ("days", "days"), ("miles", "miles"), ("liters", "liters", "L"),
            ("grams", "grams", "g"),
        ),
        2,
    ):
        unit = rng.choice(others)
        written = unit if unit.startswith("\\") else rf"\text{{ {unit}}}"
        plain = unit.removeprefix(r"\mathrm{").removesuffix("}")
        forms = (
            rf"{n}{written}", rf"{n}\ {written}", rf"{n}\,{written}", f"{n} {plain}", rf"{n}~{written}", rf"x = {n}{written}",
            rf"{n}.0{written}",
        )
        yield from pick(rng, rf"{n} \text{{ {gold_unit}}}", *forms, num=2)
        yield from pick(rng, str(n), *(rf"{n} \text{{ {gold_unit}}}", f"{n} {gold_unit}"), num=1)
    area = (
        rf"{n} \text{{ cm}}^2", rf"{n}\ \mathrm{{cm}}^{{2}}", rf"{n} \text{{ square centimeters}}", f"{n} cm^2", rf"{n}\,\text{{cm}}^2",
        rf"{n} \text{{ cm}}^{{2}}", f"{n} cm²",
    )
    yield from pick(rng, rf"{n} \text{{ cm}}^2", *area, num=2)
    angle = (
        rf"{n}^\circ", rf"{n}^{{\circ}}", f"{n}°", rf"{n} \text{{ degrees}}", f"{n} degrees", rf"\angle A = {n}^\circ",
        rf"\theta = {n}^{{\circ}}", rf"{n}\degree", rf"\angle BAC = {n}^\circ",
    )
    yield from pick(rng, rf"{n}^\circ", *angle, num=3)
    money = (rf"\${n}", rf"\${n}.00", f"{n} dollars", rf"{n} \text{{ dollars}}", rf"\$ {n}", str(n), rf"\text{{\${n}}}")
    yield from pick(rng, rf"\${n}", *money, num=2)
    yield from pick(
        rng, rf"{n}\%", f"{n}%", rf"{n} \%", f"{n} percent", rf"{n} \text{{ percent}}", rf"{n}.0\%", rf"x = {n}\%", rf"{n}\ \%", num=2
    )


def fractions(rng: Random) -> Draws:
    value = Fraction(rng.randint(1, 40), rng.randint(2, 30))
    if value.denominator == 1:
        return
    a, b = value.numerator, value.denominator
    forms = (
        rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a}}}{{{b}}}", rf"\tfrac{{{a}}}{{{b}}}", f"{a}/{b}", rf"{{{a}\over{b}}}",
        rf"{{{a} \over {b}}}", rf"\cfrac{{{a}}}{{{b}}}", rf"\displaystyle\frac{{{a}}}{{{b}}}", rf"\left(\frac{{{a}}}{{{b}}}\right)",
        rf"x = \frac{{{a}}}{{{b}}}", f"{a} / {b}", rf"\frac {{{a}}} {{{b}}}", rf"{{\frac{{{a}}}{{{b}}}}}", f"({a}/{b})",
        rf"\tfrac{{ {a} }}{{ {b} }}", f"P = {a}/{b}", f"{a}⁄{b}",
    )
    yield from pick(rng, rf"\frac{{{a}}}{{{b}}}", *forms, num=3)
    yield from pick(rng, f"{a}/{b}", *forms, num=1)
    yield from pick(
        rng, rf"-\frac{{{a}}}{{{b}}}", rf"\frac{{-{a}}}{{{b}}}", rf"-\dfrac{{{a}}}{{{b}}}", rf"\frac{{{a}}}{{-{b}}}", f"-{a}/{b}",
        rf"- \frac{{{a}}}{{{b}}}", rf"-\left(\frac{{{a}}}{{{b}}}\right)", rf"x=-\frac{{{a}}}{{{b}}}",
    )
    if a < 10 and b < 10:
        yield from pick(
            rng, rf"\frac{{{a}}}{{{b}}}", rf"\frac{a}{b}", rf"\frac {a}{b}", rf"\frac{{{a}}}{b}", rf"\dfrac{a}{b}", rf"\frac{a}{{{b}}}"
        )
    if a > b:
        whole, rest = divmod(a, b)
        yield from pick(
            rng, rf"\frac{{{a}}}{{{b}}}", rf"{whole}\frac{{{rest}}}{{{b}}}", rf"{whole} \frac{{{rest}}}{{{b}}}", f"{whole} {rest}/{b}",
            rf"{whole}\dfrac{{{rest}}}{{{b}}}", rf"{whole}\ \frac{{{rest}}}{{{b}}}",
        )


def decimals(rng: Random) -> Draws:
    exact = (
        ("0.5", r"\frac{1}{2}"), ("0.25", r"\frac{1}{4}"), ("0.75", "3/4"), ("1.5", r"\frac{3}{2}"), ("0.2", r"\frac15"),
        ("2.5", r"2\frac12"), ("0.125", r"\frac{1}{8}"), ("0.04", r"\frac{1}{25}"),
    )
    decimal, fraction = rng.choice(exact)
    short = decimal.removeprefix("0")
    yield from pick(
        rng, decimal, fraction, f"{decimal}0", f"{short}", f"x = {decimal}", f"{decimal}00", rf"\text{{{decimal}}}", f"{decimal}.",
        num=2,
    )
    yield from pick(rng, fraction, decimal, f"{decimal}0", f"x = {decimal}", fraction, num=2)
    n, places = rng.randint(0, 99), rng.randint(11, 98) // 10 * 10 + rng.choice((1, 3, 7, 9))
    gold = f"{n}.{places}"
    yield from pick(
        rng, gold, gold, f"{gold}0", f"+{gold}", rf"\${gold}", f"x={gold}", f"{gold}.", f"({gold})", rf"\text{{{gold}}}", num=2
    )


def scientific(rng: Random) -> Draws:
    a, b, k = rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 12)
    forms = (
        rf"{a}.{b} \times 10^{{{k}}}", rf"{a}.{b}\cdot 10^{{{k}}}", f"{a}.{b}e{k}", f"{a}.{b}E{k}", f"{a}.{b}e+{k}",
        rf"{a}.{b}\times10^{{{k}}}", rf"{a}.{b} * 10^{{{k}}}", rf"x = {a}.{b} \times 10^{{{k}}}",
        f"{a}.{b} × 10^{k}" if k < 10 else f"{a}.{b} × 10^{{{k}}}",
    )
    yield from pick(rng, rf"{a}.{b} \times 10^{{{k}}}", *forms, num=2)
    yield from pick(
        rng, rf"{a}.{b} \times 10^{{-{k}}}", rf"{a}.{b}\cdot 10^{{-{k}}}", f"{a}.{b}e-{k}", f"{a}.{b}E-{k}",
        rf"{a}.{b}\times 10^{{-{k}}}", num=1,
    )
    yield from pick(rng, str((10 * a + b) * 10 ** (k - 1)), *forms, num=1)


def roots_and_constants(rng: Random) -> Draws:
    n, m = rng.randint(2, 9), rng.choice((2, 3, 5, 6, 7, 10, 11))
    gold = rf"{n}\sqrt{{{m}}}"
    yield from pick(
        rng, gold, rf"{n} \sqrt{{{m}}}", rf"{n}\cdot\sqrt{{{m}}}", rf"{n}√{m}", rf"\sqrt{{{m}}} \cdot {n}", rf"{n} \, \sqrt{{{m}}}",
        rf"{n}\sqrt {{{m}}}", rf"{n}{{\sqrt{{{m}}}}}", rf"AB = {n}\sqrt{{{m}}}", rf"{n}\sqrt[2]{{{m}}}", rf"{n}\times \sqrt{{{m}}}",
        rf"{n}\sqrt{{{m}}} \text{{ cm}}", num=3,
    )
    yield from pick(
        rng, rf"{n}\pi", rf"{n} \pi", rf"{n}π", rf"\pi \cdot {n}", rf"{n}\cdot\pi", rf"{n}{{\pi}}", rf"{n}\,\pi", f"{n} pi",
        rf"S = {n}\pi", rf"{n}\pi \text{{ cm}}^2", num=2,
    )
    yield from pick(
        rng, rf"\frac{{\pi}}{{{n}}}", rf"\pi/{n}", rf"\dfrac{{\pi}}{{{n}}}", rf"\frac{{1}}{{{n}}}\pi", rf"π/{n}",
        rf"\frac{{\pi}}{{{n}}} \text{{ radians}}", rf"\theta = \frac{{\pi}}{{{n}}}", rf"\tfrac{{\pi}}{{{n}}}", num=2,
    )
    yield from pick(
        rng, rf"\frac{{\sqrt{{{m}}}}}{{{n}}}", rf"\dfrac{{\sqrt{{{m}}}}}{{{n}}}", rf"\sqrt{{{m}}}/{n}",
        rf"\frac{{1}}{{{n}}}\sqrt{{{m}}}", rf"{{\sqrt{{{m}}} \over {n}}}",
        rf"\frac{{\sqrt {m}}}{{{n}}}" if m < 10 else rf"\frac{{\sqrt{{{m}}}}}{n}", rf"√{m}/{n}", num=2,
    )
    yield from pick(
        rng, rf"{n} + \sqrt{{{m}}}", rf"\sqrt{{{m}}} + {n}", rf"{n}+\sqrt{{{m}}}", rf"x = {n} + \sqrt{{{m}}}",
        rf"\left({n} + \sqrt{{{m}}}\right)", num=1,
    )
    yield from pick(rng, rf"\ln {n}", rf"\ln({n})", rf"\ln{{{n}}}", rf"\ln \left({n}\right)", rf"\log_e {n}", rf"x = \ln {n}", num=1)


def expressions(rng: Random) -> Draws:
    n, m = rng.sample(range(2, 10), 2)
    yield from pick(
        rng, f"x^2 + {n}x + {m}", f"x^2+{n}x+{m}", f"{m} + {n}x + x^2", f"x^{{2}} + {n}x + {m}", rf"x^2 + {n} \cdot x + {m}",
        f"f(x) = x^2 + {n}x + {m}", f"x² + {n}x + {m}", f"{n}x + x^2 + {m}", num=2,
    )
    yield from pick(
        rng, f"y = {n}x + {m}", f"y={n}x+{m}", f"y = {m} + {n}x", f"y - {n}x = {m}", f"{n}x - y + {m} = 0", f"{n}x + {m} = y", num=2
    )
    yield from pick(
        rng, f"(x + {n})(x - {m})", f"(x - {m})(x + {n})", rf"(x+{n})\cdot(x-{m})", rf"\left(x+{n}\right)\left(x-{m}\right)",
        f"(x+{n}) (x-{m})", num=1,
    )
    yield from pick(
        rng, f"{n} + {m}i", f"{m}i + {n}", f"{n}+{m}i", f"{n} + {m} i", f"z = {n} + {m}i", rf"{n} + {m}\,i", rf"{n} + i{m}", num=2
    )
    yield from pick(
        rng, rf"\frac{{x}}{{{n}}} + {m}", rf"{m} + \frac{{x}}{{{n}}}", rf"\dfrac{{x}}{{{n}}}+{m}", rf"\frac{{1}}{{{n}}}x + {m}",
        rf"x/{n} + {m}", num=1,
    )
    yield from pick(
        rng, rf"{n}\sin x", rf"{n}\sin(x)", rf"{n} \sin x", rf"{n}\sin{{x}}", rf"{n} \cdot \sin(x)", rf"f(x) = {n}\sin x", num=1
    )
    yield from pick(rng, "101_2", "101_{2}", "(101)_2", "101_2.", "101_{ 2 }", num=1)
    yield from pick(rng, f"{n}:{m}", f"{n} : {m}", f"{n}{{:}}{m}", rf"{n}\!:\!{m}", f"a:b = {n}:{m}", num=1)
    yield from pick(rng, rf"S_{{max}}={n}", str(n), rf"S_{{max}} = {n}", rf"S_{{\max}} = {n}", f"{n}.0", num=1)
    yield from pick(rng, f"x = {n}", str(n), f"x={n}", f"{n}.", f"{n} = x", rf"x \, = \, {n}", f"(x = {n})", num=1)
    yield from pick(
        rng, r"\cos 40^\circ", r"\cos(40^\circ)", r"\sin 50^\circ", r"\cos {40^{\circ}}", r"\sin(50°)", num=1,
        reason="complementary angles",
    )
    yield from pick(rng, r"\sin 30^\circ", r"\frac{1}{2}", "0.5", "1/2", num=1, reason="the gold is not evaluated, the answer is")


def gold_operations(rng: Random) -> Draws:
    """Golds that are sums, integrals or number-theoretic functions, and answers with their
    value."""
    n, d = rng.randint(2, 9), rng.randint(2, 6)
    yield from pick(rng, rf"\int_0^1 x^{{{n}}}\,dx", rf"\frac{{1}}{{{n + 1}}}", f"1/{n + 1}", rf"\dfrac{{1}}{{{n + 1}}}")
    yield from pick(
        rng, rf"\sum_{{k=0}}^{{\infty}} \frac{{1}}{{{n}^k}}", str(Fraction(n, n - 1)), rf"\frac{{{n}}}{{{n - 1}}}" if n > 2 else "2"
    )
    yield from pick(rng, rf"\gcd({6 * n}, {6 * n + 6})", "6", "6.0", "x = 6")
    yield from pick(rng, rf"\sum_{{k=1}}^{{{n}}} k", str(n * (n + 1) // 2), f"{n * (n + 1) // 2}.0")
    yield from pick(rng, rf"\binom{{{n + 2}}}{{2}}", str((n + 2) * (n + 1) // 2), f"x = {(n + 2) * (n + 1) // 2}")
    yield from pick(rng, f"{n}^{{{d}}}", str(n**d), f"{n**d:,}", rf"{n}^{d}", rf"{{{n}}}^{{{d}}}")
    yield from pick(rng, rf"\operatorname{{lcm}}({n}, {n + 1})", str(n * (n + 1)), f"{n * (n + 1)}.")
    yield from pick(rng, rf"\sqrt{{{n * n}}}", str(n), f"{n}.0", f"x = {n}")
    yield from pick(rng, rf"\int_0^{{{n}}} 2x\,dx", str(n * n), f"{n * n}.")


def intervals(rng: Random) -> Draws:
    a, b = sorted(rng.sample(range(-9, 10), 2))
    half = (
        f"[{a},{b})", rf"\left[{a}, {b}\right)", rf"x \in [{a}, {b})", rf"{a} \le x < {b}", rf"{a} \leq x < {b}",
        rf"{a} \leqslant x < {b}", rf"\{{x : {a} \le x < {b}\}}", rf"\{{x \mid {a} \leq x < {b}\}}",
        rf"x \ge {a} \text{{ and }} x < {b}", rf"[{a},\ {b})", rf"{b} > x \ge {a}",
        rf"\left\{{x \in \mathbb{{R}} \mid {a} \le x < {b}\right\}}", rf"\big[{a}, {b}\big)",
    )
    yield from pick(rng, f"[{a}, {b})", *half, num=3)
    opened = (
        rf"x > {a} \text{{ and }} x \le {b}", rf"{a} < x \leq {b}", f"({a},{b}]", rf"x \in ({a},{b}]", rf"{b} \ge x > {a}",
        rf"\left({a}, {b}\right]", f"{a} < x <= {b}",
    )
    yield from pick(rng, f"({a}, {b}]", *opened, num=2)
    below = (
        f"x < {a}", rf"(-\infty,{a})", rf"\left(-\infty, {a}\right)", rf"x \in (-\infty, {a})", f"{a} > x", rf"(-\infty ,\, {a})",
        rf"\{{x \mid x < {a}\}}",
    )
    yield from pick(rng, rf"(-\infty, {a})", *below, num=2)
    above = (
        rf"x \ge {b}", rf"x \geq {b}", rf"[{b}, \infty)", rf"[{b}, +\infty)", rf"\left[{b}, \infty\right)", rf"x \in [{b}, +\infty)",
        f"x >= {b}", rf"{b} \leq x",
    )
    yield from pick(rng, rf"[{b}, \infty)", *above, num=2)
    outside = (
        rf"x < {a} \text{{ or }} x \ge {b}", rf"(-\infty,{a})\cup[{b},\infty)", rf"[{b}, \infty) \cup (-\infty, {a})",
        rf"x \in (-\infty, {a}) \cup [{b}, \infty)", rf"x<{a} \text{{ or }} x\geq {b}",
        rf"\left(-\infty, {a}\right) \cup \left[{b}, +\infty\right)",
    )
    yield from pick(rng, rf"(-\infty, {a}) \cup [{b}, \infty)", *outside, num=2)
    reals = (
        r"\mathbb{R}", r"(-\infty, \infty)", r"(-\infty, +\infty)", r"x \in \mathbb{R}", r"\text{all real numbers}", r"\mathbb R",
        r"-\infty < x < \infty",
    )
    yield from pick(rng, r"(-\infty, \infty)", *reals)
    yield from pick(rng, r"\mathbb{R}", *reals)
    without = (
        rf"\mathbb{{R}} \setminus \{{{a}\}}", rf"(-\infty,{a}) \cup ({a},\infty)", rf"x \neq {a}", rf"x \ne {a}",
        rf"x \in \mathbb{{R}}, x \ne {a}", rf"\mathbb{{R}}\setminus\{{{a}\}}", rf"\{{x \mid x \neq {a}\}}",
        rf"\mathbb{{R}} - \{{{a}\}}",
    )
    yield from pick(rng, rf"(-\infty, {a}) \cup ({a}, \infty)", *without, num=2)
    r = abs(a) + 1
    yield from pick(
        rng, f"[-{r}, {r}]", rf"|x| \le {r}", rf"-{r} \le x \le {r}", rf"|x|\leq {r}", rf"\left|x\right| \le {r}",
        rf"x \in [-{r}, {r}]", num=2,
    )
    yield from pick(rng, f"(-{r}, {r})", rf"|x| < {r}", f"-{r} < x < {r}", rf"x \in (-{r}, {r})", f"(-{r},{r})", num=1)
    yield from pick(
        rng, f"{a} < x < {b}", f"({a}, {b})", rf"x \in ({a}, {b})", f"{b} > x > {a}", rf"x > {a} \text{{ and }} x < {b}", num=1
    )


def solutions(rng: Random) -> Draws:
    """Sets and lists of solutions."""
    a, b, c = sorted(rng.sample(range(-20, 40), 3))
    forms = (
        f"{b}, {a}", f"{a},{b}", rf"{a} \text{{ and }} {b}", f"{a} and {b}", rf"\{{{a}, {b}\}}", rf"\{{{b},{a}\}}", f"x = {a}, x = {b}",
        rf"x = {a} \text{{ or }} x = {b}", f"x_1 = {a}, x_2 = {b}", f"x = {a}, {b}", rf"x={a} \text{{ and }} x={b}", rf"{a},\ {b}",
        rf"{a} \quad \text{{and}} \quad {b}", rf"x \in \{{{a}, {b}\}}", rf"\left\{{{a}, {b}\right\}}", f"{a}; {b}",
        rf"{a}\text{{ or }}{b}", rf"x={a}, \quad x={b}",
    )
    yield from pick(rng, f"{a}, {b}", *forms, num=4)
    yield from pick(rng, rf"\{{{a}, {b}\}}", *forms, num=2)
    three = (
        f"{c}, {a}, {b}", rf"\{{{b}, {c}, {a}\}}", rf"{a}, {b}, \text{{ and }} {c}", f"{a}, {b}, and {c}", f"{a},{b},{c}",
        f"x = {a}, {b}, {c}", rf"\left\{{ {a}, {b}, {c} \right\}}", rf"{a},\, {b},\, {c}", f"{a}, {b} and {c}",
    )
    yield from pick(rng, f"{a}, {b}, {c}", *three, num=2)
    n = rng.choice((2, 3, 5, 7))
    roots = (
        rf"1 + \sqrt{{{n}}}, 1 - \sqrt{{{n}}}", rf"1-\sqrt{{{n}}} \text{{ and }} 1+\sqrt{{{n}}}", rf"x = 1 \pm \sqrt{{{n}}}",
        rf"1\pm\sqrt{{{n}}}", rf"\{{1 - \sqrt{{{n}}}, 1 + \sqrt{{{n}}}\}}", rf"x = 1 + \sqrt{{{n}}} \text{{ or }} x = 1 - \sqrt{{{n}}}",
    )
    yield from pick(rng, rf"1 \pm \sqrt{{{n}}}", *roots, num=2)
    yield from pick(rng, rf"\pm {n}", f"{n}, -{n}", f"-{n}, {n}", rf"x = \pm {n}", rf"{n} \text{{ and }} -{n}", rf"\pm{n}")


def several_boxes(rng: Random) -> Draws:
    """Whole responses with the members of the gold in several boxes, or one answer in two boxes."""
    a, b = sorted(rng.sample(range(-20, 40), 2))
    forms = (
        r"\boxed{A} and \boxed{B}", r"\boxed{A}, \boxed{B}", r"$\boxed{A}$ and $\boxed{B}$", r"x = \boxed{A} or x = \boxed{B}",
        r"\boxed{A} \text{ and } \boxed{B}", r"\boxed{A} or \boxed{B}", r"The solutions are $\boxed{A}$ and $\boxed{B}$.",
        r"$x = \boxed{A}, x = \boxed{B}$", r"\[\boxed{A} \quad \text{and} \quad \boxed{B}\]", r"\boxed{A},\ \boxed{B}",
        r"\boxed{A}; \boxed{B}", r"\boxed{B}, \boxed{A}",
    )
    yield from pick(rng, f"{a}, {b}", *(form.replace("A", str(a)).replace("B", str(b)) for form in forms), num=3)
    same = (
        "\\boxed{A}\nSo \\boxed{A}.", r"We get $\boxed{A}$. Therefore the answer is $\boxed{A}$.", r"\boxed{A} \boxed{A}",
        r"It is \boxed{A}, that is $\boxed{A}$.", r"x = \boxed{A}. Check. \boxed{A}",
    )
    yield from pick(rng, str(a), *(form.replace("{A}", f"{{{a}}}") for form in same), num=1)


def points(rng: Random) -> Draws:
    a, b, c = rng.sample(range(-9, 10), 3)
    pair = (
        f"({a},{b})", rf"\left({a}, {b}\right)", f"( {a} , {b} )", f"(x, y) = ({a}, {b})", f"(x,y)=({a},{b})", f"x = {a}, y = {b}",
        rf"x={a}, \quad y={b}", rf"x = {a} \text{{ and }} y = {b}", rf"\begin{{cases}} x = {a} \\ y = {b} \end{{cases}}",
        rf"\vec v=({a},{b})", rf"({a},\, {b})", rf"\big({a}, {b}\big)", rf"\vec{{v}} = ({a}, {b})", f"P = ({a}, {b})",
        rf"\mathbf{{v}} = ({a}, {b})", f"({a}, {b}).", rf"(x, y) = \left({a}, {b}\right)", f"({a} ,{b})",
    )
    yield from pick(rng, f"({a}, {b})", *pair, num=4)
    triple = (
        f"({a},{b},{c})", rf"\left({a}, {b}, {c}\right)", f"(x, y, z) = ({a}, {b}, {c})", f"x = {a}, y = {b}, z = {c}",
        rf"({a},\, {b},\, {c})", rf"\begin{{cases}} x={a} \\ y={b} \\ z={c} \end{{cases}}", f"(a,b,c)=({a},{b},{c})",
        rf"\vec n = ({a}, {b}, {c})",
    )
    yield from pick(rng, f"({a}, {b}, {c})", *triple, num=2)
    yield from pick(
        rng, f"({a}, {b}), ({b}, {c})", f"({b}, {c}), ({a}, {b})", rf"({a},{b}) \text{{ and }} ({b},{c})",
        rf"\{{({a}, {b}), ({b}, {c})\}}", f"({a},{b}),({b},{c})", rf"({a},{b}) \text{{ or }} ({b},{c})",
    )
    matrix = rf"\begin{{pmatrix}} {a} & {b} \\ {c} & 12 \end{{pmatrix}}"
    yield from pick(
        rng, matrix, matrix.replace(" ", ""), matrix.replace("pmatrix", "bmatrix"), rf"\begin{{pmatrix}}{a}&{b}\\{c}&12\end{{pmatrix}}",
        rf"A = {matrix}", rf"\left[\begin{{array}}{{cc}} {a} & {b} \\ {c} & 12 \end{{array}}\right]",
        rf"\left(\begin{{array}}{{cc}} {a} & {b} \\ {c} & 12 \end{{array}}\right)", matrix.replace(" \\\\ ", " \\\\\n"), num=2,
    )
    column = rf"\begin{{pmatrix}} {a} \\ {b} \\ {c} \end{{pmatrix}}"
    yield from pick(
        rng, column, column.replace("pmatrix", "bmatrix"), rf"\begin{{pmatrix}}{a}\\{b}\\{c}\end{{pmatrix}}", rf"\vec v = {column}",
        rf"\left[\begin{{array}}{{c}} {a} \\ {b} \\ {c} \end{{array}}\right]",
    )


def choices(rng: Random) -> Draws:
    g = rng.choice("ABCDE")
    forms = (
        g, f"({g})", rf"\text{{{g}}}", rf"\text{{({g})}}", rf"\textbf{{({g})}}", f"{g}.", f"{g})", rf"\textbf{{({g})}}\ 17",
        f"({g}) 17", rf"\mathrm{{{g}}}", rf"\textbf{{{g}}}", f"**{g}**", f"{g}) 17", f"Option {g}", rf"\text{{Option {g}}}", f"{g}. 17",
        f"{g}: 17", rf"\mathbf{{{g}}}", rf"\text{{{g}) }} 17", rf"\boxed{{{g}}}",
    )
    yield from pick(rng, g, *forms, num=3)


def words(rng: Random) -> Draws:
    g = rng.choice(("Evelyn", "Carla", "Monday", "parallelogram", "square", "increasing", "ellipse", "hyperbola", "isosceles"))
    forms = (
        g, rf"\text{{{g}}}", f"{g}.", f"**{g}**", rf"\textbf{{{g}}}", rf"\mathrm{{{g}}}", rf"\text{{ {g} }}",
        g.upper() if len(g) > 5 else g, g.capitalize(), rf"\textit{{{g}}}", rf"\mbox{{{g}}}", rf"\boxed{{\text{{{g}}}}}",
    )
    yield from pick(rng, rng.choice((g, rf"\text{{{g}}}")), *forms, num=2)
    y = rng.choice(("yes", "no", "Yes", "No", "true", "False", "odd", "even", "Even"))
    yield from pick(
        rng, y, y, rf"\text{{{y}}}", y.capitalize(), y.lower(), f"{y}.", f"**{y}**", rf"\textbf{{{y}}}", rf"\text{{{y.capitalize()}}}",
        num=2,
    )


def clock_times(rng: Random) -> Draws:
    hour, minute = rng.randint(1, 12), rng.randint(0, 59)
    t = f"{hour}:{minute:02d}"
    yield from pick(
        rng, t, t, f"{hour}{{:}}{minute:02d}", rf"{hour}\!:\!{minute:02d}", rf"\text{{{t}}}", f"{hour} : {minute:02d}",
        rf"{hour}\colon {minute:02d}", num=2,
    )
    half = rng.choice(("p.m.", "a.m.", "PM", "AM"))
    variants = {"p.m.": ("PM", "pm", "p.m."), "PM": ("p.m.", "pm", "PM"), "a.m.": ("AM", "am", "a.m."), "AM": ("a.m.", "am", "AM")}[
        half
    ]
    yield from pick(
        rng, rf"{t} \text{{ {half}}}", *(f"{t} {v}" for v in variants), *(rf"{t}\text{{ {v}}}" for v in variants),
        *(rf"{t} \, \text{{{v}}}" for v in variants), num=2,
    )


def unicode(rng: Random) -> Draws:
    fullwidth = str.maketrans("0123456789", "０１２３４５６７８９")
    n = rng.randint(2, 99)
    yield from pick(
        rng, str(n), str(n).translate(fullwidth), f"{n}\u200b", f"\ufeff{n}", f"\u00a0{n}", f"{n}\u200d", f"\u2009{n}", f"x = {n}",
        f"{n}\u3002", num=2,
    )
    yield from pick(rng, str(-n), f"−{n}", f"x = −{n}", f"－{n}")
    yield from pick(rng, r"\frac{1}{2}", "½", "1⁄2", "0.5")
    yield from pick(rng, rf"\sqrt{{{n}}}", f"√{n}" if n < 10 else rf"√{{{n}}}", rf"√({n})")
    yield from pick(rng, f"x^2 + {n}", f"x² + {n}", f"x²+{n}", f"{n} + x²")
    yield from pick(rng, rf"x \le {n}", f"x ≤ {n}", f"{n} ≥ x", rf"x \leq {n}")
    yield from pick(rng, rf"{n}^\circ", f"{n}°", f"{n} °")
    yield from pick(rng, rf"{n}\pi", f"{n}π", f"{n} π")
    yield from pick(rng, r"\infty", "∞", r"+\infty", r"\infty.")
    yield from pick(rng, rf"[{n}, \infty)", f"[{n}, ∞)", f"[{n}, +∞)", f"x ≥ {n}")
    yield from pick(rng, rf"(-\infty, {n}) \cup ({n + 2}, \infty)", f"(−∞, {n}) ∪ ({n + 2}, ∞)", f"(-∞,{n})∪({n + 2},∞)")


def plain_units(rng: Random) -> Draws:
    """Units without a command, in gold and answer; several units of one kind; powers of ten in
    words."""
    n, k = rng.randint(2, 40), rng.randint(2, 9)
    yield from pick(rng, f"{n} m", f"{n} m", f"{n}00 cm", rf"{n}00\text{{ cm}}", rf"{n}\text{{ m}}", f"{n} meters", f"{n}m",
        f"x = {n} m", num=2)
    yield from pick(rng, f"{5 * n} m/s", f"{18 * n} km/h", f"{5 * n} m/s", rf"{5 * n}\ \text{{m/s}}",
        f"{5 * n} meters per second", str(5 * n))
    yield from pick(rng, f"{n}000 g", f"{n} kg", rf"{n}\,\mathrm{{kg}}", f"{n},000 g" if n > 9 else f"{n}000 g", f"{n} kilograms")
    yield from pick(rng, f"{n} mph", f"{n} miles per hour", f"{n} mi/h", str(n))
    yield from pick(rng, f"{n} degrees Celsius", rf"{n}^\circ C", rf"{n}^\circ\text{{C}}", f"{n}°C", f"{n} degrees Celsius")
    bare = (
        f"{n} m", f"{n} m/s", f"{n} m/s^2", rf"{n}\ km/h", rf"{n}^\circ\text{{C}}", rf"{n}\,\Omega", f"{n} per day",
        rf"\${n} per month",
        f"{n} apples in total", rf"\approx {n}", f"= {n}", rf"{n}\quad\text{{cm}}", rf"\begin{{array}}{{c}}{n}\end{{array}}",
    )
    yield from pick(rng, str(n), *bare, num=3)
    compound = (
        rf"{k}\text{{ hours }}30\text{{ minutes}}", f"{k}h 30min", f"{k} hours and 30 minutes", f"{60 * k + 30} min", f"{k}.5 hours",
    )
    yield from pick(rng, f"{60 * k + 30} minutes", *compound)
    yield from pick(rng, f"{12 * k + 6} inches", f"{k} ft 6 in", rf"{k}\text{{ ft }}6\text{{ in}}", f"{k} feet and 6 inches")
    yield from pick(rng, f"{n}.50", f"{n} dollars and 50 cents", rf"\${n}.50")
    yield from pick(rng, f"{k}500000", rf"{k}.5\text{{ million}}", f"{k}.5 million", rf"{k}.5 \times 10^6")


def sentences(rng: Random) -> Draws:
    """Whole responses whose last sentence states the answer without a marker."""
    forms = (
        "The total is N.", "It is N.", "Thus, x = N.", "The total is $N.", "She has N apples.", "= N", "Answer: $N per day", "Ans: N",
        "Answer: N apples in total", "#### $N per month", "So the total is N dollars.", "There are N apples left.",
        "Therefore, N apples remain.",
        "Therefore, there are N apples.", "So she has N marbles left in the bag.", "The total cost is $N.", "3 + 4 = 7. So it is N.",
        f"{SOLUTION * 6} Therefore, there are N apples.", f"{SOLUTION * 6} Thus, N apples remain.",
        f"{SOLUTION * 6} Hence, the total is N.",
        f"{SOLUTION * 6} Therefore, the number of ways that are left is N.", "It must be N.", "Hence, it equals N.",
        "The number of pairs is N.",
        r"The answer is \boxed{N}, not 3.", r"It is not 3. So it is \boxed{N}.", "Since it is not negative, the answer is N.",
        r"\boxed{N}. No further steps are needed.", "There is no doubt that the answer is N.",
        "It is not hard to see that the answer is N.",
    )
    n = rng.randint(8, 999)
    yield from pick(rng, str(n), *(re.sub(r"\bN\b", str(n), form) for form in forms), num=3)


FAMILIES: dict[str, Callable[[Random], Draws]] = {
    family.__name__.replace("_", " "): family
    for family in (
        wrappers_of_style, integers, thousands, units_in_text, fractions, decimals, scientific, roots_and_constants, expressions,
        gold_operations, intervals, solutions, points, choices, words, clock_times, unicode, plain_units,
    )
}
"""Styles of answers, by name."""
WHOLE: dict[str, Callable[[Random], Draws]] = {family.__name__.replace("_",
    " "): family for family in (responses, several_boxes, sentences)}
"""Styles of whole responses, by name."""
NUM = {"responses": 90, "intervals": 45, "points": 40, "fractions": 40, "wrappers of style": 40, "plain units": 60, "sentences": 60}
"""Rows of the styles with more variants than the others."""


def rows(seed: int = 0) -> list[Row]:
    """Return `NUM` or 30 rows of each style, and 60 of the styles with questions; fewer if one has
    no more."""
    sizes = {name: NUM.get(name, 30) for name in FAMILIES | WHOLE}
    sizes |= dict.fromkeys(asked_honest.ALL, 60)
    families = FAMILIES | asked_honest.FAMILIES
    return draw_rows("honest", families, WHOLE | asked_honest.WHOLE, sizes, seed)
