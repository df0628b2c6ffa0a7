"""Contents of a report, and the command that writes it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rlmods.report.__main__ import main
from rlmods.report.contents import contents
from rlmods.report.page import page
from rlmods.report.samples import Limits, evenly, samples

from rlmods.errors import UserError
from rlmods.lab.saved import SavedRun, find_runs, group_runs
from rlmods.lab.watch import sparkline, watch
from tests.support.saved_runs import write_run

FUSE = {"type": "Fuse"}
LIMITS = Limits(iterations=3, prompts=2, characters=100_000)


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
        assert found["settings"] == {"ratio._target_": ["clip_higher", "symmetric"]}
        curve = found["curves"]["val/accuracy"][1]
        assert (curve["x"], curve["mean"], curve["seeds"]) == (
            [0, 1],
            [0.25, 0.765],
            [[0.25, 0.76], [0.25, 0.77]],
        )

    @pytest.mark.parametrize("baseline", ["ratio=symmetric", "symmetric_2"])
    def test_baseline_is_a_member_or_a_run(self, baseline: str, runs: Path) -> None:
        name = baseline if "=" in baseline else str(runs / baseline)
        assert (
            contents(group_runs(find_runs([runs])), "val/accuracy", 1, name)["baseline"]
            == "ratio=symmetric"
        )

    def test_unknown_baseline(self, runs: Path) -> None:
        with pytest.raises(UserError, match="did you mean ratio=symmetric"):
            contents(group_runs(find_runs([runs])), "val/accuracy", 1, "symmetric")


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
    @pytest.mark.parametrize(
        "more",
        [
            {"tokens": "12"},
            {"tokens": [-1]},
            {"tokens": [True]},
            {"tokens": [2**40]},
            {"tokens": None},
        ],
    )
    def test_rows_without_tokens_are_left_out(self, more: dict[str, Any], tmp_path: Path) -> None:
        [group] = samples(write_samples(tmp_path, [row(), row(**more), "text", 1, None]), LIMITS)
        assert len(group["rows"]) == 1

    @pytest.mark.parametrize(
        "more",
        [
            {"reward": "x", "advantage": []},
            {"reward": 10**400},
            {"prompt": [{"role": 1}, 2]},
            {"answer": {}},
            {"turns": [{"calls": [1]}, 3]},
            {"advantages": ["x", None, 1e400]},
            {"log_ratio": {}},
            {"kept": 1, "correct": "no"},
            {"reward/x": [], "y/z": {}},
            {"branch": 1},
            {"branch": {}},
            {"branch": {"sample": 0, "parent": 0, "shared": 1, "decisions": []}},
            {
                "branch": {
                    "sample": 0,
                    "parent": None,
                    "shared": 0,
                    "decisions": [1, {"position": 2}],
                    "segments": [1, [1, 2], ["a", 1, 2]],
                }
            },
        ],
    )
    def test_values_of_other_types_are_left_out(self, more: dict[str, Any], tmp_path: Path) -> None:
        [group] = samples(write_samples(tmp_path, [row(**more)]), LIMITS)
        assert group["rows"][0]["text"] == "2"
        json.dumps(group, allow_nan=False)

    def test_branches_that_are_no_tree_are_left_out(self, tmp_path: Path) -> None:
        branches = [{"sample": i, "parent": 1 - i, "shared": 1, "decisions": []} for i in range(2)]
        [group] = samples(
            write_samples(tmp_path, [row(branch=branch) for branch in branches]), LIMITS
        )
        assert "tree" not in group
        assert len(group["rows"]) == 2

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        run = write_samples(tmp_path, [row()])
        os.mkfifo(tmp_path / "samples/validation_000001.jsonl")
        assert len(samples(run, LIMITS)) == 1

    def test_evenly_spaced_iterations_with_the_first_and_the_last(self, tmp_path: Path) -> None:
        for i in range(1, 10):
            write_samples(tmp_path, [row(id=f"p{i}") for i in range(3)], i)
        found = [(group["iteration"], group["id"]) for group in samples(SavedRun(tmp_path), LIMITS)]
        assert found == [(i, f"p{j}") for i in (9, 5, 1) for j in range(2)]
        assert [len(evenly([Path(str(i)) for i in range(4)], n)) for n in (1, 2, 4, 9)] == [
            1,
            2,
            4,
            4,
        ]

    def test_limited_size(self, tmp_path: Path) -> None:
        run = write_samples(tmp_path, [row(id=f"p{i}", response="x" * 3000) for i in range(9)])
        assert len(samples(run, Limits(1, 9, 10_000))) == 3

    def test_a_broken_tokenizer_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "export").mkdir()
        (tmp_path / "export/tokenizer.json").write_text("{")
        [group] = samples(write_samples(tmp_path, [row()]), LIMITS)
        assert group["rows"][0]["text"] == "2"

    @pytest.mark.parametrize(
        ("decoder", "tokens"),
        [
            (None, ["▁one", "aab"]),
            (
                {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                        FUSE,
                    ],
                },
                [" one", "aab"],
            ),
            ({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}, None),
            (
                {
                    "type": "Sequence",
                    "decoders": [
                        FUSE,
                        {"type": "Replace", "pattern": {"String": ""}, "content": "a"},
                    ],
                },
                None,
            ),
            ({"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}, None),
            ({"type": "Unknown"}, None),
            (["Fuse"], None),
        ],
    )
    def test_a_tokenizer_makes_no_text_longer(
        self, decoder: Any, tokens: list[str] | None, tmp_path: Path
    ) -> None:
        """The normalizer, a regular expression that no text matches in bounded time, is not
        applied."""
        slow = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
        added = {"id": 3, "content": "a" * 40 + "b", "normalized": True}
        added |= dict.fromkeys(("special", "single_word", "lstrip", "rstrip"), False)
        model = {
            "type": "WordLevel",
            "vocab": {"[UNK]": 0, "▁one": 1, "aab": 2},
            "unk_token": "[UNK]",
        }
        (tmp_path / "export").mkdir()
        saved = {
            "version": "1.0",
            "added_tokens": [added],
            "normalizer": slow,
            "decoder": decoder,
            "model": model,
        }
        (tmp_path / "export/tokenizer.json").write_text(json.dumps(saved))
        [group] = samples(write_samples(tmp_path, [row()]), LIMITS)
        assert group["rows"][0].get("tokens") == tokens


class TestCommand:
    def test_writes_page_csv_and_picture(
        self, runs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main([str(runs), "--csv", str(runs / "x.csv"), "--png", str(runs / "x.png")])
        assert (runs / "report.html").read_text().startswith("<!DOCTYPE html>")
        assert (runs / "x.csv").read_text().splitlines()[
            0
        ] == "group,run,seed,iteration,val/accuracy"
        assert (runs / "x.png").read_bytes().startswith(b"\x89PNG")
        assert "4 runs, 2 groups" in capsys.readouterr().out

    def test_text(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        main([str(runs), "--text"])
        assert re.search(
            r"0\.7650 \[0\.7015, 0\.8285\] +\+0\.2500 +1 +not decided", capsys.readouterr().out
        )
        assert not (runs / "report.html").exists()

    def test_text_counts_the_seeds_of_the_mean(
        self, runs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_run(runs / "symmetric_3", [None, None], seed=3, parts={"ratio": "symmetric"})
        main([str(runs), "--text"])
        assert re.search(r"ratio=symmetric +2 of 3 +0\.7650", capsys.readouterr().out)

    @pytest.mark.parametrize("option", ["--samples", "--prompts"])
    def test_negative_numbers(self, option: str, runs: Path) -> None:
        with pytest.raises(SystemExit, match=f"{option} -1: must be 0 or more"):
            main([str(runs), option, "-1"])


class TestWatch:
    def test_sparkline(self) -> None:
        assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
        assert sparkline([0, 0, 1, 1], 2) == "▁█"
        assert (sparkline([], 8), sparkline([1, 1], 8)) == ("", "▁▁")

    def test_ends_with_the_runs(self, runs: Path) -> None:
        console = Console(record=True, force_terminal=True, width=120, height=40)
        watch([runs], ["val/accuracy"], False, console)
        shown = console.export_text()
        assert "clip_higher_1" in shown
        assert "seed 1" in shown
