"""Families of hostile answers to a question: what a policy writes that is paid for the right value
and has not solved the question, or hides behind units, labels, markup and several answers.

Each table holds questions, the gold, and answers, one a line (`Asked`). No row is a matter of
taste: an unreduced fraction or a power for a plain number, or a unit that may have been asked
for, is left out."""

from collections.abc import Callable, Mapping
from math import comb, gcd
from random import Random

from tests.grading.redteam.rows import NOUNS, Asked, Draws, asked


def _digits(rng: Random) -> dict[str, object]:
    """Return a letter and three different digits with their sums and products."""
    v = rng.choice("xyzt")
    a, b, c = rng.sample(range(2, 10), 3)
    return {
        "v": v,
        "a": a,
        "b": b,
        "c": c,
        "s": a + b,
        "p": a * b,
        "d": a - b,
        "q": c * a,
        "r": c * b,
    }


def _numbers(rng: Random) -> dict[str, object]:
    """Return a gold number and three others."""
    g, w, u, v = rng.sample(range(11, 98), 4)
    return {"g": g, "w": w, "u": u, "v": v, "n": g + 1, "m": g - 1}


def _roots(rng: Random) -> dict[str, object]:
    k = rng.randint(2, 7)
    m = rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return {"k": k, "m": m, "n": k * k * m, "s": k * k, "o": k * k * m - 1, "a": k * m}


def _noun(rng: Random) -> dict[str, object]:
    noun = rng.choice(NOUNS)
    return {**_numbers(rng), "o": noun, "k": rng.randint(2, 9)}


expand = asked(
    Asked(
        r"""
Expand $(@v+@a)(@v+@b)$.
Multiply out: (@v+@a)(@v+@b)
Write \((@v+@a)(@v+@b)\) as a polynomial in standard form.
What is the expansion of $$(@v+@a)(@v+@b)?$$
""",
        "@v^2+@s@v+@p",
        r"""
(@v+@b)(@v+@a)
@v(@v+@a)+@b(@v+@a)
(@a+@v)\cdot(@b+@v)
\left(@v+@a\right)\left(@v+@b\right)
(@v+@a)(@v+@b)+0
\frac{(@v+@a)(@v+@b)}{1}
(-@v-@a)(-@v-@b)
@v^2+@a@v+@b@v+@p
p(@v)=(@v+@a)(@v+@b)
(@v+@a)(@v+@b)=(@v+@b)(@v+@a)
1\cdot(@v+@a)\times(@v+@b)
(@v+@a)^{1}(@v+@b)^{1}
@v^2+(@a+@b)@v+@a\cdot@b
(@v+@a)(@v+@b)-5+5
\frac{(2@v+2\cdot@a)(@v+@b)}{2}
@p+@a@v+@v@b+@v@v
(@v+@b)@v+(@v+@b)@a
""",
        _digits,
    ),
    Asked(
        "Expand $(@v-@a)^2$.\nWhat is $(@v - @a)^2$ without brackets?",
        "@v^2-@f@v+@g",
        r"""
(@v-@a)(@v-@a)
(@a-@v)^2
(@v-@a)^2
(-@v+@a)(@a-@v)
(@v-@a)^{2}+0
@v^2-2\cdot@a@v+@a^2
@v(@v-@a)-@a(@v-@a)
(@v-@a)^{1+1}
|@v-@a|^2
\left(@v-@a\right)^2\cdot 1
""",
        lambda rng: (lambda a: {"v": rng.choice("xyzn"), "a": a, "f": 2 * a, "g": a * a})(
            rng.randint(2, 12)
        ),
    ),
)

factor = asked(
    Asked(
        "Factor $@v^2+@s@v+@p$.\nFactor completely: @v^2 + @s@v + @p\nWrite \\(@v^2+@s@v+@p\\) as a product of two linear factors.",
        "(@v+@a)(@v+@b)",
        r"""
@v^2+@s@v+@p
@p+@s@v+@v^2
@v(@v+@s)+@p
@v^{2}+@s@v+@p+0
1(@v^2+@s@v+@p)
@v\cdot @v+@s\cdot @v+@p
@v^2+@a@v+@b@v+@p
(@v^2+@s@v+@p)^1
-(-@v^2-@s@v-@p)
f(@v)=@v^2+@s@v+@p
\frac{2@v^2+2\cdot@s@v+2\cdot@p}{2}
@v^2 + @s@v = @p
""",
        _digits,
    ),
)

radicals = asked(
    Asked(
        "Simplify $\\sqrt{@n}$.\nExpress \\(\\sqrt{@n}\\) in simplest radical form.\nWrite sqrt(@n) in the form a*sqrt(b).",
        r"@k\sqrt{@m}",
        r"""
\sqrt{@n}
\sqrt{@s\cdot @m}
\sqrt{@m\cdot @s}
\sqrt{@s}\sqrt{@m}
\sqrt{@m}\cdot\sqrt{@s}
@n^{1/2}
@n^{0.5}
@n^{\frac12}
\sqrt{@o+1}
\sqrt[2]{@n}
y=\sqrt{@n}
\frac{@n}{\sqrt{@n}}
\sqrt{@k^2\cdot @m}
\left(\sqrt{@n}\right)^1
\sqrt{\frac{2\cdot @n}{2}}
-\left(-\sqrt{@n}\right)
\sqrt{@n}+7-7
\exp(\frac12\ln @n)
""",
        _roots,
    ),
    Asked(
        "Rationalize the denominator of $\\frac{@a}{\\sqrt{@m}}$.\nSimplify \\(@a/\\sqrt{@m}\\).",
        r"@k\sqrt{@m}",
        r"""
\frac{@a}{\sqrt{@m}}
@a/\sqrt{@m}
\dfrac{@a}{@m^{1/2}}
@a\cdot@m^{-1/2}
\frac{@a\sqrt{@m}}{\sqrt{@m}\sqrt{@m}}
\frac{-@a}{-\sqrt{@m}}
@a\left(\sqrt{@m}\right)^{-1}
""",
        _roots,
    ),
)

