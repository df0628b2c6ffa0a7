"""Every shipped data set with its reward, attacked by `python -m rlmods.redteam`: right answers are
paid, and nothing else is."""

import importlib.util
import json
from pathlib import Path

import pytest

from rlmods.cli.redteam import redteam, show
from rlmods.config import plugins
from rlmods.config.options import options
from rlmods.run import name

pytestmark = pytest.mark.slow

SMALL = (
    "data.num_train=24",
    "data.num_val=8",
    "batch.prompts=8",
    "num_prompts=4",
    "call_timeout_s=60",
)
LEVELS = (1, 3)
GYM = "chain_sum"
"""A task of reasoning-gym whose scorer pays a part of the score to other answers, and is fast."""
MIXTURE = (
    "data=mixture",
    "reward=by_source",
    "+data@data.sources.sums=arithmetic",
    "+reward@reward.rewards.sums=math",
    "+data@data.sources.stories=stories",
    "+reward@reward.rewards.stories=accuracy",
    "data.sources.stories.chat=false",
)
SHIPPED = {
    "arithmetic": [
        ("data=arithmetic", f"data.level={level}", "data.operations='+-*'", "reward=math")
        for level in LEVELS
    ],
    "long_sums": [("data=long_sums", "reward=accuracy")],
    "worked": [
        (
            "data=worked",
            "data.wrong={direct:0,short:0,checked:0}",
            "reward=accuracy",
            "rollout.max_tokens=200",
        )
    ],
    "stories": [
        ("data=stories", f"data.level={level}", "data.chat=false", "reward=accuracy")
        for level in LEVELS
    ],
    "reasoning_gym": [
        (
            "data=reasoning_gym",
            f"data.task={GYM}",
            "data.chat=false",
            "reward=task",
            "num_prompts=1",
        )
    ],
    "gsm8k": [("data=gsm8k", "data.chat=false", "reward=math")],
    "jsonl": [("data=jsonl", "reward=math")],
    "mixture": [MIXTURE],
}
"""Overrides by option of `data`."""
NOT_ONLINE = {"preferences", "hidden_number"}
"""Data for offline algorithms, without a reward, and of an environment, which gives it."""
GOLDS = (
    *(
        "17",
        "-3",
        r"\frac{3}{4}",
        "0.25",
        r"2\sqrt{3}",
        "(1, 2)",
        "[1, 5)",
        "1, 2, 3",
        "B",
        "Evelyn",
        "x^2 + 1",
        r"25\%",
        "12:30",
        "yes",
    ),
    *("1234567", r"8 \text{ cm}"),
)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    plugins.register()
    name.register()


def files(tmp_path: Path, data: str) -> list[str]:
    """Return the overrides that name the files of a data set, after writing them."""
    path, numbers = tmp_path / "rows.jsonl", range(40)
    if data == "gsm8k":
        questions = [
            (f"Ann has {i} and buys {i + 7}. How many?", f"She has {2 * i + 7}.\n#### {2 * i + 7}")
            for i in numbers
        ]
        rows = [{"question": question, "answer": answer} for question, answer in questions]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [f"data.path={path}"]
    if data == "jsonl":
        rows = [
            {"prompt": f"Question {i}: what is it?", "answer": GOLDS[i % len(GOLDS)]}
            for i in numbers
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [f"data.train={path}", f"num_prompts={len(GOLDS)}"]
    return []


def test_every_option_is_covered() -> None:
    assert set(SHIPPED) == set(options("data")) - NOT_ONLINE


@pytest.mark.parametrize(
    "overrides", [x for sets in SHIPPED.values() for x in sets], ids=lambda x: " ".join(x[:2])
)
def test_only_right_answers_are_paid(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    data = overrides[0].removeprefix("data=")
    if data == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("needs the package reasoning-gym")
    without = {"mixture": "data.", "jsonl": "data.num_train"}.get(data)
    small = [x for x in SMALL if without is None or not x.startswith(without)]
    report = redteam([*small, *overrides, *files(tmp_path, data)])
    plain, own, _, _, wrong = report.references
    assert own.paid == own.tried
    assert plain.paid == plain.tried
    assert wrong.paid == 0
    assert report.is_clean, show(report)
