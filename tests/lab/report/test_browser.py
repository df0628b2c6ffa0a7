"""The page of a report in headless Chromium, from file://."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rlmods.lab.groups import find_runs, group_runs
from rlmods.lab.report.__main__ import page
from rlmods.lab.report.contents import contents
from tests.support.browser import CHROMIUM, drive
from tests.support.saved_runs import write_run

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"
)

HOSTILE = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'><!--"


def sample(response: str, advantage: float, **more: Any) -> dict[str, Any]:
    right = advantage > 0
    return {
        "id": "p1",
        "prompt": f"1+1= {HOSTILE}",
        "answer": "2",
        "response": response,
        "tokens": [1, 2, 3, 4],
        "finish": "stop",
        "reward": float(right),
        "reward/accuracy": float(right),
        "correct": right,
        "advantage": advantage,
        "kept": True,
        **more,
    }


def branch(i: int, parent: int | None, shared: int, **more: Any) -> dict[str, Any]:
    return {"sample": i, "parent": parent, "shared": shared, "decisions": [], **more}


DECISION = {"position": 2, "entropy": 0.3, "initial_entropy": 0.2, "probability": 0.5}
ROWS = [
    sample("two", 0.5),
    sample(HOSTILE, -0.5, finish="length"),
    sample("three", -0.5, kept=False),
    sample("a", 0.5, id="p2", branch=branch(0, None, 0, decisions=[DECISION])),
    sample(
        "b",
        -0.5,
        id="p2",
        branch=branch(1, 0, 2),
        turns=[
            {
                "start": 0,
                "stop": 2,
                "calls": [{"name": "search", "arguments": {"q": "x"}, "result": HOSTILE}],
            },
            {"start": 3, "stop": 4},
        ],
        credit=[[0, 2, 0.5, 0.25, 0.5], [3, 4, -0.5, -0.25, -0.5]],
        credit_terms={"outcome": 1.0, HOSTILE: 0.5},
        trained=[[1, 2], [3, 4]],
    ),
]


WORDS = Tokenizer(
    WordLevel({"unknown": 0, "so": 1, HOSTILE: 2, "it": 3, "is": 4}, unk_token="unknown")
)


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    for ratio, last in (("clip_higher", 0.5), ("symmetric", 0.9), (HOSTILE, 0.1)):
        spread = 0.02 if ratio == "symmetric" else 0.01
        for seed in (1, 2):
            metrics = {f"train/{HOSTILE}": 1.0, "time/update_s": 2.0, f"alert/{HOSTILE}": 0.7}
            run = write_run(
                folder / f"{last}_{seed}",
                [0.1, 0.2, last + seed * spread],
                seed=seed,
                parts={"ratio": ratio},
                metrics=metrics,
            )
            (run / "samples/iteration_000002.jsonl").write_text(
                "".join(f"{json.dumps(row)}\n" for row in ROWS)
            )
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"iteration": 3, f"train/{HOSTILE}": 2.0}) + "\n")
            if seed == 1:
                (run / "export").mkdir()
                WORDS.save(str(run / "export/tokenizer.json"))
            (run / "versions.txt").write_text(f"command python train.py {HOSTILE}\ntorch 2.0\n")
    return page(contents(group_runs(find_runs([folder])), "val/accuracy", 1, None))


@pytest.fixture(scope="module")
def result(html: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that the tests look at, from one visit."""
    steps = """
      const names = () => all("#members-table tbody tr").filter((row) => !row.hidden).map((row) => row.querySelector(".name").textContent);
      const column = (title) => all("#members-table th").find((th) => th.textContent === title);
      const lines = () => all("figure[data-metric='val/accuracy'] .u-legend .u-series").length;
      result.ready = document.documentElement.dataset.ready;
      result.owned = window.owned ?? null;
      result.unsorted = names();
      column("val/accuracy").click();
      result.descending = names();
      column("val/accuracy").click();
      result.ascending = names();
      column("member").click();
      result.byName = names();
      result.table = $("#members-table").textContent;
      type("#member-filter", "symmetric", "input");
      result.filtered = names();
      type("#member-filter", "", "input");
      const cards = () => all("#sample-list .card").length, texts = () => all("#sample-list .card .text").map((x) => x.textContent);
      result.allCards = cards();
      result.texts = texts();
      type("#sample-run", "0", "change");
      result.cardsOfRun = cards();
      const count = (only) => { type("#sample-only", only, "change"); result.counts[only] = cards(); };
      result.counts = {};
      ["kept", "rejected", "correct", "wrong", "length", "tree"].forEach(count);
      type("#sample-only", "", "change");
      type("#sample-search", "P2", "input");
      result.found = $("#sample-count").textContent;
      type("#sample-search", "nowhere", "input");
      result.notFound = cards();
      type("#sample-search", "", "input");
      const spans = () => all("#sample-list .card .text span").map((x) => x.title);
      result.advantages = spans();
      type("#sample-colour", "outcome", "change");
      const titles = (node) => [...node.querySelectorAll(".text span")].map((x) => `${x.className}|${x.title}`);
      const turns = all("#sample-list .card").filter((card) => card.querySelector(".turn"))[0];
      result.tokens = titles(turns);
      result.notes = [...turns.querySelectorAll(".turn")].map((x) => [x.textContent, x.nextSibling.textContent]);
      type("#sample-colour", "", "change");
      result.plain = titles(all("#sample-list .card").filter((card) => card.querySelector(".turn"))[0]);
      result.tree = $(".tree").textContent;
      result.calls = $(".call").textContent;
      result.alarms = $("#alarms-table").textContent;
      result.commands = $("#runs").textContent;
      result.differs = $("#differences-table").textContent;
      result.charts = all("figure").map((figure) => figure.dataset.metric);
      result.constants = $("#constants").textContent;
      result.answer = $("#answer").textContent;
      result.sections = all("section").map((section) => section.id);
      result.images = all("img").length;
      result.scripts = all("script").length;
    """
    return drive(html, steps, tmp_path_factory.mktemp("page") / "report.html")