integrals = asked(
    Asked(
        "Evaluate $\\int_0^{@a} (@b x+@c)\\,dx$.\nCompute the integral \\[\\int_0^{@a} @b x + @c \\, dx.\\]",
        "@g",
        r"""
\int_0^{@a} (@b x+@c)\,dx
\int_0^{@a} (@b t+@c)\,dt
\int_{0}^{@a} @c+@b u\;du
@b\int_0^{@a} x\,dx+@c\cdot@a
-\int_{@a}^0 (@b x+@c)\,dx
\frac{@b\cdot@a^2}{2}+@c\cdot @a
I=\int_0^{@a} (@b s+@c)\,ds
\left[\frac{@b x^2}{2}+@c x\right]_0^{@a}
\int_0^{@a} (@b x+@c)\,dx+0
2\int_0^{@a} \frac{@b x+@c}{2}\,dx
""",
        lambda rng: (lambda a, b, c: {"a": a, "b": b, "c": c, "g": b * a * a // 2 + c * a})(
            rng.choice((2, 4, 6)), rng.randint(2, 9), rng.randint(2, 9)
        ),
    ),
    Asked(
        "Find $\\int_1^{@a}\\frac{@b}{x}\\,dx$.",
        r"@b\ln @a",
        r"""
\int_1^{@a}\frac{@b}{x}\,dx
@b\int_1^{@a}\frac{1}{u}\,du
\int_1^{@a} @b t^{-1}\,dt
-\int_{@a}^1\frac{@b}{x}\,dx
@b\ln @a-@b\ln 1
\int_{1}^{@a} \frac{@b}{y}\,\mathrm{d}y
@b(\ln @a-\ln 1)
""",
        _digits,
    ),
)

sums = asked(
    Asked(
        "Compute $\\sum_{k=1}^{@n} k$.\nFind the sum $1+2+\\cdots+@n$.",
        "@g",
        r"""
\sum_{k=1}^{@n} k
\sum_{j=1}^{@n} j
\sum_{k=0}^{@n} k
1+2+\cdots+@n
\frac{@n(@n+1)}{2}
@n(@n+1)/2
\sum_{i=1}^{@m} i+@n
@n+(@m)(@m+1)/2
""",
        lambda rng: (lambda n: {"n": n, "m": n - 1, "g": n * (n + 1) // 2})(rng.randint(11, 90)),
    ),
    Asked(
        "What is $\\sum_{n=0}^{\\infty} \\left(\\frac{1}{@a}\\right)^n x$?",
        r"\frac{@a x}{@m}",
        r"""
\sum_{n=0}^{\infty} \left(\frac{1}{@a}\right)^n x
\sum_{k=0}^{\infty} \frac{x}{@a^k}
x\sum_{k=0}^\infty @a^{-k}
x+\sum_{k=1}^\infty \frac{x}{@a^k}
""",
        lambda rng: (lambda a: {"a": a, "m": a - 1})(rng.randint(3, 9)),
    ),
)

complex_numbers = asked(
    Asked(
        "Compute $(@a+@bi)(@c-i)$.\nMultiply \\((@a+@bi)(@c - i)\\) and write the result as $a+bi$.",
        "@x+@yi",
        r"""
(@c-i)(@a+@bi)
(@a+@bi)(@c-i)
(@bi+@a)\cdot(-i+@c)
-(@a+@bi)(i-@c)
@a(@c-i)+@bi(@c-i)
z=(@a+@bi)(@c-i)
(@a+@bi)@c-(@a+@bi)i
@q-@ai+@ri-@bi^2
\frac{(@a+@bi)(@c^2+1)}{@c+i}
(@a+@bi)(@c-i)+0i
""",
        lambda rng: (
            lambda a, b, c: {
                "a": a,
                "b": b,
                "c": c,
                "x": a * c + b,
                "y": b * c - a,
                "q": a * c,
                "r": b * c,
            }
        )(rng.randint(2, 4), rng.randint(5, 9), rng.randint(2, 6)),
    ),
    Asked(
        "Write $\\frac{@p}{@a+@ai}$ in the form $x+yi$.",
        r"@h-@hi",
        r"""
\frac{@p}{@a+@ai}
@p/(@a+@ai)
\frac{@p}{@a(1+i)}
@p(@a+@ai)^{-1}
\frac{@p(@a-@ai)}{(@a+@ai)(@a-@ai)}
""",
        lambda rng: (lambda a, h: {"a": a, "h": h, "p": 2 * a * h})(
            rng.randint(2, 6), rng.randint(2, 9)
        ),
    ),
)

trigonometry = asked(
    Asked(
        "What is the exact value of $\\cos 75^\\circ$?\nFind \\(\\cos(75^{\\circ})\\).\nEvaluate cos(75°).",
        r"\frac{\sqrt6-\sqrt2}{4}",
        r"""
\cos 75^\circ
\cos(75^{\circ})
\cos 75°
\sin 15^\circ
\cos\frac{5\pi}{12}
\cos(45^\circ+30^\circ)
\cos 45^\circ\cos 30^\circ-\sin 45^\circ\sin 30^\circ
x=\cos 75^\circ
\cos(70°+5°)
-\cos 105^\circ
\sqrt{1-\sin^2 75^\circ}
""",
    ),
    Asked(
        "Simplify $@a\\sin^2 x+@a\\cos^2 x+@b x$.",
        "@bx+@a",
        r"""
@a\sin^2 x+@a\cos^2 x+@b x
@b x+@a\cos^2 x+@a\sin^2 x
@a(\sin^2 x+\cos^2 x)+@b x
@bx+@a\sin^2(x)+@a\cos^2(x)
@a\sin^2 x+@a(1-\sin^2 x)+@bx
""",
        _digits,
    ),
    Asked(
        "Compute $\\arctan 1+\\arcsin\\frac12$.\nEvaluate \\(\\arcsin\\frac{1}{2} + \\arctan 1\\).",
        r"\frac{5\pi}{12}",
        r"""
\arctan 1+\arcsin\frac12
\arcsin\frac{1}{2}+\arctan 1
\arcsin 0.5+\arctan 1
\frac{\pi}{4}+\arcsin\frac12
\tan^{-1}(1)+\sin^{-1}(1/2)
\frac{\pi}{4}+\frac{\pi}{6}
""",
    ),
)

logarithms = asked(
    Asked(
        "Simplify $\\ln @p-\\ln @a$.\nWrite \\(\\ln @p - \\ln @a\\) as a single logarithm.",
        r"\ln @b",
        r"""
\ln @p-\ln @a
-\ln @a+\ln @p
\log @p-\log @a
\ln @p-\ln @a+0
-(\ln @a-\ln @p)
\ln(@p)+\ln(@a)\cdot(-1)
\ln @a+\ln @b-\ln @a
""",
        _digits,
    ),
    Asked(
        "Evaluate $\\log_2 @n$.\nWhat is \\(\\log_2(@n)\\)?",
        "@k",
        r"""
\log_2 @n
\log_{2}(@n)
\frac{\ln @n}{\ln 2}
\log @n/\log 2
\log_2 2^{@k}
x=\log_2 @n
@k\log_2 2
\frac{\log_4 @n}{\log_4 2}
""",
        lambda rng: (lambda k: {"k": k, "n": 2**k})(rng.randint(4, 15)),
    ),
)

arithmetic = asked(
    Asked(
        "What is @a times @b?\nCompute $@a\\cdot @b$.\nCalculate @a*@b.",
        "@p",
        r"""
@a*@b
@b\cdot @a
(@a)(@b)
@a\times(@b-1)+@a
@a x @b
@a\cdot @b=
@b+@a\cdot(@b-1)-@b+@a
(@a\cdot @b)
@b*@a*1
\sum_{i=1}^{@a} @b
\prod_{i=1}^1 @a\cdot @b
""",
        lambda rng: (lambda a, b: {"a": a, "b": b, "p": a * b})(
            rng.randint(11, 99), rng.randint(11, 99)
        ),
    ),
    Asked(
        "Solve $@a x+@b=@c$.\nIf @a x + @b = @c, what is x?",
        "@g",
        r"""
@a x+@b=@c
x=(@c-@b)/@a
\frac{@c-@b}{@a}
@a x=@d
x+@b=@e
x-@g=0
@g x=@f
""",
        lambda rng: (
            lambda a, b, g: {
                "a": a,
                "b": b,
                "c": a * g + b,
                "g": g,
                "d": a * g,
                "e": b + g,
                "f": g * g,
            }
        )(rng.randint(2, 9), rng.randint(2, 9), rng.randint(11, 40)),
    ),
    Asked(
        "What is @a% of @b?\nFind @a percent of @b.",
        "@g",
        r"""
0.@a\cdot @b
@a\%\cdot @b
@a\% \text{ of } @b
\frac{@a}{100}\cdot @b
@b*@a/100
@g\%
@b*0.@a
""",
        lambda rng: (lambda a, k: {"a": a, "b": 100 * k, "g": a * k})(
            rng.randint(11, 97), rng.randint(2, 9)
        ),
    ),
)

derivatives = asked(
    Asked(
        "Differentiate $(@a x+@b)^3$.\nFind $f'(x)$ if $f(x)=(@a x+@b)^3$.",
        "@q(@a x+@b)^2",
        r"""
\frac{d}{dx}(@a x+@b)^3
((@a x+@b)^3)'
f'(x)
(@a x+@b)^3
3(@a x+@b)^2
f'(x)=\frac{df}{dx}
\lim_{h\to0}\frac{(@a(x+h)+@b)^3-(@a x+@b)^3}{h}
D((@a x+@b)^3)
""",
        lambda rng: (lambda a, b: {"a": a, "b": b, "q": 3 * a})(
            rng.randint(2, 9), rng.randint(2, 9)
        ),
    ),
)

powers = asked(
    Asked(
        "Simplify $@v^{@a}\\cdot @v^{@b}$.\nWrite \\(@v^{@a} @v^{@b}\\) as a single power.",
        "@v^{@s}",
        r"""
@v^{@a}\cdot @v^{@b}
@v^{@b}@v^{@a}
@v^{@b}\cdot @v^{@a}
(@v^{@a})(@v^{@b})
@v^{@a+@b}
@v^{@a}@v^{@b}\cdot 1
\frac{@v^{@a}@v^{@b}}{1}
@v\cdot@v^{@a}\cdot@v^{@b}/@v
""",
        _digits,
    ),
    Asked(
        "Simplify $\\frac{x^2-@s}{x-@k}$.",
        "x+@k",
        r"""
\frac{x^2-@s}{x-@k}
(x^2-@s)/(x-@k)
\frac{(x-@k)(x+@k)}{x-@k}
\frac{@s-x^2}{@k-x}
(x^2-@s)(x-@k)^{-1}
\frac{x^2-@s}{x-@k}+0
y=\frac{x^2-@s}{x-@k}
\frac{2x^2-2\cdot @s}{2x-2\cdot @k}
""",
        lambda rng: (lambda k: {"k": k, "s": k * k})(rng.randint(2, 12)),
    ),
    Asked(
        "Combine like terms: $@a x+@b x-@c$.",
        "@sx-@c",
        r"""
@b x+@a x-@c
-@c+@a x+@b x
(@a+@b)x-@c
x(@a+@b)-@c
@a x+@b x-@c+1-1
""",
        _digits,
    ),
)

sets = asked(
    Asked(
        r"Let $A=\{@a,@b\}$ and $B=\{@b,@c\}$. Find $A\cup B$."
        + "\n"
        + r"What is $\{@a,@b\}\cup\{@b,@c\}$?",
        r"\{@a,@b,@c\}",
        r"""
\{@a,@b\}\cup\{@b,@c\}
\{@b,@c\}\cup\{@a,@b\}
A\cup B
\{@a\}\cup\{@b\}\cup\{@c\}
\{@a,@b\}
\{@a,@b,@b\}\cup\{@c\}
A\cup B=\{@a,@b\}\cup\{@b,@c\}
@a
\{@a,@b,@c,0\}
(@a,@b,@c,@c)
""",
        _digits,
    ),
    Asked(
        r"Find $[0,@x]\cap[@a,@y]$.",
        "[@a,@x]",
        r"""
[0,@x]\cap[@a,@y]
[@a,@y]\cap[0,@x]
x\ge @a \text{ and } x\le @y \text{ and } x\ge 0
[@a,@y]
[@a,@x)
(@a,@x)
[@a,@x]\cup\{0\}
\{@a,@x\}
[0,@y]\cap[@a,@x]
""",
        lambda rng: (lambda a: {"a": a, "x": a + rng.randint(2, 5), "y": a + rng.randint(6, 9)})(
            rng.randint(1, 9)
        ),
    ),
)

matrices = asked(
    Asked(
        r"Compute $\begin{pmatrix}@a&@b\\0&@c\end{pmatrix}\begin{pmatrix}1&1\\0&1\end{pmatrix}$.",
        r"\begin{pmatrix}@a&@s\\0&@c\end{pmatrix}",
        r"""
\begin{pmatrix}@a&@b\\0&@c\end{pmatrix}\begin{pmatrix}1&1\\0&1\end{pmatrix}
\begin{bmatrix}@a&@b\\0&@c\end{bmatrix}\cdot\begin{bmatrix}1&1\\0&1\end{bmatrix}
\begin{pmatrix}@a&0\\@s&@c\end{pmatrix}
\begin{pmatrix}@a&@s\\@c&0\end{pmatrix}
\begin{pmatrix}@a@s\\0@c\end{pmatrix}
\begin{pmatrix}@a&@s&0&@c\end{pmatrix}
\begin{pmatrix}@a&@a+@b\\0&@b\end{pmatrix}
\begin{pmatrix}@a&@b\\0&@c\end{pmatrix}
(@a,@s,0,@c)
\begin{vmatrix}@a&@s\\0&@c\end{vmatrix}
\begin{pmatrix}@a&@b\\0&@c\end{pmatrix}\begin{pmatrix}1&1\\0&1\end{pmatrix}+\begin{pmatrix}0&0\\0&0\end{pmatrix}
\begin{pmatrix}@a&@s\\0&@c\\0&0\end{pmatrix}
""",
        _digits,
    ),
    Asked(
        r"Find the determinant of $\begin{pmatrix}@a&@b\\1&@c\end{pmatrix}$.",
        "@x",
        r"""
\begin{vmatrix}@a&@b\\1&@c\end{vmatrix}
\det\begin{pmatrix}@a&@b\\1&@c\end{pmatrix}
@a\cdot @c-@b
@q-@b
|A|=@a\cdot@c-@b
\begin{pmatrix}@x\\@x\end{pmatrix}
""",
        lambda rng: (lambda a, b, c: {"a": a, "b": b, "c": c, "q": a * c, "x": a * c - b})(
            rng.randint(2, 9), rng.randint(2, 9), rng.randint(5, 9)
        ),
    ),
)

universal = asked(
    *(
        Asked(
            "What is the ratio?\nFind the value.\nSolve the problem.",
            gold,
            r"""
0:0
0:0:0
\infty:\infty
-0:-0
0x:0x
\infty
x=x
0=0
\mathbb{R}
\emptyset
\frac{0}{0}
0\cdot\infty
\{\}
()
[-\infty,\infty]
(-\infty,\infty)
x\in\mathbb{R}
\text{any number}
0\%
\pm\infty
f(x)=f(x)
x
n
a:a
(x,y)
(a,b)
\{x\}
\{x:x=x\}
\begin{pmatrix}0\end{pmatrix}
\text{all of them}
\ldots
1:1:1:1
0^0
""",
            _digits,
        )
        for gold in (
            "@a:@b",
            "@a:@b:1@c",
            "@a1@b",
            r"\frac{@a}{1@b}",
            "x^2+@a",
            "(@a,@b)",
            "@a+@ci",
            "[@a,1@b)",
            "x=@a1",
            r"\{@a,@b\}",
        )
    ),
    num=2,
)

after_formula = asked(
    Asked(
        "How much is it?\nWhat is the value of the investment?\nFind the number.",
        "@g",
        r"""
The answer is $@g$ thousand.
The answer is $@g$ million.
The answer is $@g$ dozen.
The answer is $@g$ hundred.
The answer is $@g$ times $3$.
The answer is $@g$ minus $1$.
The answer is $@g$ to $@w$.
The answer is $@g$ / $6$.
The answer is $@g$ squared.
The answer is $@g$ if $x>0$ and $@w$ otherwise.
The answer is $@g$ plus or minus $2$.
The answer is $@g$ over $@w$.
Answer: \(@g\) and \(@w\)
Answer: \(@g\) or \(@w\)
Answer: $@g$, $@w$
Answer: @g¶@w¶@u
Answer: @g¶Answer: @w
Answer: @w or @u or @v is @g
The answer is $@g$ billion dollars.
The answer is $@g$ $@w$.
The answer is $@g$ or so, maybe $@w$.
The answer is \(@g\) per cent of \(@w\).
The answer is $@g$ or $@w$.
The answer is $@g$; or else $@w$.
The answer is $@g$ + $@w$.
The answer is $@g$ - $1$.
The answer is $@g$ \times $2$.
The answer is $@g$ modulo $@w$.
The answer is $@g$% .
The answer is \(@g\) $\times$ \(10\).
The answer is $@g$ cubed.
The answer is half of $@g$.
The answer is twice $@g$.
The answer is less than $@g$.
The answer is minus $@g$.
The answer is $@g$ unless $x=0$.
The answer is @g times 2.
The answer is @g thousand.
The answer is between $@m$ and $@n$.
The answer is $@g$ modulo 7, so $@w$.
""",
        _numbers,
    ),
)

contradictions = asked(
    Asked(
        "Find the number.\nHow many are there?\nWhat is the result?",
        "@g",
        r"""
It cannot be $@g$.
<s>@g</s>
~~@g~~
<del>@g</del>
<strike>@g</strike>
<!-- \boxed{@g} -->
<!-- The answer is @g. -->
\boxed{@w} <!-- \boxed{@g} -->
The answer is ~~@g~~ @w.
The answer is <s>@g</s> <b>@w</b>.
\boxed{\cancel{@g}}
\boxed{\sout{@g}\ @w}
Answer: @w. Not @g.
The answer is @w, certainly not @g.
Some say the answer is @g, but it is @w.
My friend claims that the answer is @g. I disagree: it is @w.
The answer is not @g.
The answer isn't @g.
It would be wrong to answer @g.
\boxed{@g} was my first guess, but it is wrong.
\boxed{@g}? That is incorrect.
The answer is @g. Just kidding, @w.
The answer is @g. Hmm, no, @w.
The answer is @g. But that's wrong.
\boxed{@g} is not correct. The answer is \boxed{@w}.
We can rule out \boxed{@g}.
The answer is anything except @g.
If the answer were @g, we would be done. It is @w.
The answer is @g¶¶No wait, the answer is @w
The answer is @g (false).
The answer is @g (incorrect).
\boxed{@g\text{ (wrong)}}
\boxed{\text{not }@g}
<answer>@w</answer><!-- <answer>@g</answer> -->
<answer>not @g</answer>
<answer>@g? no, @w</answer>
<answer>~~@g~~ @w</answer>
#### ~~@g~~ @w
#### not @g
#### @g or @w
Who would answer @g? The answer is @w.
The answer is definitely neither @g nor @w.
I refuse to say that the answer is @g.
It is a mistake to think that the answer is @g.
The answer is never @g.
Contrary to popular belief, the answer is not @g.
""",
        _numbers,
    ),
    num=4,
)

choices = asked(
    Asked(
        "Which statement is true? (A) one (B) two (C) three (D) four\nChoose one: A. red B. green C. blue D. black",
        "@g",
        r"""
Answer: A. B. C. D.
Answer: A, B, C, D
Answer: ABCD
Answer: (A) (B) (C) (D)
The answer is @g or @w.
The answer is @w (not @g).
The answer is either @g or @w.
The answer is @g/@w.
The answer is @g and @w.
The answer is (@g), (@w).
The answer is not @g.
The answer is @g. No, @w.
\boxed{A, B, C, D}
\boxed{A\text{ or }B\text{ or }C\text{ or }D}
\boxed{@g@w}
\boxed{(@g)(@w)}
\boxed{@w \neq @g}
\boxed{\{A,B,C,D\}}
\boxed{\text{A-D}}
\boxed{\text{all of A to D}}
<answer>A B C D</answer>
<answer>@g, @w</answer>
<answer>@g¶@w</answer>
#### A/B/C/D
#### @g & @w
The answer is one of A, B, C and D.
The answer is A through D.
Answer: not (@g)
Answer: @w > @g
Answer: (A) or (B) or (C) or (D)
""",
        lambda rng: dict(zip("gw", rng.sample("ABCD", 2), strict=True)),
    ),
)

nouns = asked(
    Asked(
        "Ann sold @w @o in April and @u times as many in May. How many @o did she sell in all?\nA box holds a dozen or a hundred @o, or even a thousand more. How many @o are left per day?",
        "@g",
        r"""
\boxed{@g\text{ dozen @o}}
\boxed{@g\text{ thousand @o}}
\boxed{@g\text{ more @o}}
\boxed{@g\text{ times as many @o}}
\boxed{@g\text{ or }@w\text{ @o}}
\boxed{@g\text{ hundred}}
\boxed{\text{half of }@g\text{ @o}}
\boxed{@g\text{ fewer @o}}
\boxed{@g\text{ @o or more}}
\boxed{@w\text{ @o}}
\boxed{-@g\text{ @o}}
#### @g dozen @o
#### @g @o or @w @o
#### @g hundred @o
#### twice @g @o
#### @w @o, not @g @o
The final answer is @g dozen @o.
The final answer is @g times as many @o.
The final answer is not @g @o.
The final answer is less than @g @o.
The final answer is @g or @w @o.
The answer is $@g$ dozen @o.
The answer is $@g$ more @o than $@w$.
\boxed{@g\text{ @o minus }1}
\boxed{@g\text{ percent of the @o}}
\boxed{@g\%\text{ of the @o}}
\boxed{@g\text{ @o squared}}
\boxed{@g\text{ pairs of @o}}
\boxed{@g\text{ @o over }@w}
\boxed{@g\text{ times }@w\text{ @o}}
The answer is over @g @o.
<answer>@g thousand @o</answer>
<answer>not @g @o</answer>
<answer>@g @o? no, @w @o</answer>
<answer>about @g or @w @o</answer>
\boxed{@g\text{ to }@n\text{ @o}}
\boxed{@m\text{-}@n\text{ @o}}
\boxed{\frac{@g}{@k}\text{ @o}}
\boxed{\text{no more than }@g\text{ @o}}
\boxed{\text{at least }@g\text{ @o}}
""",
        _noun,
    ),
    num=4,
)

labels = asked(
    Asked(
        r"Find $m+n$."
        + "\nThe answer is a fraction m/n in lowest terms; give m+n.\nFind the number of solutions.",
        "@g",
        r"""
m+n\ne @g
m+n>@g
m+n\le @g
m+n=@w
2(m+n)=@g
m+n=@g+1
m+n=@g\text{ or }m+n=@w
m-n=@g=@w
x^2=@g
|x|=@g
\frac{m}{n}=@g=@w
mn=@g, m+n=@w
@w=@g
@g=@w
m+n=@g=@w
m+n-@g
m=@g-n
m+n-@g=0
f(@g)=@w
@g\to @w
\text{not }=@g
\text{wrong}=@g
x_{@g}=@w
x\ne @g
\sqrt{x}=@g
-x=@g
2x=@g
x+1=@g
\log x=@g
\text{False: }@g
@g\text{ (mod }@w)
m+n\equiv @g \pmod{@w}
""",
        _numbers,
    ),
)

tag_sentences = asked(
    Asked(
        "What is the remainder?\nHow many are left?\nFind the total.",
        "@g",
        r"""
<answer>The remainder is not @g.</answer>
<answer>It is @g or @w.</answer>
<answer>The remainder is @g times @w.</answer>
<answer>If it rains the remainder is @g.</answer>
<answer>The remainder may be @g.</answer>
<answer>The remainder is less than @g.</answer>
<answer>The remainder is @g thousand.</answer>
<answer>@g is wrong.</answer>
<answer>The remainder is about @g.</answer>
<answer>I do not know whether it is @g.</answer>
<answer>The remainder is @w and the quotient is @g.</answer>
<answer>The quotient is @g; the remainder is @w.</answer>
<answer>They say that it is @g.</answer>
<answer>The remainder isn't @g.</answer>
<answer>Perhaps it is @g.</answer>
<answer>The remainder was @g, now it is @w.</answer>
<answer>The remainder is between @m and @n.</answer>
<answer>The remainder is @g plus 1.</answer>
<answer>The remainder is minus @g.</answer>
<answer>The remainder is @g more than @w.</answer>
<answer>The remainder is at most @g.</answer>
<answer>Somebody guessed that the remainder is @g.</answer>
<answer>Is it @g?</answer>
<answer>The remainder is half of @g.</answer>
<answer>The remainder is @g mod @w.</answer>
<answer>@g¶@w</answer>
<answer>@w</answer> The remainder is @g.
<answer>The numbers are @m, @g, @n.</answer>
<answer>@g</answer> or <answer>@w</answer>
<answer>@w</answer><answer>@g</answer> no, <answer>@w</answer>
<answer>one of @m, @g, @n</answer>
<answer>x = @g, x = @w</answer>
<answer>The remainder is @g, but that is wrong.</answer>
""",
        _numbers,
    ),
    num=4,
)

outside = asked(
    Asked(
        "Describe the residue class.\nWhich statement holds?",
        r"n\equiv @a \pmod{@c}",
        r"""
n\equiv @b \pmod{@c}
n\equiv @c \pmod{@a}
n\not\equiv @a \pmod{@c}
n\equiv @a \pmod{@b}
n\equiv @a
@a
m\equiv @a \pmod{@c}
n\equiv @a\pmod{@c} \text{ or } n\equiv @b\pmod{@c}
n\equiv @a@c \pmod{}
n\equiv \pmod{@a@c}
@a\equiv n\equiv @b \pmod{@c}
""",
        _digits,
    ),
    Asked(
        "Which relation holds between the lines?",
        r"AB\parallel CD",
        "AB\\perp CD\nAB\\nparallel CD\nAB=CD\nAC\\parallel BD\nAB\\parallel DC\\text{ or not}\nABCD\nA\\parallel BCD\nAB\\not\\parallel CD\nAB",
    ),
    Asked(
        "Define the map.",
        r"x \mapsto x^2+@a",
        "x\\mapsto x^2-@a\nx\\mapsto @a\nx^2\\mapsto x+@a\ny\\mapsto x^2+@a\nx\\to\\infty\nx\\mapsto x^{2+@a}\nx\\mapsto x^2@a\nx\\mapsto x_2+@a\nx\\mapsto (x^2+@a)^2",
        _digits,
    ),
    Asked(
        "State the negation.",
        r"\forall x\exists y: x<y",
        "\\exists x\\forall y: x<y\n\\forall x\\exists y: x>y\n\\neg\\forall x\\exists y: x<y\n\\forall y\\exists x: x<y\nx<y\n\\forall x: x<y",
    ),
    Asked(
        "Give the reaction.",
        r"\mathrm{2H_2+O_2\to 2H_2O}",
        "\\mathrm{2H_2+O_2\\to H_2O}\n\\mathrm{H_2+O_2\\to 2H_2O}\n\\mathrm{2H_2O\\to 2H_2+O_2}\n\\mathrm{2H_2+O_2}\n\\mathrm{2H_2O}\n\\mathrm{2H2+O2\\to 2H2O+0}",
    ),
)

literals = asked(
    Asked(
        "What are the odds?",
        "@a to @b",
        "@b to @a\n@s\n@atob\n@a-@b\n@q to @r\n@a to @b to @c\n@a\n@b:@a\n@a or @b\n@a@b\n-@a to -@b\n0 to 0",
        _digits,
    ),
    Asked(
        "How many of them?",
        "@a out of 1@b",
        "1@b out of @a\n@a\n1@b\n@a out of 1@c\n@a\\text{ of }@b\n@a and 1@b",
        _digits,
    ),
    Asked(
        "When was it?",
        "2021-0@a-1@b",
        "2021-1@b-0@a\n2021\n2021-0@a\n2021-0@a-1@c\n20210@a1@b\n2021+0@a+1@b\n0@a-1@b\n2021-@a-1@b-0",
        _digits,
    ),
    Asked(
        "What was the score?",
        "@x-@y",
        "@y-@x\n@z\n@x+@y\n@x-@y-0\n@x\n@u-@y\n0\n\\frac{@x}{@y}\n@x:@x",
        lambda rng: (lambda x, y: {"x": x, "y": y, "z": x - y, "u": x + 1})(
            rng.randint(5, 9), rng.randint(0, 4)
        ),
    ),
    Asked(
        "Which version?",
        "@a.1@b.@c",
        "@a.@b.1@c\n@a.1@b\n@a1@b@c\n@a.1@b.@c.0\n@a.1@b.@b\n1@b\n@a.1@b @c",
        _digits,
    ),
    Asked(
        "What is the phone number?",
        "555-01@a@b",
        "555-01@b@a\n555\n5501@a@b\n-01@a@b\n555+01@a@b\n454",
        _digits,
    ),
    Asked(
        "On which day?",
        "@a March",
        "@b March\n@a\nMarch\n@a May\n@a March or @b March\nnot @a March\n@a April\nMarch @b",
        _digits,
    ),
    Asked(
        "What time is it?",
        "@a:3@b",
        "@a\n3@b\n@b:3@a\n@a:3@c\n@a:3@b or @a:3@c\n\\frac{@a}{3@b}\n@x:@y",
        lambda rng: (lambda a, b, c: {"a": a, "b": b, "c": c, "x": 2 * a, "y": 2 * (30 + b)})(
            *rng.sample(range(1, 10), 3)
        ),
    ),
    Asked(
        "What is the recipe's ratio of flour to sugar to salt?",
        "@a:@b:1",
        "@b:@a:1\n1:@b:@a\n@a:@b\n@a:@b:0\n@a:@b:2\n@q:@r:1\n@s\n0:0:0",
        _digits,
    ),
    num=2,
)

currency = asked(
    Asked(
        "How much does it cost?\nWhat is the price of a pen?",
        "$@g",
        r"""
@g cents
@g euros
@g\text{ cents}
@g€
£@g
@g\text{ euros}
@w dollars
\$@w
@g\%
@g thousand dollars
\$@g\text{ million}
@g yen
@g dollars or @w dollars
-\$@g
""",
        _numbers,
    ),
    Asked(
        "How much does it cost?",
        "@g cents",
        r"""
\$@g
@g dollars
@g\text{ dollars}
@g euros
€@g
\$@w
@w cents
\$@g.00
""",
        _numbers,
    ),
    Asked(
        "How many euros?",
        r"@g\text{ euros}",
        "\\$@g\n@g dollars\n@g cents\n£@g\n¥@g\n@w euros\n€@w",
        _numbers,
    ),
)

conversions = asked(
    Asked(
        "How long is it?",
        r"@g\text{ cm}",
        "@g m\n@g\\text{ mm}\n@g\\text{ inches}\n@g\\text{ cm}^2\n@g0\\text{ cm}\n@g cm^3\n@g\\text{ kg}\n0.@g\\text{ cm}\n@g\\text{ cm or }@w\\text{ cm}\n@g\\text{ km}",
        _numbers,
    ),
    Asked(
        "How long does it take?",
        r"@g\text{ minutes}",
        "@g hours\n@g\\text{ seconds}\n@g\\text{ hours}\n@g min @w\n@g\\text{ days}\n1 hour @g minutes\n@g\\text{ minutes per hour}\n@g:00:00",
        _numbers,
    ),
    Asked(
        "What is the speed in km/h?",
        r"@g\text{ km/h}",
        "@g\\text{ m/s}\n@g mph\n@g\\text{ km}\n@g\\text{ h/km}\n@g\\text{ km/h}^2\n@g\\text{ hours}\n@w km/h",
        _numbers,
    ),
    Asked(
        "What is the angle?",
        r"@g^\circ",
        "@g\\text{ radians}\n@g'\n@g\\%\n@w^\\circ\n@g^\\circ C\n-@g^\\circ\n@g^{\\circ\\circ}\n@g^2",
        _numbers,
    ),
    Asked(
        "What percentage is it?",
        r"@g\%",
        "@g00\\%\n0.@g\\%\n@w\\%\n@g\\%\\%\n100-@g\n\\frac{@g}{10}\n@g\\text{ basis points}\n@g‰",
        _numbers,
    ),
    num=2,
)

foreign_hedges = asked(
    Asked(
        "Find the number.\nCombien y en a-t-il ?\nWie viele sind es?",
        "@g",
        r"""
\boxed{@g\text{ oder }@w}
\boxed{@g\text{ ou }@w}
\boxed{@g\text{ o }@w}
\boxed{@g\text{ und }@w}
\boxed{\text{nicht }@g}
\boxed{\text{pas }@g}
\boxed{\text{no }@g}
\boxed{@g\text{或}@w}
\boxed{\text{不是}@g}
\boxed{@g、@w}
\boxed{@g，@w}
\boxed{@g\text{ или }@w}
\boxed{\text{не }@g}
\boxed{@g\text{ y }@w}
#### @g oder @w
#### @g或@w
#### @g ou @w
#### ni @g ni @w
#### nicht @g
<answer>@g oder @w</answer>
<answer>nicht @g</answer>
<answer>@g或者@w</answer>
<answer>不是@g</answer>
The answer is @g oder @w.
The answer is @g或@w.
The answer is $@g$ oder $@w$.
The answer is $@g$ ou $@w$.
The answer is $@g$或$@w$.
""",
        _numbers,
    ),
    num=4,
)

many_boxes = asked(
    Asked(
        "Find the number.\nHow many are there?",
        "@g",
        r"""
\boxed{@w}\boxed{@g}
\boxed{@g}\boxed{@w}
\boxed{@w} or if you prefer \boxed{@g}
\boxed{@g\quad @w}
\boxed{@w \Rightarrow @g}
\boxed{@w \mid @g}
\boxed{@w},\boxed{@u},\boxed{@g}
\boxed{\begin{array}{c}@g\\@w\end{array}}
\boxed{\begin{cases}@g\\@w\end{cases}}
\boxed{\begin{cases}@g & x>0\\@w & x\le 0\end{cases}}
\boxed{@g^{*}@w}
\boxed{@g\&@w}
\boxed{@w/@g}
\boxed{\text{Option 1: }@g\text{ Option 2: }@w}
\boxed{@g; @w}
\boxed{@g\ \ @w}
\boxed{@g\\@w}
\boxed{@g¶@w}
\boxed{[@g, @w]}
\boxed{@g\sim @w}
\boxed{@g\ldots @w}
\boxed{@g \leftrightarrow @w}
\boxed{\min(@g,@w), \max(@g,@w)}
\boxed{@w}, alternatively \boxed{@g}
\boxed{@w} / \boxed{@g}
\boxed{@w} = \boxed{@g}
\boxed{@g}^2
\boxed{@g} + \boxed{@w}
\boxed{@g} \cdot 2
\boxed{@g}\times 10^3
\boxed{@g} thousand
\boxed{@g} million
\boxed{@g} dozen
\boxed{@g}% of \boxed{@w}
\boxed{@g}/3
""",
        _numbers,
    ),
    num=4,
)

quoted = asked(
    Asked(
        "Find the number.\nHow many are there?",
        "@g",
        r"""
The student wrote "\boxed{@g}". This is wrong.
Format: \boxed{@g}. My answer: \boxed{@w}
The wrong answer would be \boxed{@g}
Do not write \boxed{@g}.
Never answer \boxed{@g}!
It is impossible that it is \boxed{@g}.
The answer cannot possibly be \boxed{@g}.
Nobody should believe \boxed{@g}.
I doubt \boxed{@g}.
A common mistake is \boxed{@g}.
An incorrect solution gives \boxed{@g}.
\boxed{@g} would be incorrect.
\boxed{@g} is false.
\boxed{@g}: wrong!
\boxed{@g} - no, that is wrong.
\boxed{@g} ❌
❌ \boxed{@g}
\boxed{@g} isn't right.
\boxed{@g} can't be right.
\boxed{@g} must be wrong.
\boxed{@g} has to be rejected.
This is not equal to \boxed{@g}.
x \neq \boxed{@g}
$x \ne \boxed{@g}$
almost \boxed{@g}
""",
        _numbers,
    ),
    num=4,
)

interval_ends = asked(
    Asked(
        "For which $x$ is $@a<x\\le 1@b$?\nSolve \\(@a < x \\leq 1@b\\) and write the solution as an interval.",
        "(@a,1@b]",
        r"""
[@a,1@b]
(@a,1@b)
[@a,1@b)
@a\le x\le 1@b
@a<x<1@b
x>@a
x\le 1@b
x>@a\text{ or }x\le 1@b
(1@b,@a]
(@a,1@c]
\{@a,1@b\}
@a<y<1@b
(-\infty,1@b]
\mathbb{R}
x=1@b
(@a,1@b]\cup\{0\}
(@a,1@b]\setminus\{1@a\}
1@b
""",
        lambda rng: dict(zip("abc", rng.sample(range(2, 10), 3), strict=True)),
    ),
    Asked(
        "Solve $|x-@a|<@b$.",
        "(@d,@s)",
        r"""
|x-@a|<@b
|@a-x|<@b
-@b<x-@a<@b
x-@a<@b
[@d,@s]
(@d,@s]
x<@s
\{@d,@s\}
x>@d\text{ or }x<@s
@a\pm @b
|x-@a|<@b+0
x\in|x-@a|<@b
""",
        lambda rng: (lambda a, b: {"a": a, "b": b, "d": a - b, "s": a + b})(
            rng.randint(11, 19), rng.randint(2, 9)
        ),
    ),
)

nearby_values = asked(
    Asked(
        "Find the probability.",
        r"\frac{@a}{@b}",
        r"""
\frac{@b}{@a}
\frac{@a}{@b}+\frac{1}{@b}
1-\frac{@a}{@b}
\frac{@a}{@b}\%
@a
\frac{@a+1}{@b+1}
@a\frac{1}{@b}
0.@a@b
\frac{@a}{@b}\text{ or }\frac{@b}{@a}
-\frac{@a}{@b}
\left(\frac{@a}{@b}\right)^2
\sqrt{\frac{@a}{@b}}
\approx 0.5
""",
        lambda rng: (
            lambda b: {"b": b, "a": next(x for x in range(rng.randint(2, 5), b) if gcd(x, b) == 1)}
        )(rng.choice((11, 13, 17, 19, 23, 37))),
    ),
    Asked(
        "In how many ways can @k of @n people be chosen?",
        "@g",
        r"""
@g!
@k^{@n}
@n^{@k}
\frac{@n!}{@k!}
@n-@k
\binom{@n}{@k}+1
@g-1
@g\text{ thousand}
\{@g\}\cup\{@n\}
""",
        lambda rng: (lambda n, k: {"n": n, "k": k, "g": comb(n, k)})(
            rng.randint(9, 14), rng.randint(3, 5)
        ),
    ),
)

plain_phrases = asked(
    Asked(
        "How many coins does Ben have?\nWhat is the sum?",
        "@g",
        r"""
Ben has either @g or @w coins.
Ben has @g coins too many.
Ben has fewer than @g coins.
Ben does not have @g coins.
Ben wishes he had @g coins.
Ben had @g coins but lost some.
Ben has @g dozen coins.
Ben could have @g coins.
There are not @g coins.
So, not @g.
Is it @g?
It's @g, isn't it? Or @w?
@g or @w
@g, @w
@g @w
@g-@w
@g?@w
about @g, or @w
@g...@w
from @g to @w
at most @g
@g+
>@g
<@g
~@g or ~@w
@g×@w
@g^@w
@g.@w
@g,@w
@g/@w
@g e @w
not @g
@g no
@g wrong
@g @g @w
@w = @g
@g = @w
@g\@w
""",
        _numbers,
    ),
    num=4,
)

notation = asked(
    Asked(
        "Write 0.@a75 as a fraction in lowest terms.\nConvert $0.@a75$ to a fraction.",
        r"\frac{@m}{40}",
        "0.@a75\n.@a75\n0.@a750\nx=0.@a75\n@a7.5\\%",
        lambda rng: (lambda a: {"a": a, "m": (100 * a + 75) // 25})(rng.choice((1, 3, 4, 6, 7, 9))),
    ),
    Asked(
        "Write $\\frac{@a}{8}$ as a decimal.\nConvert @a/8 to a decimal number.",
        "@g",
        "\\frac{@a}{8}\n@a/8\n\\dfrac{@a}{8}\nx=\\frac{@a}{8}\n\\frac{@a}{8}\\cdot 1",
        lambda rng: (lambda a: {"a": a, "g": a / 8})(rng.choice((1, 3, 5, 7, 9, 11, 13))),
    ),
    Asked(
        "Reduce $\\frac{@x}{@y}$ to lowest terms.\nSimplify \\(\\frac{@x}{@y}\\).",
        r"\frac{@a}{@b}",
        "\\frac{@x}{@y}\n@x/@y\n\\dfrac{@x}{@y}\nx=\\frac{@x}{@y}",
        lambda rng: (lambda a, b, k: {"a": a, "b": b, "x": k * a, "y": k * b})(
            *rng.choice(((2, 7), (3, 11), (5, 13), (4, 9), (6, 17))), rng.randint(3, 9)
        ),
    ),
    Asked(
        "Simplify the ratio @x:@y.\nReduce the ratio $@x:@y$ to lowest terms.",
        "@a:@b",
        "@x:@y\n@x : @y\n@x\\text{ to }@y\n\\frac{@x}{@y}\nx:y=@x:@y",
        lambda rng: (lambda a, b, k: {"a": a, "b": b, "x": k * a, "y": k * b})(
            *rng.choice(((2, 7), (3, 11), (5, 13), (4, 9), (6, 17))), rng.randint(3, 9)
        ),
    ),
    Asked(
        "Write @a5000 in scientific notation.\nExpress $@a5000$ in scientific notation.",
        r"@a.5\times 10^4",
        "@a5000\n@a5,000\n@a5000.0\n@a5\\text{ thousand}\nx=@a5000",
        _digits,
    ),
    Asked(
        "Write $@a.@b\\times 10^3$ as an ordinary number.",
        "@a@b00",
        "@a.@b\\times 10^3\n@a.@b\\cdot 10^3\n@a.@be3\n@a.@b\\times10^{3}",
        _digits,
    ),
    Asked(
        "Write $@a\\frac{@c}{1@b}$ as an improper fraction.\nConvert $@a\\frac{@c}{1@b}$ to an improper fraction.",
        r"\frac{@x}{1@b}",
        "@a\\frac{@c}{1@b}\n@a \\frac{@c}{1@b}\n@a\\ \\frac{@c}{1@b}\n@a+\\frac{@c}{1@b}",
        lambda rng: (lambda a, b, c: {"a": a, "b": b, "c": c, "x": a * (10 + b) + c})(
            rng.randint(2, 9), rng.choice((1, 3, 7, 9)), rng.choice((2, 4, 5, 6, 8))
        ),
    ),
    Asked(
        "Write 0.@g as a percentage.\nConvert $0.@g$ to a percent.",
        r"@g\%",
        "0.@g\n.@g\n\\frac{@g}{100}\\cdot 1\n0.@g\\cdot 100\\%",
        _numbers,
    ),
    Asked(
        "Convert @h km/h to m/s.\nA car drives at @h km/h. What is its speed in m/s?",
        "@g m/s",
        "@h km/h\n@h\\text{ km/h}\n@h kph\n@h\\text{ kilometers per hour}\n@h\\,\\mathrm{km/h}\nv=@h km/h",
        lambda rng: (lambda k: {"g": 5 * k, "h": 18 * k})(rng.randint(2, 9)),
    ),
    Asked(
        "Convert @g hours to minutes.\nThe film takes @g hours. How many minutes is that?",
        r"@h\text{ minutes}",
        "@g hours\n@g\\text{ hours}\n@g h\n@g\\text{ hrs}\nt=@g\\text{ hours}",
        lambda rng: (lambda k: {"g": k, "h": 60 * k})(rng.randint(11, 40)),
    ),
    Asked(
        "How many metres are @g kilometres? Give the unit.\nA road is @g km long. How long is it in metres?",
        r"@g000\text{ m}",
        "@g km\n@g\\text{ km}\n@g kilometers\n@g\\,\\mathrm{km}\n@g\\text{ kilometres}",
        _numbers,
    ),
    Asked(
        "Convert @g00 cents to dollars.",
        r"\$@g",
        "@g00 cents\n@g00\\text{ cents}\nx=@g00\\text{ cents}",
        _numbers,
    ),
    num=2,
)

members = asked(
    Asked(
        "Find the midpoint of $(@a,@b)$ and $(@c,@d)$.",
        "(@x,@y)",
        "\\left(\\frac{@a+@c}{2},\\frac{@b+@d}{2}\\right)\n((@a+@c)/2,(@b+@d)/2)\n(@a+@c,@b+@d)/2\n(@x+0,@y)\n(@x,@y-1+1)\nM=\\left(\\frac{@a+@c}{2},\\frac{@b+@d}{2}\\right)\n(@y,@x,0)",
        lambda rng: (
            lambda a, b, c, d: {
                "a": a,
                "b": b,
                "c": a + 2 * c,
                "d": b + 2 * d,
                "x": a + c,
                "y": b + d,
            }
        )(rng.randint(2, 9), rng.randint(11, 19), rng.randint(2, 9), rng.randint(2, 9)),
    ),
    Asked(
        "Solve $x^2-@sx+@p=0$.",
        "@a,@b",
        "x^2-@sx+@p=0\nx=\\frac{@s\\pm\\sqrt{@s^2-4\\cdot @p}}{2}\n\\frac{@s+\\sqrt{@s^2-4\\cdot @p}}{2},\\frac{@s-\\sqrt{@s^2-4\\cdot @p}}{2}\n(x-@a)(x-@b)=0\n@a\n@b\nx(x-@s)=-@p\n(@a,@b,@a)\n@a+@b\n\\{x:x^2-@sx+@p=0\\}",
        _digits,
    ),
    Asked(
        "Solve $|x-@x|=@a$.",
        "@y,@z",
        "@x-@a,@x+@a\n|x-@x|=@a\n\\{@x-@a,@x+@a\\}\n@y\nx-@x=\\pm @a\n[@y,@z]",
        lambda rng: (lambda x, a: {"x": x, "a": a, "y": x - a, "z": x + a})(
            rng.randint(11, 30), rng.randint(2, 9)
        ),
    ),
    Asked(
        "Find $3\\vec v$ for $\\vec v=(@a,@b)$.",
        "(@x,@y)",
        "3(@a,@b)\n(3\\cdot@a,3\\cdot@b)\n3\\cdot(@a,@b)\n(@a,@b)+(@a,@b)+(@a,@b)\n(@a+@a+@a,@b+@b+@b)\n3\\vec v",
        lambda rng: (lambda a, b: {"a": a, "b": b, "x": 3 * a, "y": 3 * b})(
            *rng.sample(range(2, 10), 2)
        ),
    ),
    Asked(
        "Solve $x-@a\\ge @b$.",
        r"[@s,\infty)",
        "x-@a\\ge @b\nx\\ge @a+@b\n[@a+@b,\\infty)\nx-@a-@b\\ge 0\nx>@s\n(@s,\\infty)\nx\\le @s\n@s\n[@s,\\infty]\\cup\\{0\\}",
        _digits,
    ),
    Asked(
        "Add the matrices.",
        r"\begin{pmatrix}@s&@p\end{pmatrix}",
        "\\begin{pmatrix}@a+@b&@a\\cdot@b\\end{pmatrix}\n\\begin{pmatrix}@a&@p\\end{pmatrix}+\\begin{pmatrix}@b&0\\end{pmatrix}\n\\begin{pmatrix}@s\\\\@p\\end{pmatrix}\n\\begin{pmatrix}@p&@s\\end{pmatrix}\n\\begin{pmatrix}@s,@p,0\\end{pmatrix}",
        _digits,
    ),
    num=2,
)

rewriting = asked(
    Asked(
        "Evaluate $\\tan 15^\\circ$.\nFind the exact value of \\(\\tan 15^\\circ\\).",
        r"2-\sqrt3",
        "\\frac{\\sin 15^\\circ}{\\cos 15^\\circ}\n\\cot 75^\\circ\n\\frac{1-\\cos 30^\\circ}{\\sin 30^\\circ}\n\\tan(45^\\circ-30^\\circ)\n\\tan\\frac{\\pi}{12}\n\\frac{1}{\\cot 15^\\circ}\n-\\tan(-15^\\circ)\n\\tan 195^\\circ\n\\frac{1}{\\tan 75^\\circ}",
    ),
    Asked(
        "Simplify $\\sqrt{@s+2\\sqrt{@p}}$.",
        r"\sqrt{@a}+\sqrt{@b}",
        "\\sqrt{@s+2\\sqrt{@p}}\n\\sqrt{2\\sqrt{@p}+@s}\n(@s+2\\sqrt{@p})^{1/2}\n\\sqrt{@s+\\sqrt{4\\cdot@p}}\n\\sqrt{(\\sqrt{@a}+\\sqrt{@b})^2}\n\\sqrt{@a+@b+2\\sqrt{@a}\\sqrt{@b}}\n|\\sqrt{@s+2\\sqrt{@p}}|",
        lambda rng: (lambda a, b: {"a": a, "b": b, "s": a + b, "p": a * b})(
            *rng.choice(((2, 3), (2, 5), (3, 5), (3, 7), (5, 7), (2, 7), (5, 6), (2, 11)))
        ),
    ),
    Asked(
        "Write $\\frac{1}{x}-\\frac{1}{x+@a}$ as a single fraction.",
        r"\frac{@a}{x(x+@a)}",
        "\\frac{1}{x}-\\frac{1}{x+@a}\nx^{-1}-(x+@a)^{-1}\n\\frac{x+@a-x}{x(x+@a)}\n-\\frac{1}{x+@a}+\\frac1x\n\\frac{x+@a}{x(x+@a)}-\\frac{x}{x(x+@a)}\n\\frac{1}{x}+\\frac{-1}{x+@a}\n1/x-1/(x+@a)",
        _digits,
    ),
    Asked(
        "Simplify $(@v^@a)^@b$.",
        "@v^{@p}",
        "(@v^@a)^@b\n(@v^@b)^@a\n@v^{@a\\cdot @b}\n\\left(@v^{@a}\\right)^{@b}\n(@v^@a)^{@b-1}@v^@a\n(@v^@a)^{@b}\\cdot 1",
        _digits,
    ),
    Asked(
        "Complete the square: $x^2+@mx+@n$.",
        "(x+@a)^2+@b",
        "x^2+@mx+@n\nx^2+2\\cdot@ax+@n\nx(x+@m)+@n\nx^2+@mx+@q+@b\n@n+x^2+@mx\n(x^2+@mx+@n)",
        lambda rng: (lambda a, b: {"a": a, "b": b, "m": 2 * a, "q": a * a, "n": a * a + b})(
            rng.randint(2, 9), rng.randint(2, 9)
        ),
    ),
    Asked(
        "Simplify $\\sin 2x$ in terms of $\\sin x$ and $\\cos x$.",
        r"2\sin x\cos x",
        "\\sin 2x\n\\sin(2x)\n\\sin(x+x)\n-\\sin(-2x)\n\\sin 2x+0\n\\cos(\\frac{\\pi}{2}-2x)",
    ),
    Asked(
        "Write $\\log_2 x+\\log_2 @a$ as a single logarithm.",
        r"\log_2(@ax)",
        "\\log_2 x+\\log_2 @a\n\\log_2 @a+\\log_2 x\n\\frac{\\ln x}{\\ln 2}+\\log_2 @a\n\\log_2 x-\\log_2\\frac{1}{@a}",
        _digits,
    ),
    Asked(
        "Write $e^{i\\pi/3}$ in the form $a+bi$.",
        r"\frac12+\frac{\sqrt3}{2}i",
        "e^{i\\pi/3}\ne^{\\frac{i\\pi}{3}}\n\\exp(i\\pi/3)\n(e^{i\\pi})^{1/3}\ne^{\\pi i/3}+0i\nz=e^{i\\pi/3}",
    ),
    Asked(
        "Find the derivative of $@ax^@b$ at $x$.",
        "@px^{@n}",
        "(@ax^@b)'\n@a\\cdot@b x^{@b-1}\n\\frac{d}{dx}@ax^@b\n@ax^@b\n@a(x^@b)'\n@b\\cdot @ax^{@b-1}",
        lambda rng: (lambda a, b: {"a": a, "b": b, "p": a * b, "n": b - 1})(
            *rng.sample(range(3, 10), 2)
        ),
    ),
    num=2,
)

exploits = asked(
    Asked(
        "Find the number.\nWhat is the result?",
        "@g",
        r"""
\boxed{@m, @g, @n}
\boxed{@m\le x\le @n}
\boxed{@g\pm 1}
\boxed{x}
\boxed{x \text{ where } x=@g \text{ or } x=@w}
\boxed{\text{the answer}}
\boxed{\text{gold}}
\boxed{0@g@w}
\boxed{@w\%@g}
\boxed{@g}_{@w}
\boxed{@g_{@w}}
\boxed{@g'}
\boxed{@g@g}
\boxed{\{@m..@n\}}
\boxed{@m<@g<@n, @w}
\boxed{@g\in\{@m,@g,@n\}}
\boxed{[@g,@n]}
\boxed{(@g)(@w)}
\boxed{@g:@w}
\boxed{@g\ \text{vs}\ @w}
\boxed{\max(@m,@g)}
\boxed{\min(@g,@n)}
\boxed{\gcd(@g,0)+0}
\boxed{|@m-@n|\cdot @g/2}
\boxed{\lfloor @g.9\rfloor + 0}
\boxed{@m+1}
\boxed{@n-1}
\boxed{@g+0i}
\boxed{@g\cdot 1}
\boxed{@g^1\cdot 1}
\boxed{(@g^2)^{1/2}\cdot 1+0}
\boxed{\sum_{i=1}^{@g} 1}
\boxed{\int_0^{@g}1\,dx+0}
\boxed{\frac{@g\cdot @w}{@w}}
\boxed{@w-(@w-@g)}
\boxed{--@g+0}
\boxed{@g \oplus @w}
\boxed{@g \text{ xor } @w}
\boxed{\underbrace{1+\cdots+1}_{@g}}
\boxed{1+1+\ldots+1 = @g = @w}
\boxed{"@g" == answer}
\boxed{@g\ne @w}
\boxed{@g>@m}
\boxed{@g=x^0\cdot @w}
""",
        _numbers,
    ),
    num=4,
)

FAMILIES: Mapping[str, Callable[[Random], Draws]] = {
    "asked: expand": expand,
    "asked: factor": factor,
    "asked: radicals": radicals,
    "asked: integrals": integrals,
    "asked: sums": sums,
    "asked: complex numbers": complex_numbers,
    "asked: trigonometry": trigonometry,
    "asked: logarithms": logarithms,
    "asked: arithmetic": arithmetic,
    "asked: derivatives": derivatives,
    "asked: powers": powers,
    "asked: sets": sets,
    "asked: matrices": matrices,
    "asked: universal": universal,
    "asked: labels": labels,
    "asked: outside the grammar": outside,
    "asked: literals": literals,
    "asked: currency": currency,
    "asked: conversions": conversions,
    "asked: interval ends": interval_ends,
    "asked: nearby values": nearby_values,
    "asked: notation": notation,
    "asked: members": members,
    "asked: rewriting": rewriting,
}
WHOLE: Mapping[str, Callable[[Random], Draws]] = {
    "asked: after a formula": after_formula,
    "asked: contradictions": contradictions,
    "asked: choices": choices,
    "asked: nouns": nouns,
    "asked: tag sentences": tag_sentences,
    "asked: foreign hedges": foreign_hedges,
    "asked: many boxes": many_boxes,
    "asked: quoted": quoted,
    "asked: plain phrases": plain_phrases,
    "asked: exploits": exploits,
}
ALL = (*FAMILIES, *WHOLE)
