from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.grading.answer_form import FORMS, has_form
from rlmods.grading.pool import NOT_STARTED, Outcome
from rlmods.grading.reasoning_gym_scorer import score
from rlmods.grading.sandbox.expressions import RefusedError, evaluate, rational
from rlmods.grading.sandbox.run import BOOT
from rlmods.reward import TaskScore
from tests.reward.samples import response


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmods.reward.task_score.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'rlmods\[reasoning_gym\]'"):
        TaskScore()


def test_uses_the_scorer_of_the_task() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = {
        "question": "4 - 1 - 7 =",
        "answer": "-4",
        "metadata": {"source_dataset": "chain_sum", "expression": "4 - 1 - 7"},
    }
    texts = ["<answer>-4</answer>", "<answer>4</answer>", "<think>-4", "-4"]
    rows = [response(text, task="chain_sum", entry=entry) for text in texts]
    scores = TaskScore(workers=1)(
        [*rows, response("-4"), response("5", task="no such task", entry={})]
    )
    assert scores.correct == [True, False, False, True, None, False]
    assert [scores[row] for row in (0, 2, 4, 5)] == [1.0, 0.0, None, 0.0]
    assert scores.counts == {"timeouts": 0, "errors": 1, "not_started": 0}


def test_partial_scores_are_paid_on_request() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = {
        "question": "50 + 5 =",
        "answer": "55",
        "metadata": {"source_dataset": "chain_sum", "expression": "50 + 5"},
    }
    rows = [
        response(f"<answer>{text}</answer>", task="chain_sum", entry=entry)
        for text in ("55", "not 55", "54, 55", "7", "55")
    ]
    strict, partial = TaskScore(workers=1)(rows), TaskScore(workers=1, partial=True)(rows)
    assert strict.values == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert all(0 < partial[row] < 0.99 for row in (1, 2))
    assert strict.correct == partial.correct == [True, False, False, False, True]


def test_a_nearly_right_answer_is_not_paid() -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = next(
        e for e in gym.create_dataset("game_of_life", size=20, seed=3) if "1" in e["answer"]
    )
    wrong = entry["answer"].replace("1", "0", 1)
    rows = [
        response(f"<answer>{text}</answer>", task="game_of_life", entry=entry)
        for text in (entry["answer"], wrong)
    ]
    assert TaskScore(workers=1)(rows).values == [1.0, 0.0]
    assert TaskScore(workers=1, threshold=0.9)(rows).correct == [True, True]
    assert 0.9 < TaskScore(workers=1, partial=True)(rows)[1] < 1.0


