"""Contents of a report, and the command that writes it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rlmods.errors import UserError
from rlmods.lab.groups import find_runs, group_runs
from rlmods.lab.report.__main__ import main, page
from rlmods.lab.report.contents import columns, contents, curve
from rlmods.lab.report.samples import evenly, samples
from rlmods.lab.watch import sparkline, watch
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run

LIMITS = (3, 2, 100_000)
"""Files, prompts of each, characters."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two members of two seeds."""
    for ratio, last in (("clip_higher", 0.5), ("symmetric", 0.75)):
        for seed in (1, 2):
            write_run(
                tmp_path / f"{ratio}_{seed}",
                [0.25, last + seed / 100],
                seed=seed,
                parts={"ratio": ratio},
            )
    return tmp_path


def row(**more: Any) -> dict[str, Any]:
    return {
        "id": "p1",
        "prompt": "1+1=",
        "response": "2",
        "tokens": [1, 2],
        "finish": "stop",
        "reward": 1.0,
        "advantage": 0.5,
    } | more


def write_samples(run: Path, rows: list[Any], iteration: int = 1) -> SavedRun:
    folder = run / "samples"
    folder.mkdir(exist_ok=True)
    (folder / f"iteration_{iteration:06d}.jsonl").write_text(
        "".join(f"{json.dumps(x)}\n" for x in rows)
    )
    return SavedRun(run)


class TestContents:
    def test_members_differences_and_curves(self, runs: Path) -> None:
        found = contents(group_runs(find_runs([runs])), "val/accuracy", 1, None)
        assert [group["name"] for group in found["groups"]] == [
            "ratio=clip_higher",
            "ratio=symmetric",
        ]
        assert found["groups"][1]["difference"]["mean"] == pytest.approx(0.25)
        assert found["parts"] == {"ratio": ["clip_higher", "symmetric"]}
        assert found["settings"] == {}  # the class of the option is not a further difference
        curve = found["curves"]["val/accuracy"][1]
        assert (curve["x"], curve["mean"], curve["seeds"]) == (
            [0, 1],
            [0.25, 0.765],
            [[0.25, 0.76], [0.25, 0.77]],
        )

    def test_a_class_that_was_typed_is_listed_under_its_part(self, tmp_path: Path) -> None:
        for i, name in enumerate(("mine.A", "mine.B")):
            part = {"reward": {"mine": {"_target_": name, "_convert_": "all" * i}}}
            write_run(tmp_path / f"{i}", [0.5], settings=part)
        groups = group_runs(find_runs([tmp_path]))
        found = contents(groups, "val/accuracy", 1, None)
        assert found["settings"] == {"reward.mine": ["mine.A", "mine.B"]}
        assert [group.name for group in groups] == ["reward.mine=mine.A", "reward.mine=mine.B"]

    def test_constant_metrics_are_no_curves(self, tmp_path: Path) -> None:
        for seed in (1, 2):
            metrics = {"train/lr": 0.5, "train/reward": float(seed)}
            write_run(tmp_path / f"{seed}", [0.5, 0.5], seed=seed, metrics=metrics)
        found = contents(group_runs(find_runs([tmp_path])), "val/accuracy", 1, None)
        assert found["constants"] == {"train/lr": 0.5}
        assert list(found["curves"]) == ["train/reward", "val/accuracy"]

    def test_unknown_metric(self, runs: Path) -> None:
        with pytest.raises(SystemExit, match=r"--metric nosuch: .* has no value of it; choose"):
            main([str(runs), "--metric", "nosuch"])
        assert not (runs / "report.html").exists()

    def test_unknown_baseline(self, runs: Path) -> None:
        with pytest.raises(UserError, match="did you mean ratio=symmetric"):
            contents(group_runs(find_runs([runs])), "val/accuracy", 1, "symmetric")