def test_opens_without_errors_or_requests(result: dict[str, Any]) -> None:
    assert result["ready"] == "true"
    assert result["problems"] == []
    assert result["requests"] == []


def test_hostile_text_is_text(result: dict[str, Any]) -> None:
    assert (result["owned"], result["images"], result["scripts"]) == (None, 0, 4)
    for name in ("table", "calls", "alarms", "commands", "differs"):
        assert HOSTILE in result[name], name
    assert HOSTILE in result["texts"]
    assert f"so{HOSTILE}itis" in result["texts"]
    assert f"train/{HOSTILE}" in result["charts"]
    assert f"alert/{HOSTILE} 0.7" in result["constants"]


def test_the_answer_comes_first_and_samples_before_diagnostics(result: dict[str, Any]) -> None:
    assert result["answer"].startswith("ratio=symmetric has the highest val/accuracy: 0.9")
    first = ["members", "differences", "curves", "samples"]
    assert result["sections"][:4] == first
    assert {"alarms", "runs"} < set(result["sections"])


@pytest.mark.slow
def test_many_long_responses_and_names_of_javascript(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "a",
        [0.1],
        parts={"__proto__": "x"},
        metrics={"__proto__/x": 1.0, "constructor/x": 1.0, "__proto__/constant": 1.0},
    )
    with (run / "metrics.jsonl").open("a") as file:
        row = {"iteration": 1, "__proto__/x": 2.0, "constructor/x": 2.0}
        file.write(json.dumps(row) + "\n")
    rows = [
        sample("r", 0.5, tokens=[1] * 2000, id="__proto__", **{"reward/__proto__": 1.0})
        for _ in range(64)
    ]
    (run / "samples/iteration_000001.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows)
    )
    (run / "export").mkdir()
    WORDS.save(str(run / "export/tokenizer.json"))
    steps = (
        "result.constants = $('#constants').textContent; result.cards = all('.card').length; result.charts = all('figure').map((figure) => "
        "figure.dataset.metric);"
    )
    html = page(contents(group_runs(find_runs([run])), "val/accuracy", 1, None))
    result = drive(html, steps, tmp_path / "report.html")
    assert (result["cards"], result["problems"]) == (64, [])
    assert {"__proto__/x", "constructor/x"} < set(result["charts"])
    assert "__proto__/constant 1" in result["constants"]


