"""The scripts in docs/: what they type is what the command line takes."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hydra import compose, initialize_config_dir

from rlmods.cli.command import configuration
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.data import Arithmetic, Preferences
from rlmods.run import name

DOCS = CONF.parent / "docs"


def script(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{stem}", DOCS / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def typed(arguments: list[str]) -> list[str]:
    """The overrides of a training command."""
    plugins.register()
    name.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        compose("train", arguments)
    return arguments


class TestRLHF:
    @pytest.fixture
    def road(self) -> ModuleType:
        return script("rlhf")

    def test_every_stage_can_be_typed(self, road: ModuleType, tmp_path: Path) -> None:
        stages = road.stages(tmp_path)
        trained = [arguments[1:] for arguments in stages.values() if arguments[0] == road.TRAIN]
        assert len(trained) == 6
        for arguments in trained:
            typed(arguments)
        assert {"sft", "reward_model", *road.COMPARED} <= set(stages)
        for stage in ("collect", "label"):
            module, _, *overrides = stages[stage][1:]
            configuration(overrides, settings=import_module(module).Settings)

    def test_a_run_with_and_one_without_the_penalty_differ_in_that_alone(self, road: ModuleType, tmp_path: Path) -> None:
        stages = road.stages(tmp_path)
        differ = set(stages["ppo"]) ^ set(stages["ppo_without_kl"])
        assert differ == {"kl.coefficient=1", "kl.coefficient=0", f"run_dir={tmp_path}/ppo", f"run_dir={tmp_path}/ppo_without_kl"}

    def test_held_out_sums_are_those_of_all_the_others(self, road: ModuleType, tmp_path: Path) -> None:
        road.write_held_out(tmp_path / "val.jsonl")
        splits = Preferences(str(tmp_path / "val.jsonl"), num_val=0)()
        assert {p.text for p in splits.train} == {p.text for p in Arithmetic()().val}
        for prompt in splits.train:
            right = prompt.meta["candidates"][prompt.meta["ranks"].index(0)]
            assert right == f"<answer>{prompt.answer}</answer>"
            assert sorted(prompt.meta["ranks"]) == [0, 1, 1, 1]

    def test_table_and_plot(self, road: ModuleType, tmp_path: Path) -> None:
        measured = {run: dict.fromkeys(road.COLUMNS, 0.5) for run in road.COMPARED}
        for run in road.COMPARED:
            (tmp_path / run).mkdir()
            row = {"iteration": 1, **dict.fromkeys(road.PANELS, 0.5)}
            (tmp_path / run / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
        road.show(tmp_path, measured, dict.fromkeys(road.COMPARED, 1.0))
        road.plot(tmp_path, measured)
        assert len((tmp_path / "table.md").read_text().splitlines()) == 2 + len(road.COMPARED)
        assert (tmp_path / "rlhf.png").stat().st_size > 1000


class TestAlgorithms:
    def test_every_row_can_be_typed_and_every_algorithm_has_one(self) -> None:
        rows = script("algorithms").ROWS
        for row in rows:
            typed(row.command.split())
        named = {row.name.removeprefix("tiny_") for row in rows}
        options = {path.stem for path in (CONF / "algo").glob("*.yaml")}
        assert options - named == {"policy_gradient", "iterative_grpo"}, "the bare loop; what needs a reward model first"

    def test_the_table_has_every_row(self) -> None:
        page = (DOCS / "algorithms.md").read_text()
        assert all(f"`{row.command}`" in page for row in script("algorithms").ROWS)


class TestGrader:
    ROWS = (
        {"gold": "1/2", "pred_text": r"\boxed{0.5}", "expected": True, "category": "fraction"},
        {"gold": "2", "pred_text": r"\boxed{3}", "expected": True, "category": "integer"},
        {"gold": "2", "pred_text": r"\boxed{2}", "expected": False, "category": "hostile"},
        {"gold": "2", "pred_text": r"\boxed{2}", "expected": None, "category": "integer"},
    )

    def test_agreement_and_false_positives(self) -> None:
        found = script("grader").measure("ours", list(self.ROWS))
        assert (found["rows"], found["agreement"], found["hostile_false_positives"]) == (4, 0.3333, 1)
        assert found["ordinary_rows_per_s"] > 0

    def test_what_takes_too_long_is_counted_and_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = script("grader")

        def slow(text: str, gold: str) -> bool:
            if gold == "1/2" and seen:
                time.sleep(60)
            seen.append(gold)
            return True

        seen: list[str] = []
        monkeypatch.setattr(bench, "LIMIT_S", 1)
        monkeypatch.setitem(bench.GRADERS, "ours", lambda: slow)
        found = bench.measure("ours", list(self.ROWS))
        assert found["raised_or_late"] == 1
        assert found["slowest_s"] < 10
