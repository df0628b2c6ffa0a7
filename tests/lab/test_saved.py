"""Runs on disk, and their groups."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from rlmods.report.curves import curves

from rlmods.errors import UserError
from rlmods.lab.saved import SavedRun, find_runs, group_runs
from tests.support.saved_runs import write_run


class TestRun:
    def test_series_and_result(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25, None, 0.5, 0.75], seed=3))
        assert run.series("val/accuracy") == [(0, 0.25), (2, 0.5), (3, 0.75)]
        assert (run.result("val/accuracy"), run.result("val/accuracy", last=2)) == (0.75, 0.625)
        assert run.result("train/reward") is None
        assert (run.seed, run.label, run.exit, run.parts["ratio"]) == (
            3,
            "dapo",
            "finished",
            "clip_higher",
        )

    def test_values_that_are_no_numbers_are_skipped(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25]))
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(
                '{"iteration": 1, "val/accuracy": "0.5"}\n{"iteration": "2", "val/accuracy": 1}\n'
            )
            file.write(
                '{"iteration": 3, "val/accuracy": NaN}\n{"iteration": 4, "val/accuracy": 1e308}\n'
            )
            file.write(
                '{"iteration": 5, "val/accuracy": true}\n{"iteration": true, "val/accuracy": 1}\n'
            )
            file.write('{"iteration": -1, "val/accuracy": 1}\n{"iter')
        assert run.series("val/accuracy") == [(0, 0.25)]

    def test_a_summary_larger_than_the_memory_is_an_error(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25]))
        os.truncate(run.path / "summary.json", 2**40)
        with pytest.raises(UserError, match=r"summary\.json: cannot be read"):
            run.summary  # noqa: B018

    def test_huge_numbers_are_skipped(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25]))
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(
                f'{{"iteration": 1{"0" * 400}, "val/accuracy": 1}}\n{{"iteration": 1, '
                f'"val/accuracy": 1{"0" * 400}}}\n'
            )
        assert run.series("val/accuracy") == [(0, 0.25)]
        assert curves(group_runs([run])[0], 10)["val/accuracy"].iterations == [0.0]

    def test_prompts(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.5], correct={"x": True, "y": False, "z": None}))
        with (run.path / "samples/validation_000000.jsonl").open("a") as file:
            file.write('{"id": "y", "correct": true, "temperature": 1.0}\n')
        assert run.by_prompt() == {"x": 1.0, "y": 0.0}  # of the greedy responses

    def test_a_run_that_has_not_ended(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.5], exit=None))
        assert (run.exit, run.label, run.parts, run.overrides) == ("not finished", "dapo", {}, None)

    @pytest.mark.parametrize(
        "text", ["a: &x [1]\nb: *x\n", "a: [", "!!python/object/apply:os.system ['true']\n", "\x00"]
    )
    def test_a_broken_or_hostile_config_is_one_line(self, text: str, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "a", [0.5])
        (folder / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml: .*give another run") as error:
            SavedRun(folder).config  # noqa: B018
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("seed", [[1], {"a": 1}, None, 1.5, True])
    def test_a_seed_that_is_no_number_is_a_text(self, seed: object, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.5], settings={"seed": seed}))
        assert run.seed == str(seed)
        assert group_runs([run])[0].results("val/accuracy") == {str(seed): 0.5}

    def test_keys_of_several_types(self, tmp_path: Path) -> None:
        folder = write_run(tmp_path / "a", [0.5])
        with (folder / "config.yaml").open("a") as file:
            file.write("x: [{2020-01-01: 2, a: 3, 1: 2}]\n")
        other = SavedRun(write_run(tmp_path / "b", [0.5]))
        assert [group.name for group in group_runs([SavedRun(folder), other])][1] == "x=null"

    def test_numbers_beyond_floats_are_skipped(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "a", [0.25]))
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(
                f'{{"iteration": 1, "val/accuracy": 1{"0" * 400}}}\n{{"iteration": 2, '
                f'"val/accuracy": -1e999}}\n'
            )
        assert run.series("val/accuracy") == [(0, 0.25)]


class TestFind:
    def test_links_that_lead_back(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5])
        for i in range(30):
            (tmp_path / f"link{i}").symlink_to(tmp_path)
        assert [run.path.name for run in find_runs([tmp_path])] == ["a"]

    def test_in_natural_order_and_once(self, tmp_path: Path) -> None:
        for seed in (10, 2):
            write_run(tmp_path / f"sweep/seed={seed}", [0.5], seed=seed)
        (tmp_path / "sweep/other").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "sweep")
        found = find_runs([tmp_path / "sweep/seed=10", tmp_path, tmp_path / "sweep"])
        assert [run.path.name for run in found] == ["seed=10", "seed=2"]

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no run in it"):
            find_runs([tmp_path])
        with pytest.raises(UserError, match="no such folder"):
            find_runs([tmp_path / "none"])


class TestGroups:
    def test_differ_in_more_than_the_seed(self, tmp_path: Path) -> None:
        for seed in (1, 2):
            write_run(tmp_path / f"a{seed}", [0.5], seed=seed)
            write_run(tmp_path / f"b{seed}", [0.5], seed=seed, parts={"ratio": "symmetric"})
            write_run(tmp_path / f"c{seed}", [0.5], seed=seed, settings={"batch": {"samples": 4}})
        groups = group_runs(find_runs([tmp_path]))
        assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [
            ("ratio=clip_higher, batch.samples=null", [1, 2]),
            ("ratio=symmetric, batch.samples=null", [1, 2]),
            ("ratio=clip_higher, batch.samples=4", [1, 2]),
        ]

    def test_of_algorithms_are_named_by_them_alone(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5])
        write_run(tmp_path / "b", [0.5], parts={"algo": "grpo", "ratio": "symmetric"})
        assert [group.name for group in group_runs(find_runs([tmp_path]))] == [
            "algo=dapo",
            "algo=grpo",
        ]

    def test_of_variants_are_named_by_them_alone(self, tmp_path: Path) -> None:
        names = {"one": "symmetric", "two": "clip_higher"}
        for variant, ratio in names.items():
            for seed in (1, 2):
                write_run(
                    tmp_path / f"{variant}-{seed}",
                    [0.5],
                    seed=seed,
                    parts={"variant": variant, "ratio": ratio},
                )
        groups = group_runs(find_runs([tmp_path]))
        assert [group.name for group in groups] == ["variant=one", "variant=two"]
        write_run(tmp_path / "two-3", [0.5], parts={"variant": "two", "ratio": "none"})
        names_within = {group.name for group in group_runs(find_runs([tmp_path]))}
        assert names_within == {
            "variant=one, ratio=symmetric",
            "variant=two, ratio=clip_higher",
            "variant=two, ratio=none",
        }

    def test_a_single_one_has_the_label(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5])
        assert [group.name for group in group_runs(find_runs([tmp_path]))] == ["dapo"]

    def test_a_run_twice(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5])
        write_run(tmp_path / "b", [0.6])
        with pytest.raises(UserError, match="the same settings and seed"):
            group_runs(find_runs([tmp_path]))

    def test_results_leave_out_runs_without_one(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5], seed=1)
        write_run(tmp_path / "b", [None], seed=2)
        [group] = group_runs(find_runs([tmp_path]))
        assert group.results("val/accuracy") == {1: 0.5}
        assert not math.isnan(group.results("val/accuracy")[1])
