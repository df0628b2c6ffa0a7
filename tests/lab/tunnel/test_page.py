"""The page of a scorecard."""

import re
from html.parser import HTMLParser

from rlmods.lab.tunnel.page import page
from rlmods.lab.tunnel.results import Result, scorecard
from rlmods.lab.tunnel.tasks import TASKS

TASK_NAMES = [task.name for task in TASKS[:3]]
HOSTILE = "dapo <script>alert(1)</script>"


def written(entrants: list[str]) -> str:
    scores = {}
    for i, entrant in enumerate(entrants):
        for name in TASK_NAMES:
            scores[entrant, name] = {seed: 0.1 * i + 0.01 * seed**2 * (i + 1) for seed in (1, 2, 3)}
    scores[entrants[-1], TASK_NAMES[0]] = {}
    reasons = {(entrants[-1], TASK_NAMES[0]): "refused: <b>no</b>"}
    curves = {"val/mean@4": [(0.0, 0.1), (500.0, 0.4)], "train/entropy": [(0.0, 2.0), (9.0, 1.0)]}
    results = {
        (entrants[0], name): [Result(entrants[0], name, 1, 0.1, curves, 1.0, 500)]
        for name in TASK_NAMES
    }
    card = scorecard(scores, reasons, entrants[0])
    return page("python -m x", entrants, TASKS[:3], card, results, {entrants[0]: "3 runs"})


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.classes: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.classes.append(dict(attrs).get("class"))


def test_has_a_cell_for_each_entrant_and_task() -> None:
    html = written(["grpo", "dapo", "gspo"])
    rows = re.findall(r"<tr>.*?</tr>", html)
    assert [row.count("<td") for row in rows[1:4]] == [4, 4, 4]
    assert html.count("<polyline") == 3 * 2
    assert html.count("refused: &lt;b&gt;no") == 1


def test_runs_no_script_and_loads_nothing() -> None:
    html = written(["grpo", HOSTILE])
    tags = Tags()
    tags.feed(html)
    assert not {"script", "link", "img", "iframe"} & set(tags.names)
    assert "default-src 'none'" in html
    assert "http" not in html.replace("http-equiv", "")


def test_equal_scores_are_both_the_highest() -> None:
    values = {"a": 0.25, "b": 0.5, "c": 0.5}
    scores = {(name, TASK_NAMES[0]): {1: value} for name, value in values.items()}
    card = scorecard(scores, {}, "a")
    assert "Highest: b, c, 0.50" in page("x", [*values], TASKS[:1], card, {}, {})


def test_says_that_nothing_is_compared() -> None:
    assert "name a second algorithm" in written(["grpo"])


def test_says_that_one_seed_decides_nothing() -> None:
    scores = {(name, TASK_NAMES[0]): {1: 0.5 * i} for i, name in enumerate("ab")}
    card = scorecard(scores, {}, "a")
    html = page("x", ["a", "b"], TASKS[:1], card, {}, {})
    assert "type seeds=3" in html
    assert "Strengths" not in html


def test_a_reason_may_break_into_lines() -> None:
    tags = Tags()
    tags.feed(written(["grpo", HOSTILE]))
    assert tags.classes.count("reason") == 1
