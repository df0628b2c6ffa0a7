"""Finding runs, and their groups."""

import math
from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.lab.groups import find_runs, group_runs
from tests.support.saved_runs import write_run


class TestFind:
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

    def test_settings_of_an_option_tell_its_groups_apart(self, tmp_path: Path) -> None:
        """Not of another option, whose settings are its own."""
        for folder, option, width in [("a", "fading", 0.2), ("b", "fading", 0.5), ("c", "soft", 1)]:
            write_run(
                tmp_path / folder,
                [0.5],
                parts={"ratio": option},
                settings={"ratio": {option: width}},
            )
        assert [group.name for group in group_runs(find_runs([tmp_path]))] == [
            "ratio=fading, ratio.fading=0.2",
            "ratio=fading, ratio.fading=0.5",
            "ratio=soft",
        ]

    def test_of_algorithms_are_named_by_them_alone(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a", [0.5])
        write_run(tmp_path / "b", [0.5], parts={"algo": "grpo", "ratio": "symmetric"})
        assert [group.name for group in group_runs(find_runs([tmp_path]))] == [
            "algo=dapo",
            "algo=grpo",
        ]

    def test_of_algorithms_are_named_by_other_data_too(self, tmp_path: Path) -> None:
        """No recipe chooses data, policy, validation, optimizer or precision."""
        write_run(tmp_path / "imported", [0.5], parts={"algo": "trl"})
        hard = {"data": {"level": 5, "num": None}, "trainer": {"precision": "bf16-mixed"}}
        easy = {"data": {"level": 1, "num": 9}, "trainer": {"precision": "32-true"}}
        write_run(tmp_path / "a", [0.5], settings=hard)
        parts = {"algo": "grpo", "ratio": "symmetric"}
        write_run(tmp_path / "b", [0.5], parts=parts, settings=easy)
        assert [set(group.name.split(", ")) for group in group_runs(find_runs([tmp_path]))] == [
            {"algo=dapo", "data.level=5", "data.num=null", "trainer.precision=bf16-mixed"},
            {"algo=grpo", "data.level=1", "data.num=9", "trainer.precision=32-true"},
            {"algo=trl", "data.level=null", "data.num=null", "trainer.precision=32-true"},
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