@pytest.mark.parametrize("task", ["n_queens", "tower_of_hanoi", "palindrome_partitioning"])
def test_boards_and_long_answers_are_paid(task: str) -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = max(gym.create_dataset(task, size=10, seed=31), key=lambda entry: len(entry["answer"]))
    assert TaskScore(workers=1)(
        [response(f"<answer>{entry['answer']}</answer>", task=task, entry=entry)]
    ).values == [1.0]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>_ _ Q _\n_ Q _ _</answer>", "_ _ Q _\n_ Q _ _"),
        ("_ _ Q _", "_ _ Q _"),
        ("<answer>\n__Q\n</answer>", "__Q"),
        ("<answer>```text\n_ Q\nQ _\n```</answer>", "_ Q\nQ _"),
        ("<answer>```\n" + "_ " * 20_000 + "```</answer>", None),
        ("<answer>**5**</answer>", "5"),
        ("<answer>`a b`</answer>", "a b"),
        ("The answer is **5**", "5"),
        ("\\boxed{5}", "5"),
        ("<answer>\\boxed{5}</answer>", "5"),
        ("<answer>5</answer> or 6", "5, 6"),
        ("<answer>4</answer> <answer>5</answer>", "5"),
        ("<answer>" + "x " * 600 + "</answer>", ("x " * 600).strip()),
        ("<answer>" + "x " * 20_000 + "</answer>", None),
        ("x " * 600, None),
        ("<think><answer>_ 5</answer>", None),
        ("<think>4</think><answer>_ 5</answer>", "_ 5"),
        ("", None),
    ],
)
def test_answers_are_taken_as_they_are_written(
    text: str, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    monkeypatch.setattr(
        TaskScore, "_score", lambda _, pool, calls: [Outcome("ok", 0.0) for _ in calls]
    )
    assert TaskScore()([response(text, task="n_queens", entry={})]).columns["extracted"] == [answer]


def test_equal_answers_to_a_prompt_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    asked: list[Any] = []

    def outcomes(_: object, pool: object, calls: list[Any]) -> list[Outcome]:
        asked.extend((task, answer) for ((_, task, answer, _),) in calls)
        return [
            Outcome("timeout") if answer == "3" else Outcome("ok", 1.0)
            for ((_, _, answer, _),) in calls
        ]

    monkeypatch.setattr(TaskScore, "_score", outcomes)
    one, other = {"answer": "1"}, {"answer": "1"}
    scores = TaskScore()(
        [
            response(text, task="gcd", entry=entry)
            for text, entry in zip("11233", (one, one, one, one, one), strict=True)
        ]
    )
    assert scores.values == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert scores.counts == {"timeouts": 2, "errors": 0, "not_started": 0}
    assert asked == [("gcd", "1"), ("gcd", "2"), ("gcd", "3")]
    TaskScore()([response("1", task="gcd", entry=entry) for entry in (one, other)])
    assert asked[3:] == [("gcd", "1")] * 2


def test_answers_that_were_not_begun_abstain(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    monkeypatch.setattr(
        TaskScore, "_score", lambda *_: [Outcome("ok", 1.0), Outcome("timeout"), NOT_STARTED]
    )
    scores = TaskScore()([response(text, task="gcd", entry={"answer": "1"}) for text in "123"])
    assert scores.values == [1.0, 0.0, None]
    assert scores.correct == [True, False, None]
    assert scores.counts == {"timeouts": 1, "errors": 0, "not_started": 1}


FORMS_OF_ANSWERS = [
    (
        "countdown",
        "94*4 - 61 - 6",
        ("-6 + 94*4 - 61", "(94 * 4) - (61 + 6)"),
        (
            "floor(pi)*0 + 309",
            "94*4 - 61 - 6 + 0",
            "94**4",
            "(6*61*94*4)*(E-E) + 309",
            "94*4 - 61",
            "94//4",
            "9 4*4-6 1-6",
        ),
        {"numbers": [6, 61, 94, 4], "target": 309},
    ),
    (
        "puzzle24",
        "10*(8 - 5) - 6",
        ("(8-5)*10-6",),
        ("1*1*6*4", "8*6/(10/5)+0", "10 + 8 + 6", "5*(10-6)+8-4+0"),
        {"numbers": [8, 5, 10, 6]},
    ),
    (
        "number_sorting",
        "['1.0', '2.5']",
        ("[1.0, 2.5]", "['1.0', '2.5']"),
        (
            "[NaN, nan]",
            "[1.0, 2.5, 3]",
            "not [1.0, 2.5]",
            "[1e999, 2]",
            "[1.5, 2.5]",
            "[true, 2.5]",
            "[" * 20_000,
        ),
        {},
    ),
    (
        "number_format",
        "741787256.323",
        ("741,787,256.323", "7.41787256323e+08", "741787256.3230"),
        ("741787256.324", "741787256.313", "x"),
        {},
    ),
    (
        "decimal_arithmetic",
        "2.98141124210",
        ("2.9814112421", "2.981", "2.98141124210", "2.981411242101"),
        ("2.982", "2.98241", "2.98141125", "nan", "not 2.981"),
        {},
    ),
    ("survo", "6 9\n4 1", ("6 9\n4 1",), ("not 6 9\n4 1",), {}),
    ("kakurasu", "0 1\n1 1", ("0 1\n1 1",), ("no 0 1\n1 1",), {}),
    (
        "complex_arithmetic",
        "-15.0 + 3.0i",
        ("-15 + 3i", "-15+3j"),
        ("nan", "inf", "not -15.0 + 3.0i"),
        {},
    ),
    ("game_of_life_halting", "False", ("False", "false."), ("no idea", "0"), {}),
    (
        "gsm_symbolic",
        "1288",
        ("1288", "1,288", "$1288", "1288.0"),
        ("not 1288 but 7", "1288 or 7", "1288 7", "1289"),
        {},
    ),
    (
        "coin_flip",
        "9.5e-07",
        ("9.5e-07", "0.00000095", "19/20000000"),
        ("0", "9.5", "not 9.5e-07"),
        {},
    ),
    (
        "fraction_simplification",
        "$138/583$",
        ("138/583", "$\\frac{138}{583}$"),
        ("138/5831", "138/583 or 5", "1/2 138/583"),
        {},
    ),
    (
        "advanced_geometry",
        "(4.051, -5.487)",
        ("(4.051, -5.487)", "4.051, -5.487"),
        ("(4.051, -5.487)1", "(4.051, -5.487) or (1, 2)"),
        {},
    ),
    (
        "knights_knaves",
        "Ann is a hero, and Bob is a fool.",
        ("Bob is a fool, and Ann is a hero",),
        (
            "It is not true that Ann is a hero, and Bob is a fool.",
            "Ann and a hero, is Bob is a fool.",
            "Ann a a hero, and Bob is is fool.",
        ),
        {},
    ),
    ("sokoban", "DRLD", ("DRLD", "D R L D"), ("foo DRLD or 5", "DRLD5"), {}),
    ("quantum_lock", "B → A", ("B → A", "b, a"), ("not B → A",), {}),
    ("gcd", "6", ("6", "words are left to the scorer"), ("NaN", "-inf", "1e1000"), {}),
]


@pytest.mark.parametrize(("task", "gold", "right", "wrong", "metadata"), FORMS_OF_ANSWERS)
def test_form_of_answers(
    task: str, gold: str, right: tuple[str, ...], wrong: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    entry = {"answer": gold, "metadata": metadata}
    assert [answer for answer in (gold, *right) if not has_form(task, answer, entry)] == []
    assert [answer for answer in wrong if has_form(task, answer, entry)] == []


def test_golds_have_the_form_and_others_are_not_scored() -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    for task in FORMS:
        for entry in gym.create_dataset(task, size=20, seed=3):
            assert has_form(task, str(entry["answer"]), entry), (task, entry["answer"])
    entry = gym.create_dataset("puzzle24", size=1, seed=1)[0]
    rows = [
        response(f"<answer>{text}</answer>", task="puzzle24", entry=entry)
        for text in (entry["answer"], "1*1*6*4")
    ]
    assert TaskScore(workers=1)(rows).values == [1.0, 0.0]
    assert TaskScore(workers=1, strict=False)(rows).values == [1.0, 1.0]


def test_refused_without_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rlmods.reward.task_score.missing_support", lambda: "this kernel has no Landlock"
    )
    with pytest.raises(
        UserError, match=r"this kernel has no Landlock, so scorers, .* type reward.walls=limits"
    ):
        TaskScore()


@pytest.mark.parametrize(
    "bad", [{"walls": "none"}, {"timeout_s": 0}, {"workers": 0}, {"memory_mb": 0}]
)
def test_settings_out_of_range(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"TaskScore: {next(iter(bad))}="):
        TaskScore(**bad)


EVALUATING = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
    "bitwise_arithmetic",
)
"""Tasks whose scorers evaluate text."""
HOSTILE = {
    "write": "open('{folder}/file', 'w').write('x')",
    "shell": "__import__('os').system('touch {folder}/file')",
    "environment": "[open('{folder}/file', 'w').write(__import__('os').environ['SECRET'])]",
    "patch": "[m.__dict__.update(score_answer=lambda *a, **k: 1.0) for m in "
    "__import__('gc').get_objects() if isinstance(m, type)]",
    "patch the class": "setattr(type(self), 'score_answer', lambda *a, **k: 1.0)",
    "frames": "(x for x in [0]).gi_frame.f_back.f_back.f_locals.update(reward=1.0)",
    "attributes": "().__class__.__base__.__subclasses__()",
    "exec": "exec('import os')",
    "lambda": "(lambda: __import__('os')._exit(0))()",
    "sympify": 'sympify(\'__import__("os").system("touch {folder}/file")\')',
    "lambdify": "lambdify((), Symbol('__import__(\"os\")'))()",
    "symbol": "Symbol('x').__class__",
    "gold": "entry['answer']",
    "gold by name": "oracle_answer",
    "reply": "__import__('os').write(3, b'1.0')",
    "format": "'{{0.__class__}}'.format(1)",
    "keywords": "Symbol('x', **{{'commutative': exit()}})",
}
EXPENSIVE = (
    "9**9**9**9",
    "factorial(factorial(20))",
    "[0]*10**10",
    "(" * 5000,
    "1<<10**9",
    "x**(10**9)",
    "'a'*10**10",
    "binomial(10**9, 10**8)",
)


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    return {task: gym.create_dataset(task, size=1, seed=3)[0] for task in EVALUATING}


@pytest.mark.parametrize("task", EVALUATING)
def test_hostile_answers(
    task: str, entries: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "a secret")
    entry = entries[task]
    assert score(task, str(entry["answer"]), entry) == 1.0
    nonsense = score(task, "no answer", entry)
    for what, text in HOSTILE.items():
        assert score(task, text.format(folder=tmp_path), entry) <= max(nonsense, 0.05), what
    for text in EXPENSIVE:
        with suppress(TimeoutError, ValueError):  # counted by the reward
            assert score(task, text, entry, limits=(("timeout_s", 3.0),)) <= max(nonsense, 0.05), (
                text
            )
    assert list(tmp_path.iterdir()) == []
    assert score(task, "no answer", entry) == nonsense


@pytest.mark.parametrize(
    "text",
    [
        *HOSTILE.values(),
        *EXPENSIVE,
        "x",
        "f(1)",
        "[1 for _ in '']",
        "1 if 2 else 3",
        "a.b",
        "f'{1}'",
        "{}",
        "1 < 2",
    ],
)
def test_evaluates_arithmetic_only(text: str) -> None:
    with pytest.raises((RefusedError, ZeroDivisionError)):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    ["[1, -2.5, 'a']", "((1, 2), [3])", "2**10 + (7 // 2) * 3 % 5 - ~1", "0xff << 3 ^ 5", "1 / 4"],
)
def test_arithmetic_is_python_s(text: str) -> None:
    assert evaluate(text) == eval(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2*3",
        "-(7 - 10) / +4",
        "100/3/7 - 1",
        "0 * (5 - 8)",
        "12345678901234567890 * 9876543210",
    ],
)
def test_whole_number_arithmetic_is_sympy_s(text: str) -> None:
    parsed = pytest.importorskip("sympy").parse_expr(text)
    assert rational(text) == Fraction(int(parsed.p), int(parsed.q))


