"""Forms of answers to reasoning-gym tasks, and their scoring in the sandbox."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlmods.grading.reasoning_gym import (
    EVALUATED_TASKS,
    FORMULA_TASKS,
    PACKAGES,
    has_form,
    score,
)
from rlmods.grading.sandbox.confinement import missing_support

FORMS = [
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
        ("[NaN, nan]", "[1.0, 2.5, 3]", "not [1.0, 2.5]", "[1e999, 2]", "[true, 2.5]"),
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
    ("survo", "6 9\n4 1", ("6 9\n4 1",), ("not 6 9\n4 1", "6 9\n4 1\n2"), {}),
    ("complex_arithmetic", "-15.0 + 3.0i", ("-15 + 3i", "-15+3j"), ("nan", "inf"), {}),
    ("game_of_life_halting", "False", ("False", "false."), ("no idea", "0", "True"), {}),
    (
        "gsm_symbolic",
        "1288",
        ("1288", "1,288", "$1288", "1288.0"),
        ("not 1288 but 7", "1288 or 7", "1288 7", "1289", "0"),
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
        ("(4.051, -5.487) or (1, 2)",),
        {},
    ),
    (
        "simple_integration",
        "x**3/3 + C",
        ("x**3/3 + C", "x^3/3 + sin(0) + C", "0.5*x + C"),
        ("__import__('os')", "x.__class__", "S('x')", "lambdify((), x)", "sympify(x)", "x [0]"),
        {},
    ),
    ("n_queens", "_ Q\nQ _", ("[['_', 'Q'], ['Q', '_']]",), ("print(1)", "[x for x in f()]"), {}),
    ("gcd", "6", ("6", "6.0", "12/2"), ("NaN", "-inf", "1e1000", "six"), {}),
    ("word_ladder", "cat,cot", ("anything", "f(1)"), ("nan",), {}),
]


@pytest.mark.parametrize(("task", "gold", "right", "wrong", "metadata"), FORMS)
def test_form_of_answers(
    task: str, gold: str, right: tuple[str, ...], wrong: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    entry = {"answer": gold, "metadata": metadata}
    assert [answer for answer in (gold, *right) if not has_form(task, answer, entry)] == []
    assert [answer for answer in wrong if has_form(task, answer, entry)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_golds_of_all_tasks_have_the_form() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    from reasoning_gym.factory import DATASETS, create_dataset

    refused = []
    for task in sorted(DATASETS):
        if task == "composite":
            continue
        entries = [e for e in create_dataset(task, size=3, seed=3) if e["answer"] is not None]
        answers = [(task, str(entry["answer"]), entry) for entry in entries]
        refused += [answer for answer in answers if not has_form(*answer)]
    assert refused == []


HOSTILE = (
    "open('{folder}/file', 'w').write('x')",
    "__import__('os').system('touch {folder}/file')",
    "__import__('os').write(3, b'1.0')",
    "[m.__dict__.update(score_answer=lambda *a, **k: 1.0) for m in "
    "__import__('gc').get_objects() if isinstance(m, type)]",
    "(lambda: __import__('os')._exit(0))()",
    "9**9**9**9",
    "[0]*10**10",
    "(" * 5000,
)


@pytest.mark.slow
@pytest.mark.skipif(missing_support() is not None, reason=f"cannot confine: {missing_support()}")
@pytest.mark.parametrize("task", [*EVALUATED_TASKS, *FORMULA_TASKS, "countdown"])
def test_hostile_answers_are_refused_and_do_no_harm(task: str, tmp_path: Path) -> None:
    gym = pytest.importorskip("reasoning_gym", reason="needs the extra reasoning_gym")
    entry = gym.create_dataset(task, size=1, seed=3)[0]
    limits = replace(PACKAGES, timeout_s=2.0)
    assert score(task, str(entry["answer"]), entry, limits) == 1.0
    for text in HOSTILE:
        answer = text.format(folder=tmp_path)
        if has_form(task, answer, entry):
            with suppress(TimeoutError, ValueError):  # counted by the reward
                assert score(task, answer, entry, limits) < 0.5
    with suppress(TimeoutError, ValueError):
        score(task, HOSTILE[0].format(folder=tmp_path), entry, limits)
    assert list(tmp_path.iterdir()) == []
    assert score(task, str(entry["answer"]), entry, limits) == 1.0