class TestAnswer:
    @staticmethod
    def of(runs: Path, metric: str = "val/accuracy", baseline: str | None = None) -> str:
        return "\n".join(contents(group_runs(find_runs([runs])), metric, 1, baseline)["answer"])

    @staticmethod
    def write(folder: Path, **members: list[float]) -> Path:
        for ratio, results in members.items():
            for seed, result in enumerate(results):
                write_run(
                    folder / f"{ratio}_{seed}", [0.1, result], seed=seed, parts={"ratio": ratio}
                )
        return folder

    def test_names_the_best_how_sure_it_is_and_the_cost(self, runs: Path) -> None:
        assert self.of(runs) == (
            "ratio=symmetric has the highest val/accuracy: 0.765, 95 % from 0.7015 to 0.8285 "
            "(2 seeds).\n"
            "Not decided against the baseline, ratio=clip_higher: +0.25; more seeds would tell, "
            "such as seed=1,2,3,4,5.\n"
            "4 runs: 4 s; a run of ratio=clip_higher 1 s, ratio=symmetric 1 s."
        )

    def test_equal_members_share_the_best_value(self, tmp_path: Path) -> None:
        runs = self.write(tmp_path, a=[0.3], b=[0.5], c=[0.5])
        assert "2 of 3 members share the highest val/accuracy: 0.5." in self.of(runs)

    def test_a_decided_difference(self, tmp_path: Path) -> None:
        runs = self.write(tmp_path, a=[0.1, 0.2, 0.3], b=[0.61, 0.7, 0.82])
        assert "better than the baseline, ratio=a: +0.51" in self.of(runs)
        decided = self.of(runs, baseline="ratio=b")
        assert "It is the baseline. The other one is decidedly worse." in decided

    def test_of_a_metric_of_which_less_is_better(self, tmp_path: Path) -> None:
        for ratio, loss in (("a", 2.0), ("b", 1.0)):
            metrics = {"train/loss": loss}
            write_run(tmp_path / ratio, [0.1], parts={"ratio": ratio}, metrics=metrics)
        assert "ratio=b has the lowest train/loss: 1" in self.of(tmp_path, "train/loss")

    def test_of_one_member_and_of_none_with_the_metric(self, tmp_path: Path) -> None:
        runs = self.write(tmp_path, a=[0.5, 0.7])
        assert "val/accuracy: 0.6, 95 %" in self.of(runs)
        assert "No run has a value of val/none" in self.of(runs, "val/none")

    def test_without_a_common_seed(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.1], seed=1, parts={"ratio": "a"})
        write_run(tmp_path / "b", [0.5], seed=1, parts={"ratio": "b"})
        write_run(tmp_path / "c", [0.9], seed=2, parts={"ratio": "c"})
        assert "no seed in common with the baseline, ratio=a" in self.of(tmp_path)


class TestPage:
    HOSTILE = "</script><!--<script>\u2028\ud800"

    def test_no_text_ends_the_element_of_the_contents(self) -> None:
        html = page({"x": self.HOSTILE})
        [data] = re.findall(
            r'<script type="application/json" id="contents">(.*?)</script>', html, re.DOTALL
        )
        assert json.loads(data) == {"x": self.HOSTILE.replace("\ud800", "\ufffd")}
        assert html.count("<script") == html.count("</script>") == 3
        html.encode()

    def test_policy_names_its_scripts_only(self) -> None:
        [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page({}))
        assert re.fullmatch(
            r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-\S+=' "
            r"'sha256-\S+='",
            policy,
        )

    def test_names_in_braces_are_text(self) -> None:
        assert '{"x": "{{POLICY}}"}' in page({"x": "{{POLICY}}"})


