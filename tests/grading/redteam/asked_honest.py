"""Styles of right answers to a question: solutions as SmolLM, Qwen and R1 write them for word
problems, competition problems and multiple choice, and forms of one value beside a question that
holds another.

Each table holds questions, the gold, and answers, one a line (`Asked`)."""

from collections.abc import Callable, Mapping
from math import comb
from random import Random

from tests.grading.redteam.rows import NOUNS, Asked, Draws, asked


def _digits(rng: Random) -> dict[str, object]:
    v = rng.choice("xyzt")
    a, b, c = rng.sample(range(2, 10), 3)
    return {"v": v, "a": a, "b": b, "c": c, "s": a + b, "p": a * b, "q": c * a, "r": c * b}


def _number(rng: Random) -> dict[str, object]:
    g = rng.randint(11, 98)
    return {"g": g, "h": g - 7, "d": f"{g}.00"}


def _word_problem(rng: Random) -> dict[str, object]:
    a, k = rng.randint(11, 60), rng.randint(2, 6)
    noun = rng.choice(NOUNS)
    name = rng.choice(["Natalia", "Weng", "Betty", "Julie", "Mark", "Albert", "Ken", "Alexis"])
    return {"n": name, "o": noun, "a": a, "k": k, "b": a * k, "g": a + a * k}


gsm8k = asked(
    Asked(
        "@n sold @a @o in April, and then sold @k times as many @o in May. How many @o did @n sell altogether in April and May?",
        "@g",
        r"""
@n sold @a*@k = <<@a*@k=@b>>@b @o in May.¶@n sold @a+@b = <<@a+@b=@g>>@g @o altogether.¶#### @g
In May, @n sold @a × @k = @b @o. In total, that is @a + @b = @g.¶#### @g @o
To find the total, we add:¶¶@a + @b = @g¶¶So, @n sold \(\boxed{@g}\) @o altogether.
To solve this problem, we need to follow these steps:¶1. May: \(@a \times @k = @b\)¶2. Total: \(@a + @b = @g\)¶¶Therefore, @n sold a total of \(\boxed{@g}\) @o.
Step 1: @k * @a = @b¶Step 2: @a + @b = @g¶The answer is @g.
The answer is: @g @o.
The answer is @g @o.
**Answer:** @n sold @g @o altogether.
The final answer is: $\boxed{@g}$
The final answer is: $\boxed{@g \text{ @o}}$
\boxed{@g\text{ @o}}
\boxed{@g~\text{@o}}
\boxed{\text{@g @o}}
\boxed{@a+@b=@g}
\[ \boxed{@g} \]
<answer>@g @o</answer>
<answer>@n sold @g @o altogether.</answer>
<answer>¶The total is @g @o.¶</answer>
<think>May: @a*@k=@b. Total @a+@b=@g. Or is it @b? No.</think>¶¶The total number of @o is @a + @b = @g.¶¶\[¶\boxed{@g}¶\]
<think>¶Okay, so @a plus @b is @g.¶</think>¶¶@n sold **@g** @o altogether.¶¶**Final Answer**¶\boxed{@g}
#### @g @o altogether
#### **@g**
So the final answer is @g. I hope it is correct.
@n sold @g @o altogether.
@n sold @g @o in all.
So @n sold @g @o in April and May.
So, @n sold a total of @g @o.
@n sold @a + @b = @g @o.
@a + @b = @g
@a @o + @b @o = @g @o
@n sold @a @o in April and @b @o in May, so @n sold @a + @b = @g @o altogether. The answer is @g.
Therefore, @n sold @g @o altogether in April and May.
Thus, @n sold **@g** @o altogether.
Answer: @g @o
Answer: @g @o were sold.
The total number of @o sold is @g.
The total is @a + @b = @g @o.
Final answer: @g
### Solution¶May: @b¶¶### Final Answer¶@g @o
Total: @g
Total = @a + @b = @g
Total = **@g**
In total @n sold @g @o.
$@a + @b = @g$
So the total is $@a + @b = @g$ @o.
\(@a + @b = @g\)
@g @o
**@g @o**
@g @o in total
""",
        _word_problem,
    ),
    num=5,
)

money = asked(
    Asked(
        "How much did she pay in dollars?\nWhat is the total cost of the pens?\nA pen costs $2. How much do the pens cost?",
        "@g",
        r"""
\boxed{\$@g}
\boxed{$@g}
\boxed{@g\text{ dollars}}
\boxed{\$@g.00}
#### $@g
#### \$@g
#### @g dollars
#### @d
The answer is $@g.
The answer is \$@g.
The answer is $@g$.
The answer is $@g$ dollars.
The answer is $@d.
The total cost is $@g.
She paid $@g.
She paid $@h + $7 = $@g.
So the pens cost \$@g.
The pens cost a total of $@g.
**Answer: $@g**
Answer: $@g in total
Therefore, the total cost is $@g.
Therefore, she paid \$@g in total.
<answer>$@g</answer>
<answer>@g dollars</answer>
$@g
@g dollars
USD @g
""",
        _number,
    ),
    Asked(
        "How much did she pay?",
        "$@g",
        r"""
\boxed{\$@g}
\boxed{@g}
\boxed{@g\text{ dollars}}
#### $@g
#### @g
The answer is $@g.
The answer is $@g$.
The answer is \$@g.
The answer is @g dollars.
Answer: $@g
She paid $@g.
<answer>$@g</answer>
<answer>@g dollars</answer>
\boxed{\text{\$}@g}
$@g$
$\$@g$
@g.00
""",
        _number,
    ),
    Asked(
        "How many cents?",
        "@g cents",
        "\\boxed{@g\\text{ cents}}\n\\boxed{@g}\nThe answer is @g cents.\n\\boxed{@g¢}\n#### @g cents\n\\boxed{\\$0.@g}\nAnswer: $0.@g",
        _number,
    ),
)

competition = asked(
    Asked(
        r"The answer can be written as $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
        + "\nFind the remainder when $N$ is divided by $1000$.",
        "@g",
        r"""
\boxed{@g}
\boxed{0@g}
\boxed{m+n=@g}
$m+n=\boxed{@g}$
$m + n = @h + 7 = \boxed{@g}$
Thus $m+n = @h+7 = @g$. $\blacksquare$
The answer is $\boxed{@g}.$
Hence, $m + n = \boxed{0@g}$.
The requested sum is $@h + 7 = \boxed{@g}$.
The requested sum is $@h+7=@g$.
So $m+n=@g$.
<answer>@g</answer>
<answer>The remainder is @g.</answer>
<answer>m+n = @g</answer>
The answer is @g, as required.
The answer is $@g$, as desired.
Therefore $N \equiv \boxed{@g} \pmod{1000}$.
**Final Answer:** The final answer is $\boxed{@g}$
¶¶**Final Answer**¶\boxed{@g}
\[\boxed{@g}\]¶
The answer is \(\boxed{@g}\).
so our answer is $\boxed{@g}$.
$\boxed{@g}$ ~someone
our final answer is $@h + 7 = \boxed{@g}$
We get $@h+7=\boxed{\textbf{@g}}$
$\boxed{\mathbf{@g}}$
$\framebox{@g}$
$\fbox{@g}$
Answer: $\boxed{@g}$
<think>¶Maybe 12? Wait, no.¶</think>¶The remainder is $\boxed{@g}$.
""",
        _number,
    ),
    num=5,
)