@pytest.mark.parametrize(
    "text",
    [
        *HOSTILE.values(),
        "2**3",
        "x + 1",
        "1.5",
        "True + 1",
        "'a'",
        "7 // 2",
        "5!",
        "sqrt(4)",
        "(1, 2)",
        "",
        None,
    ],
)
def test_other_texts_are_left_to_sympy(text: object) -> None:
    assert rational(text) is None


def test_walls_hold_what_gets_past_the_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scorer that is run without the restriction to arithmetic still cannot write, nor read the
    environment."""
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    monkeypatch.setenv("SECRET", "a secret")
    monkeypatch.setattr(
        "rlmods.grading.sandbox.run.BOOT",
        BOOT.replace(
            "server.main",
            "from sandbox import expressions as e; "
            "e.guard = e.guard_sympy = lambda *a: None; server.main",
        ),
    )
    monkeypatch.setattr("rlmods.grading.sandbox.run._SERVERS", {})
    entry = {"answer": "ab", "metadata": {}}
    assert (
        score(
            "string_insertion",
            "['a', 'b' if __import__('os').environ.get('SECRET') is None else '']",
            entry,
        )
        == 0.1
    )
    for text in (
        f"[open('{tmp_path}/file', 'w') and 'ab']",
        "[open('/etc/passwd') and 'ab']",
        "[__import__('os').fork() and 'ab']",
    ):
        assert score("string_insertion", text, entry) == 0.0
    assert list(tmp_path.iterdir()) == []
