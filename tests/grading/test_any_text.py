"""Properties: any text gets a verdict in bounded time, and none is executed."""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rlmods.grading.grader import verify

any_text = settings(max_examples=100, deadline=None, derandomize=True)
MAX_SECONDS = 1.0
"""Processor time of this thread, independent of other work on the machine."""


def parts(text: str) -> list[str]:
    return text.split()


TOKENS = [
    *"{}()[]|!%^_'+-*/=<>,;:.&$~eixk017",
    *(
        token + " "
        for token in parts(
            r"\frac \sqrt \sin \ln \pm \mp \cup \cap \setminus \in \le \cdot \bmod \pi \infty "
            r"\emptyset \lfloor \rfloor"
        )
    ),
    *parts(
        r"\frac{ \sqrt{ \sqrt[3]{ \log_ \tan^{-1} \min( \binom{ \pmod{7} \{ \} \left( \right) "
        r"f( 101_2 km kg/ cm^{2} ^\circ \text{cm}"
    ),
    *parts(
        r"\sum_{k=1}^{2000} \prod_{k=1}^{50} \sum_{k=1}^{n} \begin{pmatrix} \end{pmatrix} "
        r"\begin{array}{c \\ \text{ \mathrm{ {7\choose"
    ),
    *parts(
        r"10 999999 1e999 1e-999 0.5 1,000 ٣ ² √ ∞ ± 0.1\overline{6} .\overline{3} \boxed{ "
        r"<answer> </answer> <think> </think>"
    ),
    *("9" * 60, "#### ", "answer is ", "\n", " ", " and ", " or ", "B) ", "\ud800", "\x00"),
]
pieces = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map("".join)
long_texts = st.lists(st.sampled_from(TOKENS), max_size=400).map("".join)
nested_texts = st.builds(
    lambda a, b, c, times: a * times + b + c * times, pieces, pieces, pieces, st.integers(2, 400)
)
texts = (st.text(max_size=300) | long_texts | nested_texts).map(lambda text: text[:1500])
GOLDS = parts(
    r"17 0.5 \frac{\pi}{6} x^2 y=2x+1 x<3 (1,2) [0,1) \{1,2,3\} 1,2,3,4,5 1\pm\sqrt2 B "
    r"Monday 5\text{cm} 101_2 3:4 (0,1)\cup(2,3)"
)
GOLDS += [r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"]
HEAVY = [
    *("x+x(" * depth + "x" + ")" * depth for depth in (8, 14, 20, 28)),
    *(
        piece * 390 + "2"
        for piece in (
            r"\sqrt",
            r"\frac",
            "-",
            r"\sin ",
            "x_",
            "x ",
            r"\log_",
            r"\lfloor ",
            "|",
            "(",
            r"\{",
            r"\pm ",
        )
    ),
    *("5" + piece * 390 for piece in ("!", "%", "^2", "'", " x")),
    *(piece * 45 + "2" + "}" * 45 for piece in ("2^{", r"\sqrt{", r"\frac{1}{1+", "x_{")),
    *(separator.join(["[1,2]"] * 60) for separator in (r"\cup ", r"\cap ", ",")),
    r"\cup ".join(f"[{2 * n},{2 * n + 1})" for n in range(60)),
    r"\cup ".join(rf"[\sqrt{{{2 * n}}},\sqrt{{{2 * n + 1}}}]" for n in range(25)),
    r"\sum_{k=1}^{2000}\binom{1000000}{2000}",
    r"\sum_{k=1}^{2000}\binom{k}{1/3}",
    r"\sum_{k=1}^{2000}k!",
    r"\sum_{k=1}^{2000}(\frac{k}{3})!",
    r"\sum_{k=1}^{2000}\frac{7^{10000}}{3^{9999}+k}",
    ",".join([r"\sum_{k=1}^{1200}\sin k"] * 10),
    r"\sum_{k=1}^{2000}" * 20 + r"\pi",
    r"\prod_{k=1}^{50}\infty f(x)" * 20,
    ",".join(rf"\sqrt{{{n}}}" for n in range(60)),
    *(
        rf"\int_0^1 {body} dx"
        for body in (
            r"\sin(1/x)",
            r"x^{x^{x}}",
            "1/x",
            r"\int_0^1 xy dy",
            r"\sum_{n=1}^\infty x^n",
            "0",
        )
    ),
    *(
        rf"\sum_{{n=1}}^\infty {body}"
        for body in (
            r"\frac1n",
            "n",
            "(-1)^n",
            r"\frac{1}{n\ln^2 (n+1)}",
            r"\sum_{k=1}^\infty \frac{1}{n^2k^2}",
        )
    ),
    "+".join([r"\int_0^1 \sqrt x dx"] * 40),
    *parts(r"1e9999 1e-9999 1e999 .\overline{3} 99^{99^{99}} e^{e^{e^{e^{e}}}} 1000!!!!"),
    *("9" * 400, r"\text{" + "9" * 900 + "}", "5" + " " * 900),
]


def boxed(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def timed_verify(answer: str, gold: str) -> object:
    start = time.thread_time()
    verdict = verify(answer, gold)
    assert time.thread_time() - start < MAX_SECONDS
    return verdict


@pytest.fixture
def without_other_garbage() -> Iterator[None]:
    """The collector, whose time counts, does not search what other tests left in this process."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("without_other_garbage")
class TestAnyText:
    @any_text
    @given(texts, texts | st.sampled_from(GOLDS))
    def test_gets_a_verdict(self, text, other):
        for answer, gold in ((text, other), (boxed(text[:900]), other), (boxed(other), text)):
            assert timed_verify(answer, gold) in (True, False)

    @pytest.mark.parametrize("text", HEAVY, ids=range(len(HEAVY)))
    def test_in_bounded_time(self, text):
        """Texts that can take minutes, all memory or the whole stack without limits."""
        for gold in ("17", "x^2", "[1,3]", ",".join(map(str, range(10)))):
            assert timed_verify(boxed(text), gold) is False
            assert timed_verify(boxed(gold), text) is False


WATCHED = r"""
import json, os, sys
from rlmods.grading.grader import verify

texts, golds = json.load(sys.stdin)
for gold in golds:
    verify(r"\boxed{\sin(1)+\pi x}", gold)  # trigger lazy imports
events, watching = [], True
sys.addaudithook(lambda event, args: events.append(f"{event} {args}"[:200]) if watching else None)
verdicts = [verify(form.replace("?", text), gold) for text in texts for gold in golds for form in ("?", r"\boxed{?}", "<answer>?</answer>")]
verdicts += [verify(r"\boxed{?}".replace("?", gold), text) for text in texts for gold in golds]
seen = list(events)
open("control", "w").close()
watching = False
json.dump({"right": sum(verdicts), "seen": seen, "control": events[len(seen) :]}, sys.stdout)
"""
CODE = [
    "__import__('os').system('touch X')",
    "__import__('subprocess').Popen(['touch', 'X'])",
    "open('X', 'w').write('1')",
    "eval(compile('open(\"X\",\"w\")', '', 'exec'))",
    "exec(\"import os; os.mkdir('X')\")",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "lambda: open('X', 'w')",
    "sympify('1+1')",
    "Symbol('x').subs(x, open('X','w'))",
    "Integer(1).__class__.__init__.__globals__['sys'].modules['os'].system('touch X')",
    'parse_expr(\'__import__("os").system("touch X")\')',
    "{0.__class__.__init__.__globals__}",
    "%(X)s %s %d {X} {0!r:>{width}}",
    r"\input{/etc/passwd}",
    r"\include{X}",
    r"\immediate\write18{touch X}",
    r"\openout1=X \write1{1} \closeout1",
    r"\def\x{\x\x}\x",
    r"\catcode`\@=11",
    r"\usepackage{shellesc}\ShellEscape{touch X}",
    r"\directlua{os.execute('touch X')}",
    r"\href{file:///etc/passwd}{5}",
    "`touch X`",
    "$(touch X)",
    "5; touch X",
    "5 | tee X",
    "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    "cos\nsystem\n(S'touch X'\ntR.",
    "!!python/object/apply:os.system ['touch X']",
    "\x00\x1b]0;X\x07",
]


def test_no_text_is_executed(tmp_path):
    """Grading opens no file, import, process or socket, and compiles no code. In a process of its
    own, as audit hooks cannot be removed."""
    python, root = [sys.executable, "-c", WATCHED], str(Path(__file__).parents[2])
    sent, env = json.dumps([CODE, GOLDS]), {"PYTHONPATH": root}
    done = subprocess.run(
        python,
        input=sent,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=env,
    )
    result = json.loads(done.stdout)
    assert result["seen"] == []
    assert result["right"] == 0
    assert any("control" in event for event in result["control"])
    assert [path.name for path in tmp_path.iterdir()] == ["control"]