tidier = asked(
    Asked(
        "A central angle measures $0.5\\pi$ radians. Convert it.\nEvaluate $0.5\\pi$ exactly.",
        r"0.5\pi",
        "\\frac{\\pi}{2}\n\\pi/2\n\\frac12\\pi\n\\dfrac{\\pi}{2}\n0.5\\pi",
    ),
    Asked(
        "Write $\\frac{6}{8}\\pi$ in lowest terms.",
        r"\frac{3\pi}{4}",
        "\\frac{3\\pi}{4}\n\\frac{3}{4}\\pi\n0.75\\pi\n3\\pi/4\n\\frac34\\pi",
    ),
    Asked(
        "The area is $\\pi\\cdot @a^2$. Find it.\nA circle has radius @a; use $A=\\pi r^2$.",
        r"@q\pi",
        "@q\\pi\n\\pi\\cdot @q\nA=@q\\pi\n@q \\pi\\text{ square units}\n@qπ",
        lambda rng: (lambda a: {"a": a, "q": a * a})(rng.randint(3, 12)),
    ),
    Asked(
        "Simplify $@a\\sqrt{@c}+@b\\sqrt{@c}$.",
        r"@s\sqrt{@c}",
        "@s\\sqrt{@c}\n@s\\cdot\\sqrt{@c}\n\\sqrt{@c}\\cdot @s\nx=@s\\sqrt{@c}",
        lambda rng: (lambda a, b: {"a": a, "b": b, "c": rng.choice((2, 3, 5, 7)), "s": a + b})(
            *rng.sample(range(2, 10), 2)
        ),
    ),
    Asked(
        "Simplify $\\sqrt{\\frac{@c}{@n}}$.",
        r"\frac{\sqrt{@c}}{@a}",
        "\\frac{\\sqrt{@c}}{@a}\n\\frac{1}{@a}\\sqrt{@c}\n\\sqrt{@c}/@a",
        lambda rng: (lambda a: {"a": a, "n": a * a, "c": rng.choice((2, 3, 5, 7, 11))})(
            rng.choice((4, 6, 8, 9, 10, 12))
        ),
    ),
    Asked(
        "Simplify $2(@a x+@b)$.\nDistribute: $2(@a x + @b)$",
        "@mx+@n",
        "@mx+@n\n@n+@mx\n@m x + @n\nf(x)=@mx+@n",
        lambda rng: (lambda a, b: {"a": a, "b": b, "m": 2 * a, "n": 2 * b})(
            rng.randint(2, 9), rng.randint(2, 9)
        ),
    ),
    Asked("Simplify $\\frac{@p x}{@a}$.", "@bx", "@bx\n@b x\nx\\cdot @b\ny=@bx", _digits),
    Asked(
        "Simplify $x^{@a}\\cdot x^{@b}$.",
        "x^{@s}",
        "x^{@s}\nx^{ @s }\ny = x^{@s}",
        lambda rng: (lambda a, b: {"a": a, "b": b, "s": a + b})(*rng.sample(range(2, 10), 2)),
    ),
    Asked(
        "Write $0.@a5 x$ with a fraction. Start with $\\frac{@a5}{100}x$.",
        r"\frac{@m}{20}x",
        "\\frac{@m}{20}x\n\\frac{@mx}{20}\n\\dfrac{@m x}{20}\n@mx/20",
        lambda rng: (lambda a: {"a": a, "m": (10 * a + 5) // 5})(rng.choice((1, 3, 4, 5, 6, 8))),
    ),
    Asked(
        "Express $e^{2\\ln @a}x$ simply.",
        "@nx",
        "@nx\n@n x\n@n\\cdot x",
        lambda rng: (lambda a: {"a": a, "n": a * a})(rng.randint(3, 12)),
    ),
    Asked(
        "Solve $x^2=@n$ for the positive root, where $x=\\sqrt{@n}$.",
        r"@a\sqrt{2}",
        "@a\\sqrt{2}\nx=@a\\sqrt{2}\n@a\\sqrt2",
        lambda rng: (lambda a: {"a": a, "n": 2 * a * a})(rng.randint(3, 12)),
    ),
    Asked(
        "Convert $@a0^\\circ$ to radians: $@a0\\cdot\\frac{\\pi}{180}$.",
        r"\frac{@x\pi}{@y}",
        "\\frac{@x\\pi}{@y}\n\\frac{@x}{@y}\\pi\n@x\\pi/@y",
        lambda rng: rng.choice(
            (
                {"a": 4, "x": 2, "y": 9},
                {"a": 5, "x": 5, "y": 18},
                {"a": 7, "x": 7, "y": 18},
                {"a": 8, "x": 4, "y": 9},
                {"a": 15, "x": 5, "y": 6},
                {"a": 21, "x": 7, "y": 6},
            )
        ),
    ),
    num=2,
)

inequalities = asked(
    Asked(
        "Solve $|x-@a|<@b$ and give your answer as an interval or inequality.\nFor which $x$ is $-@b<x-@a<@b$?\nSolve the inequality $(x-@d)(x-@s)<0$.",
        "(@d,@s)",
        r"""
@d<x<@s
(@d,@s)
x\in(@d,@s)
@s>x>@d
x>@d\text{ and }x<@s
\{x:@d<x<@s\}
\{x\mid @d<x<@s\}
\left(@d,@s\right)
@d < x < @s
\boxed{@d<x<@s}
""",
        lambda rng: (lambda a, b: {"a": a, "b": b, "d": a - b, "s": a + b})(
            rng.randint(11, 19), rng.randint(2, 9)
        ),
    ),
    Asked(
        "For what values of $x$ is $@a\\le x\\le @n$ and $x\\ne @n$?\nThe solution has the form $a\\le x<b$. Find it.",
        "[@a,@n)",
        "@a\\le x<@n\n[@a,@n)\nx\\in[@a,@n)\n@a\\leq x<@n\nx\\ge @a\\text{ and }x<@n\n@n>x\\geq @a",
        lambda rng: (lambda a: {"a": a, "n": a + rng.randint(2, 9)})(rng.randint(2, 9)),
    ),
    Asked(
        "The domain is all $x$ with $x\\ge @a$. Write it.\nFind the domain of $\\sqrt{x-@a}$; where is $x-@a\\ge 0$?",
        r"[@a,\infty)",
        "x\\ge @a\n[@a,\\infty)\nx\\geq @a\n[@a, +\\infty)\n@a\\le x\nx \\in [@a, \\infty)\nx\\geqslant @a",
        _digits,
    ),
    Asked(
        "Find all $x$ such that $x<-@a$ or $x>@a$.\nSolve $x^2>@a^2$; the answer is $x<-@a$ or $x>@a$, write it as a union.",
        r"(-\infty,-@a)\cup(@a,\infty)",
        "x<-@a\\text{ or }x>@a\n(-\\infty,-@a)\\cup(@a,\\infty)\n|x|>@a\nx \\in (-\\infty,-@a)\\cup(@a,\\infty)\n(-\\infty, -@a) \\cup (@a, +\\infty)\n(@a,\\infty)\\cup(-\\infty,-@a)\nx > @a \\text{ or } x < -@a",
        _digits,
    ),
    Asked(
        "If $-@a\\le x\\le @b$, what is the range of $x$?\nOn which interval is $-@a \\le x \\le @b$?",
        "[-@a,@b]",
        "-@a\\le x\\le @b\n[-@a,@b]\nx\\in[-@a,@b]\n@b\\ge x\\ge -@a\n-@a \\leq x \\leq @b",
        _digits,
    ),
)

calculus = asked(
    Asked(
        "Differentiate $(x^2+@a)^3$.\nFind $f'(x)$ for $f(x)=(x^2+@a)^3$.",
        "6x(x^2+@a)^2",
        r"""
6x(x^2+@a)^2
3(x^2+@a)^2\cdot 2x
3(x^2+@a)^2(2x)
2x\cdot 3(x^2+@a)^2
f'(x)=6x(x^2+@a)^2
f'(x) = 3(x^2+@a)^2 \cdot 2x = 6x(x^2+@a)^2
6x\left(x^2+@a\right)^2
\frac{df}{dx}=6x(x^2+@a)^2
y'=6x(x^2+@a)^2
\frac{dy}{dx} = 6x(x^2 + @a)^2
f'(x)=3(x^2+@a)^2\cdot 2x
(x^2+@a)^2\cdot 6x
""",
        _digits,
    ),
    Asked(
        "Differentiate $x^{@a}\\sin x$.",
        r"@ax^{@n}\sin x+x^{@a}\cos x",
        "@ax^{@n}\\sin x+x^{@a}\\cos x\nx^{@n}(@a\\sin x+x\\cos x)\nx^{@a}\\cos x+@ax^{@n}\\sin x\nf'(x)=@ax^{@n}\\sin(x)+x^{@a}\\cos(x)\n@a x^{@n} \\sin x + x^{@a} \\cos x",
        lambda rng: (lambda a: {"a": a, "n": a - 1})(rng.randint(3, 9)),
    ),
    Asked(
        "Differentiate $e^{@a x}\\cdot x$.",
        "e^{@ax}(@ax+1)",
        "e^{@ax}(@ax+1)\n@axe^{@ax}+e^{@ax}\n(1+@ax)e^{@ax}\ne^{@ax}+@a x e^{@ax}\n\\frac{dy}{dx}=(@ax+1)e^{@ax}",
        _digits,
    ),
    Asked(
        "Differentiate $\\ln(x^2+@a)$.",
        r"\frac{2x}{x^2+@a}",
        "\\frac{2x}{x^2+@a}\n\\frac{1}{x^2+@a}\\cdot 2x\n2x(x^2+@a)^{-1}\ny'=\\frac{2x}{x^2+@a}\n\\dfrac{2x}{x^2+@a}",
        _digits,
    ),
    Asked(
        "Find $\\int @q x\\,dx$.",
        r"@hx^2+C",
        "@hx^2+C\n@h x^2 + C\nC+@hx^2\nF(x)=@hx^2+C\n@h{x}^{2}+C",
        lambda rng: (lambda h: {"h": h, "q": 2 * h})(rng.randint(2, 12)),
    ),
    Asked(
        "Evaluate $\\int_0^{@a} @q x\\,dx$.",
        "@g",
        "@g\n\\int_0^{@a} @q x\\,dx=@g\nI=@g\n@g.0\n\\left[@hx^2\\right]_0^{@a}=@g",
        lambda rng: (lambda a, h: {"a": a, "h": h, "q": 2 * h, "g": h * a * a})(
            rng.randint(2, 9), rng.randint(2, 9)
        ),
    ),
    Asked(
        "Compute $\\lim_{x\\to @a}\\frac{x^2-@n}{x-@a}$.",
        "@q",
        "@q\n\\lim_{x\\to @a}\\frac{x^2-@n}{x-@a}=@q\nL=@q\nx+@a=@q\n@a+@a=@q",
        lambda rng: (lambda a: {"a": a, "n": a * a, "q": 2 * a})(rng.randint(3, 15)),
    ),
    num=3,
)

labels = asked(
    Asked(
        "Find the inverse of $f(x)=@ax+@b$.",
        r"\frac{x-@b}{@a}",
        "f^{-1}(x)=\\frac{x-@b}{@a}\n\\frac{x-@b}{@a}\nf^{-1}(x) = \\frac{1}{@a}x-\\frac{@b}{@a}\ny=\\frac{x-@b}{@a}\nf^{-1}(x)=(x-@b)/@a\ng(x)=\\frac{x-@b}{@a}",
        _digits,
    ),
    Asked(
        "Find the inverse of $f(x)=@ax+@b$.",
        r"f^{-1}(x)=\frac{x-@b}{@a}",
        "f^{-1}(x)=\\frac{x-@b}{@a}\n\\frac{x-@b}{@a}\nf^{-1}(x) = \\frac{1}{@a}x-\\frac{@b}{@a}\nf^{-1}(x)=(x-@b)/@a",
        _digits,
    ),
    Asked(
        r"Find $A^{-1}$ for $A=\begin{pmatrix}1&@a\\0&1\end{pmatrix}$.",
        r"\begin{pmatrix}1&-@a\\0&1\end{pmatrix}",
        r"""
A^{-1}=\begin{pmatrix}1&-@a\\0&1\end{pmatrix}
\begin{bmatrix}1&-@a\\0&1\end{bmatrix}
A^{-1} = \begin{bmatrix} 1 & -@a \\ 0 & 1 \end{bmatrix}
\begin{pmatrix}1&-@a\\[4pt]0&1\end{pmatrix}
\left(\begin{array}{rr}1&-@a\\0&1\end{array}\right)
\begin{pmatrix} 1 & -@a\\ 0 & 1 \\ \end{pmatrix}
""",
        _digits,
    ),
    Asked(
        r"Let $A=\{@a,@b\}$ and $B=\{@b,@c\}$. Find $A\cap B$.",
        r"\{@b\}",
        "A\\cap B=\\{@b\\}\n\\{@b\\}\nA \\cap B = \\{ @b \\}\n\\left\\{@b\\right\\}\n\\text{The set }\\{@b\\}",
        _digits,
    ),
    Asked(
        r"Let $A=\{@a,@b\}$ and $B=\{@b,@c\}$. Find $A\cup B$.",
        r"\{@a,@b,@c\}",
        "A\\cup B=\\{@a,@b,@c\\}\n\\{@c,@a,@b\\}\n\\left\\{ @a, @b, @c \\right\\}\n\\{@a,@b,@c\\}.",
        _digits,
    ),
    Asked(
        "How many elements has $A$? Find $|A|$.",
        "@g",
        "|A|=@g\n@g\nn(A)=@g\n\\#A=@g\n|A| = @g\\text{ elements}",
        _number,
    ),
    Asked(
        r"Find the magnitude of $\vec{v}$.",
        r"@a\sqrt{@c}",
        "|\\vec{v}|=@a\\sqrt{@c}\n\\|\\vec v\\|=@a\\sqrt{@c}\n@a\\sqrt{@c}\n\\|\\mathbf{v}\\| = @a\\sqrt{@c}\n\\left|\\vec v\\right|=@a\\sqrt{@c}",
        lambda rng: {"a": rng.randint(2, 9), "c": rng.choice((2, 3, 5, 7))},
    ),
    Asked(
        "Evaluate $f(@a)$.",
        "@g",
        "f(@a)=@g\n@g\nf(@a) = @h+7 = @g\ny=@g",
        lambda rng: {**_number(rng), "a": rng.randint(2, 9)},
    ),
    Asked(
        "Find $(f\\circ g)(x)$ for $f(x)=x^2$ and $g(x)=x+@a$.",
        "x^2+@sx+@n",
        "(f\\circ g)(x)=x^2+@sx+@n\nf(g(x))=x^2+@sx+@n\nx^2+@sx+@n\nx^2 + @s x + @n",
        lambda rng: (lambda a: {"a": a, "s": 2 * a, "n": a * a})(rng.randint(2, 9)),
    ),
    Asked(
        "What is the area of the triangle? Let $[ABC]$ be its area.",
        "@g",
        "[ABC]=@g\n\\text{Area}=@g\nA=@g\n@g\\text{ square units}\n\\text{Area of }\\triangle ABC=@g\nS_{\\triangle ABC}=@g\n[\\triangle ABC]=@g\nK=@g",
        _number,
    ),
    Asked(
        "What is the measure of angle $ABC$ in degrees?",
        "@g",
        "\\angle ABC=@g^\\circ\n@g^\\circ\nm\\angle ABC=@g^{\\circ}\n\\angle B=@g\n@g\\text{ degrees}\n@g°\n\\measuredangle ABC=@g^\\circ",
        _number,
    ),
    Asked(
        "What is the probability?",
        r"\frac{@a}{1@c}",
        "P(A)=\\frac{@a}{1@c}\nP(\\text{win})=\\frac{@a}{1@c}\n\\frac{@a}{1@c}\nP=@a/1@c\n\\Pr(A)=\\frac{@a}{1@c}\nP(A\\cap B)=\\frac{@a}{1@c}\nP(X=@a)=\\frac{@a}{1@c}",
        lambda rng: {"a": rng.choice((2, 4, 6, 8)), "c": rng.choice((1, 3, 7, 9))},
    ),
    num=3,
)

dozens = asked(
    Asked(
        "How many dozen eggs does she need?\nHow many dozens of eggs are there?",
        "@a",
        "\\boxed{@a\\text{ dozen}}\n#### @a dozen\nThe answer is @a dozen.\n\\boxed{@a\\text{ dozen eggs}}\nThe answer is $@a$ dozen.\n@a dozen\n\\boxed{@a}\nShe needs @a dozen eggs.\n<answer>@a dozen</answer>\n\\boxed{@a\\text{ dozens}}\nThe final answer is @a dozen eggs.",
        _digits,
    ),
    Asked(
        "How many thousand tons were shipped?\nHow many thousands of people live there?",
        "@a",
        "\\boxed{@a\\text{ thousand}}\n#### @a thousand\nThe answer is @a thousand.\nThe answer is $@a$ thousand.\n\\boxed{@a}",
        _digits,
    ),
    Asked(
        "How many million dollars did it cost?",
        "@a",
        "\\boxed{@a\\text{ million}}\n\\boxed{@a\\text{ million dollars}}\n#### @a million\n\\boxed{\\$@a\\text{ million}}\nThe answer is @a million dollars.\n\\boxed{@a}",
        _digits,
    ),
    Asked(
        "What is the population?\nHow much is the estate worth?",
        "@a000000",
        "\\boxed{@a\\text{ million}}\nThe answer is $@a$ million.\nThe answer is @a million.\n\\boxed{@a,000,000}\n\\boxed{@a\\times10^6}\n#### @a million\n\\boxed{@a \\text{ million}}",
        _digits,
    ),
    Asked(
        "How many pairs of socks are there?",
        "@g",
        "\\boxed{@g\\text{ pairs}}\n#### @g pairs\nThe answer is @g pairs of socks.\n\\boxed{@g\\text{ pairs of socks}}\nThere are @g pairs of socks.",
        _number,
    ),
    Asked(
        "What percent of the class passed?",
        "@g",
        "\\boxed{@g\\%}\n\\boxed{@g\\text{ percent}}\n#### @g%\n#### @g percent\nThe answer is @g%.\nThe answer is $@g\\%$.\nThe answer is $@g$%.\n@g%\n\\boxed{@g}",
        _number,
    ),
)

after_formula = asked(
    Asked(
        "How far is it in km?",
        r"@g\text{ km}",
        "The answer is $@g$ km.\nThe answer is $@g\\text{ km}$.\nThe answer is $@g$ kilometers.\nThe answer is \\(@g\\) km.\nThe distance is \\(@g\\) km.\n$@g$ km\n\\boxed{@g} km\n$\\boxed{@g}$ kilometers\nSo the distance is $\\boxed{@g\\,\\text{km}}$.",
        _number,
    ),
    Asked(
        "Solve $(x-@a)(x+@b)=0$.",
        "@a,-@b",
        "The solutions are \\(x=@a\\) and \\(x=-@b\\).\nThe answer is \\(x=@a\\) and \\(x=-@b\\).\nThe answer is $x=@a$ or $x=-@b$.\nThe answer is $@a$ and $-@b$.\nThe answer is $@a, -@b$.\n$x=@a$ and $x=-@b$\n$x = @a, x = -@b$\nAnswer: $x_1=@a$, $x_2=-@b$\n\\boxed{x=@a} and \\boxed{x=-@b}\nSo either $x=@a$ or $x=-@b$.\n\\boxed{x=@a,-@b}\nThe answer is x = @a or x = -@b.\nAnswer: @a, -@b",
        _digits,
    ),
    Asked(
        "What is the side?",
        r"@a\sqrt{@c}",
        "The answer is $@a$ $\\sqrt{@c}$.\nThe answer is $@a\\sqrt{@c}$.\nThe answer is $@a \\cdot \\sqrt{@c}$ cm.\nThe answer is @a√@c.\nThe answer is $@a$√$@c$.\nThe side is $@a\\sqrt{@c}$.",
        lambda rng: {"a": rng.randint(2, 9), "c": rng.choice((2, 3, 5, 7))},
    ),
    Asked(
        "Find the number.",
        "@g",
        "The answer is $@g$, as required.\nThe answer is $@g$ because $@h+7=@g$.\nThe answer is $@g$, since the rest is even.\nThe answer is $@g$. This is what we wanted.\nThe answer is $@g$ (see the figure).\nThe answer is $@g$, which is what we want.\nThe answer is \\(@g\\), obtained by adding.\nThe answer is $@g$!\nThe answer is therefore $@g$ as claimed.\nThe answer is @g, as required.\nThe answer is @g (see above).\nThe answer is @g because @h + 7 = @g.\nThe answer is @h + 7 = @g.\nThe total is @h+7 = @g.\nThe answer is just $@g$.\nThe answer is simply @g.\n$x=@g$. $\\blacksquare$\nSo $x = @g$. QED\nAnswer: **@g**.\n***@g***\nThe answer is ${@g}$.\nThe answer is $@g.$",
        _number,
    ),
    Asked(
        "How long does it take?",
        "@g minutes",
        "The answer is $@g$ minutes.\n\\boxed{@g} minutes\nThe answer is @g minutes.\nIt takes @g minutes.\nIt takes $@g$ minutes.\n\\boxed{@g\\text{ min}}\n@g min\n#### @g minutes\nThe answer is \\(@g\\) minutes.\nAnswer: @g minutes.",
        _number,
    ),
    num=3,
)

choices = asked(
    Asked(
        "Which is true? (A) one (B) two (C) three (D) four",
        "@g",
        r"""
\boxed{@g}
\boxed{(@g)}
\boxed{\text{@g}}
\boxed{\textbf{(@g)}}
\boxed{\text{(@g) two}}
\boxed{\textbf{(@g) }17}
\boxed{\mathrm{(@g)}}
\boxed{@g.\ 17}
The answer is (@g).
The answer is @g.
The answer is **@g**.
The answer is **(@g)**.
The correct answer is @g.
The correct option is (@g).
Answer: @g
Answer: (@g)
**Answer: @g**
Answer: @g) two
The answer is @g) two.
<answer>@g</answer>
<answer>(@g)</answer>
<answer>Option @g</answer>
#### @g
@g
(@g)
@g.
@g) two
The correct choice is @g.
The answer is option @g.
Final Answer: (@g)
Final Answer: The final answer is $@g$. I hope it is correct.
The best answer is @g.
So the correct answer is **@g**.
Therefore, the correct answer is (@g).
The answer is $\boxed{\textbf{(@g)}}$.
""",
        lambda rng: {"g": rng.choice("ABCD")},
    ),
    num=5,
)

outside = asked(
    Asked(
        "Describe the residue class.",
        r"n\equiv @a \pmod{@n}",
        "n \\equiv @a \\pmod{@n}\nn\\equiv @a\\pmod{@n}\nn\\equiv@a \\pmod {@n}\nn \\equiv @a\\ \\pmod{@n}\nn\\equiv{@a}\\pmod{@n}\nn \\equiv @a \\bmod @n\nn\\equiv @a \\mod @n\nn \\equiv @a \\ (\\text{mod } @n)",
        lambda rng: (lambda n: {"n": n, "a": rng.randint(1, n - 1)})(rng.randint(11, 19)),
    ),
    Asked("Which relation?", r"p \mid q", "p\\mid q\np \\mid q\np \\,\\mid\\, q\np|q\np \\mid  q"),
    Asked("Which relation?", r"AB \perp CD", "AB\\perp CD\nAB \\perp CD\nAB\\,\\perp\\,CD"),
    Asked(
        "Define the map.",
        r"x\mapsto x^2+@a",
        "x \\mapsto x^2+@a\nx\\mapsto x^{2}+@a\nx \\mapsto x^2 + @a\nx\\mapsto {x}^2+@a",
        _digits,
    ),
    Asked(
        "Negate it.",
        r"\exists x\forall y: x\ge y",
        "\\exists x \\forall y : x \\ge y\n\\exists x\\,\\forall y:\\ x\\ge y\n\\exists x\\forall y: x\\geq y",
    ),
    Asked(
        "Give the function.",
        r"\begin{cases} x+@a & x>0\\ -x & x\le 0\end{cases}",
        "\\begin{cases}x+@a&x>0\\\\-x&x\\le 0\\end{cases}\n\\begin{cases} x+@a & x>0 \\\\ -x & x \\leq 0 \\end{cases}\n\\begin{cases} x+@a, & x>0\\\\ -x, & x\\le 0\\end{cases}\nf(x)=\\begin{cases} x+@a & x>0\\\\ -x & x\\le 0\\end{cases}\n\\begin{cases} x+@a & \\text{if } x>0\\\\ -x & \\text{if } x\\le 0\\end{cases}\n\\begin{cases} x+@a & x>0\\\\[2pt] -x & x\\le 0\\end{cases}",
        _digits,
    ),
    Asked(
        "Which triangles?",
        r"\triangle ABC\sim\triangle DEF",
        "\\triangle ABC \\sim \\triangle DEF\n\\triangle{ABC}\\sim\\triangle{DEF}\n\\triangle ABC\\,\\sim\\,\\triangle DEF",
    ),
    Asked(
        "Distribution?",
        r"N(0,@a)",
        "N(0,@a)\nN(0, @a)\n\\mathcal{N}(0,@a)\nX\\sim N(0,@a)",
        _digits,
    ),
    num=2,
)

literals = asked(
    Asked(
        "What are the odds?",
        "@a to @b",
        "@a to @b\n@a:@b\n@a\\text{ to }@b\n\\text{@a to @b}",
        _digits,
    ),
    Asked(
        "What is the ratio of boys to girls?",
        "@a:@b",
        "@a:@b\n@a : @b\n@a\\text{ to }@b\n@a{:}@b\n@a to @b\n\\frac{@a}{@b}\n@q:@r\n\\text{@a:@b}",
        lambda rng: rng.choice(
            (
                {"a": 2, "b": 3, "q": 4, "r": 6},
                {"a": 3, "b": 5, "q": 9, "r": 15},
                {"a": 7, "b": 4, "q": 14, "r": 8},
            )
        ),
    ),
    Asked(
        "How many of them?",
        "@a out of 1@b",
        "@a out of 1@b\n\\text{@a out of 1@b}\n@a\\text{ out of }1@b",
        _digits,
    ),
    Asked(
        "When was it?", "2021-0@a-1@b", "2021-0@a-1@b\n\\text{2021-0@a-1@b}\n2021-@a-1@b", _digits
    ),
    Asked(
        "When was it?",
        "March @a",
        "March @a\n@a March\nMarch @ath\n\\text{March @a}\n@a\\text{ March}\nMar. @a",
        lambda rng: {"a": rng.randint(4, 19)},
    ),
    Asked(
        "What was the score?",
        "@a-@b",
        "@a-@b\n@a–@b\n@a:@b\n@a - @b\n@a\\text{-}@b\n@a to @b",
        _digits,
    ),
    Asked(
        "Which version?",
        "@a.1@b.@c",
        "@a.1@b.@c\nv@a.1@b.@c\n\\text{@a.1@b.@c}\n\\texttt{@a.1@b.@c}",
        _digits,
    ),
    Asked(
        "What time is it?",
        "@a:3@b p.m.",
        "@a:3@b p.m.\n@a:3@b PM\n@a:3@b\\text{ p.m.}\n@a:3@b\\text{ PM}\n@a:3@b\n@a:3@b pm\n\\text{@a:3@b PM}",
        _digits,
    ),
    Asked(
        "How fast?",
        "@g mph",
        "@g mph\n@g\\text{ mph}\n@g miles per hour\n@g\\text{ miles per hour}\n@g",
        _number,
    ),
    num=2,
)

equal_forms = asked(
    Asked(
        "Find the exact value.",
        r"\frac{\sqrt6-\sqrt2}{4}",
        "\\frac{\\sqrt{6}-\\sqrt{2}}{4}\n\\frac{\\sqrt2(\\sqrt3-1)}{4}\n\\frac{\\sqrt{3}-1}{2\\sqrt{2}}\n\\frac{1}{4}(\\sqrt6-\\sqrt2)\n\\frac{\\sqrt{6}}{4}-\\frac{\\sqrt{2}}{4}",
    ),
    Asked(
        "Rationalize $\\frac{1}{\\sqrt{@m}-1}$.",
        r"\frac{\sqrt{@m}+1}{@n}",
        "\\frac{\\sqrt{@m}+1}{@n}\n\\frac{1+\\sqrt{@m}}{@n}\n\\frac{1}{@n}(1+\\sqrt{@m})\n\\frac{1}{@n}+\\frac{\\sqrt{@m}}{@n}",
        lambda rng: (lambda m: {"m": m, "n": m - 1})(rng.choice((3, 5, 6, 7, 10, 11))),
    ),
    Asked(
        "Factor $x^2+@sx+@p$.",
        "(x+@a)(x+@b)",
        "(x+@a)(x+@b)\n(x+@b)(x+@a)\n(x + @b)(x + @a)\nx^2+@sx+@p=(x+@a)(x+@b)\n\\left(x+@b\\right)\\left(x+@a\\right)\n(@a+x)(@b+x)",
        _digits,
    ),
    Asked(
        "Find the line through the points.",
        "y=@ax+@b",
        "y=@ax+@b\n@ax-y+@b=0\ny-@b=@ax\ny = @b + @ax\n-@ax+y=@b\nf(x)=@ax+@b\n@ax - y = -@b",
        _digits,
    ),
    Asked(
        "Find the equation of the circle.",
        "(x-@a)^2+(y+@b)^2=@q",
        "(x-@a)^2+(y+@b)^2=@q\n(y+@b)^2+(x-@a)^2=@q\n(x - @a)^{2} + (y + @b)^{2} = @q\n(x-@a)^2+(y+@b)^2-@q=0",
        _digits,
    ),
    Asked(
        "Solve for $x$: $@a^x=@b$.",
        r"\log_{@a} @b",
        "\\log_{@a} @b\n\\frac{\\ln @b}{\\ln @a}\n\\frac{\\log @b}{\\log @a}\nx=\\log_{@a}(@b)\n\\log_{@a}{@b}",
        _digits,
    ),
    Asked(
        "In how many ways can $@k$ of $@n$ people be chosen?",
        "@g",
        "@g\n\\binom{@n}{@k}=@g\nC(@n,@k)=@g\n{@n \\choose @k} = @g\n@g\\text{ ways}\n\\dbinom{@n}{@k} = @g",
        lambda rng: (lambda n, k: {"n": n, "k": k, "g": comb(n, k)})(
            rng.randint(9, 14), rng.randint(3, 5)
        ),
    ),
    Asked(
        "Find all solutions.",
        r"x=\frac{@a\pm\sqrt{@m}}{2}",
        "\\frac{@a\\pm\\sqrt{@m}}{2}\nx=\\frac{@a+\\sqrt{@m}}{2},\\frac{@a-\\sqrt{@m}}{2}\n\\frac{@a+\\sqrt{@m}}{2}\\text{ and }\\frac{@a-\\sqrt{@m}}{2}\nx = \\dfrac{@a \\pm \\sqrt{@m}}{2}\n\\left\\{\\frac{@a-\\sqrt{@m}}{2},\\frac{@a+\\sqrt{@m}}{2}\\right\\}\nx_{1,2}=\\frac{@a\\pm\\sqrt{@m}}{2}",
        lambda rng: {"a": rng.randint(2, 9), "m": rng.choice((5, 13, 17, 21, 29))},
    ),
    Asked(
        "Compute $(@a+@bi)(@a-@bi)x$.",
        "@nx",
        "@nx\n@n x\nx\\cdot@n",
        lambda rng: (lambda a, b: {"a": a, "b": b, "n": a * a + b * b})(
            *rng.sample(range(2, 9), 2)
        ),
    ),
    Asked(
        "Simplify $\\frac{1}{x}+\\frac{1}{x+@a}$.",
        r"\frac{2x+@a}{x(x+@a)}",
        "\\frac{2x+@a}{x(x+@a)}\n\\frac{2x+@a}{x^2+@ax}\n\\frac{@a+2x}{x(x+@a)}\n\\dfrac{2x+@a}{x(@a+x)}",
        _digits,
    ),
    Asked(
        "Find the volume in terms of $\\pi$.",
        r"\frac{@q\pi}{3}",
        "\\frac{@q\\pi}{3}\n\\frac{@q}{3}\\pi\n\\frac{@q \\pi}{3}\\text{ cm}^3\nV=\\frac{@q}{3}\\pi\n\\frac{1}{3}\\cdot @q\\pi",
        lambda rng: {"q": rng.choice((4, 8, 10, 16, 20, 32, 40))},
    ),
    Asked(
        "What is the sum of the series?",
        r"\frac{@a}{@m}",
        "\\frac{@a}{@m}\n@a/@m\n\\frac{@a}{@m}.\nS=\\frac{@a}{@m}\n\\frac{@a}{@m}=\\frac{@a}{@m}",
        lambda rng: {"a": rng.choice((2, 4, 8)), "m": rng.choice((7, 9, 11, 13))},
    ),
    num=3,
)

tags_and_markdown = asked(
    Asked(
        "What is the remainder?\nFind the total.",
        "@g",
        r"""
<answer>The remainder is @g.</answer>
<answer>The total is @g.</answer>
<answer>The remainder is @g</answer>
<answer>So the answer is @g.</answer>
<answer>Therefore, the remainder is @g.</answer>
<answer>@h + 7 = @g</answer>
<answer>$@g$</answer>
<answer>\(@g\)</answer>
<answer>\[@g\]</answer>
<answer>**@g**</answer>
<answer>x = @g</answer>
<answer>¶\boxed{@g}¶</answer>
<answer> @g. </answer>
<answer>The final answer is \boxed{@g}.</answer>
<think>hm</think><answer>@g</answer>
<think>¶12? no¶</think>¶<answer>¶@g¶</answer>
## Answer¶¶@g
## Final Answer: @g
**Final Answer**: @g
**Final answer: @g**
**The answer is @g.**
*Answer:* $@g$
> **@g**
`@g`
**Answer**¶¶$$@g$$
### Answer:¶¶\[¶@g¶\]
Final Answer:¶@g
The final answer is¶¶$$\boxed{@g}$$
$$¶\boxed{@g}¶$$
\begin{align*}¶x&=@h+7\\¶&=\boxed{@g}¶\end{align*}
\[x = @h + 7 = \boxed{@g}.\]
\begin{aligned}x&=\boxed{@g}\end{aligned}
Thus, $x = @g$.
Thus, the remainder is $@g$.
So $x = \boxed{@g}$, and we are done.
Hence, the answer is $\boxed{@g}$. $\square$
Result: \boxed{@g}
✅ \boxed{@g}
\boxed{@g} ✓
🎉 The answer is @g.
The answer is @g! 🎉
""",
        _number,
    ),
    num=5,
)

number_words = asked(
    Asked(
        "How many are there?",
        "7",
        "\\boxed{\\text{seven}}\nseven\nThe answer is seven.\n<answer>seven</answer>\n\\boxed{7}\n#### seven\nSeven\nAnswer: seven",
    ),
    Asked(
        "How many are there?",
        "12",
        "\\boxed{\\text{twelve}}\ntwelve\nThe answer is twelve.\n\\boxed{12}\nThe answer is twelve (12).\nAnswer: Twelve",
    ),
    Asked(
        "How many kittens are there?",
        "3",
        "\\boxed{\\text{three}}\nThe answer is three.\nThe answer is three kittens.\n\\boxed{\\text{three kittens}}\nthree kittens\nThere are 3 kittens.",
    ),
)

math_golds = asked(
    Asked(
        "Find the point.",
        r"\left(@a,\frac{@b}{1@c}\right)",
        "\\left(@a,\\frac{@b}{1@c}\\right)\n(@a, @b/1@c)\n\\left( @a, \\dfrac{@b}{1@c} \\right)\n(x,y)=\\left(@a,\\tfrac{@b}{1@c}\\right)\nx=@a, y=\\frac{@b}{1@c}",
        lambda rng: {
            "a": rng.randint(2, 9),
            "b": rng.choice((2, 4, 8)),
            "c": rng.choice((1, 3, 7, 9)),
        },
    ),
    Asked(
        "How many are there?",
        r"@a,\!@b00",
        "@a@b00\n@a,@b00\n@a{,}@b00\n@a\\,@b00\n@a,\\!@b00\n@a,@b00.",
        _digits,
    ),
    Asked(
        "On what day?",
        r"\text{Friday}",
        "\\text{Friday}\nFriday\n\\textbf{Friday}\n\\mathrm{Friday}\nfriday\nFriday.",
    ),
    Asked(
        "What is the parity?",
        r"\text{even}",
        "\\text{even}\neven\n\\text{Even}\nEven.\n\\textit{even}",
    ),
    Asked(
        "What is the side length?",
        r"@a\sqrt{@c}+@b",
        "@a\\sqrt{@c}+@b\n@b+@a\\sqrt{@c}\n@b + @a \\sqrt{@c}\n@a\\sqrt@c+@b\n@b+@a\\cdot\\sqrt{@c}\n@b+@a\\sqrt{@c}\\text{ cm}\n@a√@c + @b",
        lambda rng: {"a": rng.randint(2, 9), "b": rng.randint(2, 9), "c": rng.choice((2, 3, 5, 7))},
    ),
    Asked(
        "Find the polynomial.",
        "x^3+@ax-@b",
        "x^3+@ax-@b\n@ax+x^3-@b\nx^{3}+@a x-@b\np(x) = x^3 + @ax - @b\nP(x)=x^3+@ax-@b\nx^3 + 0x^2 + @ax - @b\n-@b + @ax + x^3",
        _digits,
    ),
    Asked(
        "Find the complex number.",
        "-@a+@bi",
        "-@a+@bi\n@bi-@a\n-@a + @bi\nz=-@a+@bi\n-@a+@b i\n-@a + @b\\mathrm{i}",
        _digits,
    ),
    Asked(
        "What is the angle?",
        r"@g^\circ",
        "@g^\\circ\n@g\n@g°\n@g^{\\circ}\n@g\\text{ degrees}\n\\theta=@g^\\circ\n@g\\degree\n\\angle A = @g^{\\circ}",
        _number,
    ),
    Asked(
        "Find the probability.",
        r"\frac{@b}{1@c}",
        "\\frac{@b}{1@c}\n@b/1@c\n\\dfrac{@b}{1@c}\n\\tfrac{@b}{1@c}\nP=\\frac{@b}{1@c}\n\\frac{@b}{1@c}.\n{\\frac{@b}{1@c}}\n@b⁄1@c",
        lambda rng: {"b": rng.choice((2, 4, 8)), "c": rng.choice((1, 3, 7, 9))},
    ),
    Asked(
        "What time?",
        r"@a\!:\!@b0\text{ a.m.}",
        "@a:@b0 a.m.\n@a:@b0 AM\n@a:@b0\\text{ am}\n@a:@b0\n@a\\!:\\!@b0\\text{ a.m.}\n@a:@b0\\text{ A.M.}",
        lambda rng: {"a": rng.randint(2, 9), "b": rng.randint(1, 5)},
    ),
    Asked(
        "Find the vector.",
        r"\begin{pmatrix} @a \\ -@b \\ @c \end{pmatrix}",
        "\\begin{pmatrix}@a\\\\-@b\\\\@c\\end{pmatrix}\n\\begin{bmatrix} @a \\\\ -@b \\\\ @c \\end{bmatrix}\n\\left(\\begin{array}{c}@a\\\\-@b\\\\@c\\end{array}\\right)\n\\begin{pmatrix} @a \\\\\\\\ -@b \\\\\\\\ @c \\end{pmatrix}\n\\mathbf{v}=\\begin{pmatrix} @a\\\\ -@b\\\\ @c \\end{pmatrix}\n\\begin{pmatrix}\n@a \\\\\n-@b \\\\\n@c\n\\end{pmatrix}".replace(
            "\n@a \\\\\n-@b \\\\\n@c\n\\end", "¶@a \\\\¶-@b \\\\¶@c¶\\end"
        ).replace("\\begin{pmatrix} @a \\\\\\\\ -@b \\\\\\\\ @c \\end{pmatrix}\n", ""),
        _digits,
    ),
    Asked(
        "Solve for $x$.",
        r"\frac{-@a+\sqrt{@c}}{2}",
        "\\frac{-@a+\\sqrt{@c}}{2}\n\\frac{\\sqrt{@c}-@a}{2}\nx=\\frac{-@a+\\sqrt{@c}}{2}\n-\\frac{@a}{2}+\\frac{\\sqrt{@c}}{2}\n\\dfrac{\\sqrt{@c} - @a}{2}",
        lambda rng: {"a": rng.choice((3, 5, 7, 9)), "c": rng.choice((5, 13, 17, 29))},
    ),
    Asked(
        "List all of them.",
        "@a,@b,@c",
        "@a,@b,@c\n@c, @a, @b\n@a, @b, and @c\n\\{@a,@b,@c\\}\n@a, @b \\text{ and } @c\n@a,\\ @b,\\ @c\nx=@a,@b,@c\n@a, @b, @c.",
        _digits,
    ),
    Asked(
        "Find the smallest value.",
        r"-\frac{@b}{1@c}",
        "-\\frac{@b}{1@c}\n\\frac{-@b}{1@c}\n-@b/1@c\n-\\dfrac{@b}{1@c}\nx=-\\frac{@b}{1@c}\n−\\frac{@b}{1@c}",
        lambda rng: {"b": rng.choice((2, 4, 8)), "c": rng.choice((1, 3, 7, 9))},
    ),
    Asked(
        "How much is the tip?",
        r"\$@a.@b0",
        "\\$@a.@b0\n@a.@b0\n@a.@b\n@a.@b0\\text{ dollars}\n@a.@b0 dollars",
        _digits,
    ),
    Asked(
        "Find the general solution.",
        r"y=Ce^{@ax}",
        "y=Ce^{@ax}\nCe^{@ax}\ny = C e^{@a x}\ny(x)=Ce^{@ax}\ny=C\\cdot e^{@ax}\ny=C\\exp(@ax)",
        _digits,
    ),
    num=3,
)

conversions = asked(
    Asked(
        "Convert @h km/h to m/s.",
        "@g m/s",
        "@g m/s\n@g\\text{ m/s}\n@g\\,\\mathrm{m/s}\n@g\n@g meters per second\nv=@g\\text{ m/s}\n@h\\text{ km/h}=@g\\text{ m/s}",
        lambda rng: (lambda k: {"g": 5 * k, "h": 18 * k})(rng.randint(2, 9)),
    ),
    Asked(
        "The film takes @g hours. How many minutes is that?",
        r"@h\text{ minutes}",
        "@h\\text{ minutes}\n@h\n@h min\n@h minutes\nt=@h\\text{ min}",
        lambda rng: (lambda k: {"g": k, "h": 60 * k})(rng.randint(11, 40)),
    ),
    Asked(
        "Write 0.@a75 as a fraction in lowest terms.",
        r"\frac{@m}{40}",
        "\\frac{@m}{40}\n@m/40\n0.@a75=\\frac{@m}{40}\n\\dfrac{@m}{40}\nx=\\frac{@m}{40}",
        lambda rng: (lambda a: {"a": a, "m": (100 * a + 75) // 25})(rng.choice((1, 3, 4, 6, 7, 9))),
    ),
    Asked(
        "Simplify the ratio @x:@y.",
        "@a:@b",
        "@a:@b\n@a : @b\n@x:@y=@a:@b\n@a\\text{ to }@b",
        lambda rng: (lambda a, b, k: {"a": a, "b": b, "x": k * a, "y": k * b})(
            *rng.choice(((2, 7), (3, 11), (5, 13), (4, 9), (6, 17))), rng.randint(3, 9)
        ),
    ),
    Asked(
        "Write @a5000 in scientific notation.",
        r"@a.5\times 10^4",
        "@a.5\\times 10^4\n@a.5\\cdot 10^{4}\n@a.5 \\times 10^{4}\n@a.5e4\n@a5000=@a.5\\times 10^4",
        _digits,
    ),
    Asked(
        "A recipe needs $@a\\frac{1}{2}$ cups of flour. How many cups are needed for one batch?",
        "@a.5",
        "@a.5\n@a\\frac{1}{2}\n@a\\frac12\\text{ cups}\n@a.5\\text{ cups}\n@a 1/2",
        _digits,
    ),
    Asked(
        "Write $\\frac{@g}{100}$ as a percentage.",
        r"@g\%",
        "@g\\%\n@g%\n@g\n@g\\text{ percent}\n\\frac{@g}{100}=@g\\%",
        lambda rng: {"g": rng.choice((11, 13, 17, 19, 23, 29, 31, 37, 41, 43))},
    ),
    Asked(
        "It takes 2 hours to paint a wall. How long do @a walls take?",
        r"@g\text{ hours}",
        "@g\\text{ hours}\n@g\n@g hours\n@g h\n@m\\text{ minutes}",
        lambda rng: (lambda a: {"a": a, "g": 2 * a, "m": 120 * a})(rng.randint(2, 9)),
    ),
    num=3,
)

FAMILIES: Mapping[str, Callable[[Random], Draws]] = {
    "asked: tidier": tidier,
    "asked: inequalities": inequalities,
    "asked: calculus": calculus,
    "asked: labels": labels,
    "asked: outside the grammar": outside,
    "asked: literals": literals,
    "asked: equal forms": equal_forms,
    "asked: math golds": math_golds,
    "asked: conversions": conversions,
}
WHOLE: Mapping[str, Callable[[Random], Draws]] = {
    "asked: gsm8k": gsm8k,
    "asked: money": money,
    "asked: competition": competition,
    "asked: dozens": dozens,
    "asked: after a formula": after_formula,
    "asked: choices": choices,
    "asked: tags and markdown": tags_and_markdown,
    "asked: number words": number_words,
}
ALL = (*FAMILIES, *WHOLE)