class TestSamples:
    def test_evenly_spaced_iterations_with_the_first_and_the_last(self, tmp_path: Path) -> None:
        for i in range(1, 10):
            write_samples(tmp_path, [row(id=f"p{i}") for i in range(3)], i)
        found = [
            (group["iteration"], group["id"]) for group in samples(SavedRun(tmp_path), *LIMITS)
        ]
        assert found == [(i, f"p{j}") for i in (9, 5, 1) for j in range(2)]
        assert [len(evenly([Path(str(i)) for i in range(4)], n)) for n in (1, 2, 4, 9)] == [
            1,
            2,
            4,
            4,
        ]

    def test_limited_size(self, tmp_path: Path) -> None:
        run = write_samples(tmp_path, [row(id=f"p{i}", response="x" * 3000) for i in range(9)])
        assert len(samples(run, 1, 9, 10_000)) == 3

    def test_rows_are_complete(self, tmp_path: Path) -> None:
        calls = [{"name": "add", "arguments": "{}", "result": "3", "error": None}]
        more = {
            "turns": [
                {"start": 0, "stop": 1, "calls": []},
                {"start": 1, "stop": 2, "calls": calls},
            ],
            "credit": [[0, 1, 0.50000004, 0.5, None], [1, 2, 0.75, 0.5, 0.5]],
            "credit_terms": {"outcome": 1.0, "turns": 0.5},
            "trained": [[1, 2]],
            "reward/accuracy": 1.0,
            "reward/format": None,
            "accuracy/steps": 3,
            "kept": True,
            "correct": None,
            "branch": {
                "sample": 0,
                "parent": None,
                "shared": 0,
                "decisions": [],
            },
        }
        [group] = samples(write_samples(tmp_path, [row(**more)]), *LIMITS)
        assert group["rows"] == [
            {
                "length": 2,
                "finish": "stop",
                "text": "2",
                "reward": 1.0,
                "advantage": 0.5,
                "kept": True,
                "terms": {"accuracy": 1.0},
                "columns": {"accuracy/steps": "3"},
                "calls": [{"turn": 2, "name": "add", "arguments": "{}", "result": "3"}],
                "credit": [[0, 1, 0.5, 0.5, None], [1, 2, 0.75, 0.5, 0.5]],
                "credit_terms": ["outcome", "turns"],
                "turns": [
                    [0, 1, "advantage +0.500 = 1 x +0.500 outcome + 0.5 x none turns"],
                    [1, 2, "advantage +0.750 = 1 x +0.500 outcome + 0.5 x +0.500 turns"],
                ],
                "trained": [[1, 2]],
            }
        ]
        assert [node["end"] for node in group["tree"]] == [2]

    def test_tokens_have_the_texts_of_the_exported_tokenizer(self, tmp_path: Path) -> None:
        (tmp_path / "export").mkdir()
        model = {"type": "WordLevel", "vocab": {"?": 0, "one": 1, "two": 2}, "unk_token": "?"}
        saved = {"version": "1.0", "added_tokens": [], "model": model}
        (tmp_path / "export/tokenizer.json").write_text(json.dumps(saved))
        [group] = samples(write_samples(tmp_path, [row()]), *LIMITS)
        assert group["rows"][0]["tokens"] == ["one", "two"]


class TestCommand:
    def test_writes_the_page(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main([str(runs)])
        assert (runs / "report.html").read_text().startswith("<!DOCTYPE html>")
        assert "4 runs, 2 groups" in capsys.readouterr().out

    def test_text(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main([str(runs), "--text"])
        text = capsys.readouterr().out
        assert "ratio=symmetric has the highest val/accuracy: 0.765" in text
        assert "not decided against the baseline: +0.2500" in text
        assert not (runs / "report.html").exists()
        main([str(runs / "symmetric_1"), "--text"])
        assert "val/accuracy: 0.76 (1 seed)." in capsys.readouterr().out


class TestWatch:
    def test_sparkline(self) -> None:
        assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
        assert sparkline([0, 0, 1, 1], 2) == "▁█"
        assert sparkline([1, 1], 8) == "▁▁"

    def test_ends_with_the_runs(self, runs: Path) -> None:
        console = Console(record=True, force_terminal=True, width=120, height=40)
        watch([runs], ["val/accuracy"], False, console)
        shown = console.export_text()
        assert "clip_higher_1" in shown
        assert "seed 1" in shown


class TestCurves:
    def test_mean_and_range_of_the_seeds(self) -> None:
        found = curve([[(0, 0.25), (1, 0.5), (2, 0.75)], [(0, 0.75), (1, 0.5)]], 100)
        assert found == {
            "x": [0, 1, 2],
            "mean": [0.5, 0.5, 0.75],
            "low": [0.25, 0.5, 0.75],
            "high": [0.75, 0.5, 0.75],
            "seeds": [[0.25, 0.5, 0.75], [0.75, 0.5, None]],
        }

    @pytest.mark.parametrize("num_points", [1, 7, 99, 100, 101])
    def test_neighbours_are_averaged(self, num_points: int) -> None:
        found = curve([[(i, float(i)) for i in range(100)]], num_points)
        assert len(found["mean"]) == min(num_points, 100)
        assert found["x"] == pytest.approx(found["mean"], rel=1e-4)
        assert np.diff(found["mean"]).min(initial=1) > 0

    def test_values_that_are_no_numbers_are_left_out(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "a", [0.5])
        odd = [{"iteration": 1, "val/accuracy": x} for x in ("1", None, True, [1])]
        with (run / "metrics.jsonl").open("a") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in odd))
        assert columns(SavedRun(run))["val/accuracy"] == [(0, 0.5)]