class TestMembers:
    def test_sort_by_value(self, result: dict[str, Any]) -> None:
        first, second, third = "ratio=symmetric", "ratio=clip_higher", f"ratio={HOSTILE}"
        assert result["descending"] == [first, second, third]
        assert result["ascending"] == [third, second, first]

    def test_sort_by_name(self, result: dict[str, Any]) -> None:
        assert result["byName"] == sorted(
            result["unsorted"], key=lambda name: name.replace("<", "\0")
        )

    def test_filter(self, result: dict[str, Any]) -> None:
        assert result["filtered"] == ["ratio=symmetric"]

    def test_interval_and_difference(self, result: dict[str, Any]) -> None:
        assert "0.515 [0.451, 0.579]" in result["table"]
        assert "+0.4not decided3" in result["table"], "equal differences: neither p nor interval"
        assert "better (p 0.0078)" in result["table"]


class TestSamples:
    def test_cards(self, result: dict[str, Any]) -> None:
        # four groups are shown at first, of three and two responses
        assert result["allCards"] == 4 * 2.5
        assert result["cardsOfRun"] == 5

    @pytest.mark.parametrize(
        ("only", "count"),
        [("kept", 4), ("rejected", 1), ("correct", 2), ("wrong", 3), ("length", 1), ("tree", 2)],
    )
    def test_filter(self, result: dict[str, Any], only: str, count: int) -> None:
        assert result["counts"][only] == count

    def test_search(self, result: dict[str, Any]) -> None:
        assert (result["found"], result["notFound"]) == ("1 of 12 groups", 0)

    def test_tokens_are_coloured(self, result: dict[str, Any]) -> None:
        assert "token 0: advantage +0.5" in result["advantages"]
        assert "token 3: advantage -0.5" in result["advantages"]

    def test_turns_terms_and_selection(self, result: dict[str, Any]) -> None:
        assert result["tokens"] == [
            "left|token 0: outcome +0.25, not trained",
            "|token 1: outcome +0.25",
            "observed|",
            "|token 3: outcome -0.25",
        ]
        assert result["notes"] == [
            [f"turn 1: advantage +0.500 = 1 x +0.250 outcome + 0.5 x +0.500 {HOSTILE}", "so"],
            [f"turn 2: advantage -0.500 = 1 x -0.250 outcome + 0.5 x -0.500 {HOSTILE}", "is"],
        ]
        assert result["plain"] == ["|", "|", "observed|", "|"]

    def test_tree(self, result: dict[str, Any]) -> None:
        assert "tokens 0–2 · 2 responses · reward 0.5" in result["tree"]
        assert "branch: entropy 0.2 → 0.3, P 0.5" in result["tree"]
        assert "response 1" in result["tree"]


def test_a_script_of_the_data_would_be_noticed(html: str, tmp_path: Path) -> None:
    """The policy refuses scripts that get into the page, and the driver notices both."""
    owned = html.replace(
        "<main ", "<script>window.owned = 1</script><img src='http://127.0.0.1:9/x.png'><main "
    )
    found = drive(owned, "result.owned = window.owned ?? null;", tmp_path / "report.html")
    assert found["owned"] is None
    assert {problem.split()[0] for problem in found["problems"]} == {"script-src-elem", "img-src"}
