"""`python -m rlmods.diff`: where and why two runs part."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlmods.cli import job
from rlmods.cli.command import configuration
from rlmods.errors import UserError
from rlmods.lab.diff import FirstDifference, causes, diff, text
from rlmods.run.directory import RUN_DIR_VARIABLE, release
from rlmods.run.saved import SavedRun

ROW = {
    "id": "p",
    "prompt": "1+1=",
    "answer": "2",
    "tokens": [3, 4, 5],
    "response": "2",
    "reward": 1.0,
    "advantage": 0.5,
    "kept": True,
}


def write(
    run: Path,
    *,
    config: str = "seed: 1\n",
    grad_norm: float = 1.0,
    sources: str = "",
    versions: str = "",
    **changes: Any,
) -> Path:
    """Write a run of two iterations; `changes` are those of the second row of the second
    iteration."""
    for folder in ("samples", "checkpoints"):
        (run / folder).mkdir(parents=True)
    for name, content in {
        "config.yaml": config,
        "sources.txt": sources,
        "versions.txt": versions,
    }.items():
        (run / name).write_text(content)
    metrics = [
        {
            "iteration": i,
            "wall_s": id(run),
            "train/tool_s": id(run),
            "train/grad_norm": grad_norm if i == 2 else 1.0,
        }
        for i in (1, 2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    for i in (1, 2):
        rows = [ROW, ROW | changes if i == 2 else ROW]
        (run / f"samples/iteration_{i:06d}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "a")


class TestFirstDifference:
    @pytest.mark.parametrize(
        ("changes", "stage", "where"),
        [
            (
                {"tokens": [3, 9, 5], "reward": 0.0},
                "rollout",
                "row 1 (prompt p), tokens, token 1: 4 -> 9",
            ),
            ({"tokens": [3, 4]}, "rollout", "row 1 (prompt p), tokens, token 2: 5 -> end"),
            ({"id": "q"}, "rollout", "row 1 (prompt p), id: p -> q"),
            ({"reward": 0.5, "advantage": 0.0}, "reward", "row 1 (prompt p), reward: 1.0 -> 0.5"),
            ({"advantage": 0.25}, "advantage", "row 1 (prompt p), advantage: 0.5 -> 0.25"),
            ({"grad_norm": 2.0}, "update", "train/grad_norm: 1.0 -> 2.0"),
        ],
    )
    def test_first_stage_row_and_token(
        self, changes: dict[str, Any], stage: str, where: str, run: Path, tmp_path: Path
    ) -> None:
        assert diff(run, write(tmp_path / "b", **changes))[0] == FirstDifference(2, stage, where)

    def test_equal_runs_do_not_part(self, run: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "b", config="seed: 1\nrun_dir: elsewhere\n")
        assert diff(run, other) == (None, [])
        assert "equal in all iterations that both have, 1 to 2" in text(run, other)

    def test_runs_without_a_common_iteration(self, run: Path, tmp_path: Path) -> None:
        """A fork begins after the iteration it is from."""
        other = write(tmp_path / "b")
        (other / "metrics.jsonl").write_text('{"iteration": 3, "train/grad_norm": 1.0}\n')
        assert text(run, other) == f"{run} and {other} have no iteration in common"


class TestCauses:
    def test_the_closest_stage_before_the_parting_is_first(self, run: Path, tmp_path: Path) -> None:
        changed = (
            "seed: 1\nreward: {a: 1}\nratio: {low: 2}\nadvantage: {eps: 3}\nlogger: {x: "
            "1}\nvalidation: {every: 1}\n"
        )
        other = write(tmp_path / "b", config=changed)

        def order(stage: str, iteration: int = 1) -> list[str]:
            return [
                cause.name
                for cause in causes(
                    SavedRun(run), SavedRun(other), FirstDifference(iteration, stage, "")
                )
            ]

        assert order("reward") == ["reward.a", "ratio.low", "advantage.eps"]
        assert order("advantage") == ["advantage.eps", "reward.a", "ratio.low"]
        assert order("update") == ["ratio.low", "advantage.eps", "reward.a"]
        assert order("rollout", 2) == ["ratio.low", "advantage.eps", "reward.a"]
        assert order("validation", 1)[0] == "validation.every"

    def test_sources_packages_and_processor(self, run: Path, tmp_path: Path) -> None:
        first = write(
            tmp_path / "b",
            sources="1 rlmods/ratio/clipped.py\n",
            versions="command train.py\ntorch 1\nprocessor A\n",
        )
        second = write(
            tmp_path / "c",
            sources="2 rlmods/ratio/clipped.py\n",
            versions="command train.py seed=1\ntorch 2\nprocessor B\n",
        )
        found = causes(SavedRun(first), SavedRun(second), FirstDifference(1, "update", ""))
        assert [(x.kind, x.name) for x in found] == [
            ("source", "rlmods/ratio/clipped.py"),
            ("package", "torch"),
            ("machine", "processor"),
        ]

    def test_one_of_several_settings_is_not_given_as_the_cause(
        self, run: Path, tmp_path: Path
    ) -> None:
        one = text(run, write(tmp_path / "b", config="seed: 1\nratio: {low: 2}\n", grad_norm=2.0))
        assert "\ncause: setting ratio.low" in one
        several = text(
            run,
            write(
                tmp_path / "c",
                config="seed: 1\nratio: {low: 2}\nadvantage: {eps: 3}\n",
                grad_norm=2.0,
            ),
        )
        assert re.search(
            r"\n\d+ settings differ, and any of them may be the cause; the most likely one: "
            r"setting ratio\.low",
            several,
        )

    def test_options_come_before_settings_and_keys_of_hydra_are_not_named(
        self, run: Path, tmp_path: Path
    ) -> None:
        """Of an option that differs, its own settings are consequences."""
        first = write(tmp_path / "b", config="seed: 1\nreward: {_target_: x.A}\n")
        second = write(
            tmp_path / "c",
            config="seed: 1\nreward: {_target_: x.B, _convert_: all, a: 2}\njudge: {b: 2}\n",
            reward=0.5,
        )
        for path, option in ((first, "accuracy"), (second, "math")):
            (path / "summary.json").write_text(json.dumps({"parts": {"reward": option}}))
        found = causes(SavedRun(first), SavedRun(second), FirstDifference(1, "reward", ""))
        assert [str(cause) for cause in found] == [
            "option reward: accuracy -> math",
            "setting judge.b: None -> 2",
            "setting reward.a: None -> 2",
        ]
        (tmp_path / "d").mkdir()
        typed = write(tmp_path / "d/x", config="seed: 1\nreward: {_target_: x.B}\n", reward=0.5)
        found = causes(SavedRun(run), SavedRun(typed), FirstDifference(1, "reward", ""))
        assert [str(cause) for cause in found] == ["setting reward: None -> x.B"]

    def test_an_option_and_its_settings_are_one_cause(self, run: Path, tmp_path: Path) -> None:
        other = write(
            tmp_path / "b", config="seed: 1\nratio: {_target_: x.B, high: 2}\n", grad_norm=2.0
        )
        (other / "summary.json").write_text('{"parts": {"ratio": "clip_higher"}}')
        shown = text(run, other)
        assert "\ncause: option ratio: None -> clip_higher\n" in shown
        assert "also different: setting ratio.high" in shown

    def test_without_a_recorded_difference_it_says_so(self, run: Path, tmp_path: Path) -> None:
        assert "no cause is recorded" in text(run, write(tmp_path / "b", grad_norm=2.0))


def test_a_folder_that_is_not_a_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        diff(run, tmp_path)


BASE = (
    "algo=grpo",
    "sampling=fixed",
    "data.num_train=16",
    "data.num_val=4",
    "batch.prompts=4",
    "batch.samples=4",
    "batch.minibatches=2",
    "rollout.max_tokens=8",
    "optimizer.lr=0.0003",
    "trainer.accelerator=cpu",
    "trainer.max_iterations=2",
    "callbacks.checkpoint.every=1",
    "callbacks.checkpoint.keep=0",
    "callbacks.samples.print_every=0",
    "~logger.tensorboard",
    "~logger.csv",
)
PLANTED = {
    "rollout.temperature=0.9": "rollout.temperature",
    "advantage.unbiased=false": "advantage.unbiased",
    "optimizer.lr=0.0002": "optimizer.lr",
}
"""Overrides, one for each stage that shows them, and the setting to name."""


def train(folder: Path, *overrides: str) -> Path:
    """Train in this process, and return the run directory."""
    words = [*BASE, *overrides, f"run_dir={folder}"]
    job.train(configuration(words), {}, words)
    release(folder)
    return folder


@pytest.mark.slow
def test_planted_changes_of_a_run_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, "")
    base = train(tmp_path / "base")
    shutil.copytree(base, tmp_path / "copy")
    assert diff(base, tmp_path / "copy") == (None, [])
    for i, (override, name) in enumerate(PLANTED.items()):
        parting, found = diff(base, train(tmp_path / f"{i}", override))
        assert parting is not None
        assert found[0].name == name
