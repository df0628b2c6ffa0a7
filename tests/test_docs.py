"""The pages and scripts in docs/: generated pages are up to date, and commands in scripts are
valid."""

import importlib.util
import json
import re
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from rlmods.cli.command import configuration
from rlmods.config import plugins
from rlmods.config.options import CONF, groups, options
from rlmods.data import Arithmetic, Preferences
from rlmods.run import name

ROOT = CONF.parent
DOCS = ROOT / "docs"


def script(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{stem}", ROOT / "bench" / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look modules up here
    spec.loader.exec_module(module)
    return module


def check_overrides(overrides: list[str]) -> None:
    """Compose the configuration of a training command."""
    plugins.register()
    name.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        compose("train", overrides)


def fenced_commands() -> list[tuple[str, list[str]]]:
    """Return the page and the words, from `train.py` or `rlmods.COMMAND` on, of every Python
    command in a fenced block."""
    # their commands are run, in tests/cli
    run = ("first_hour.md", "own_algorithm.md", "own_idea.md")
    pages = [page for page in sorted(DOCS.glob("*.md")) if page.name not in run]
    files = (ROOT / "README.md", *pages)
    blocks = [
        (file.name, *block)
        for file in files
        for block in re.findall(r"^```(\w*)\n(.*?)^```$", file.read_text(), re.M | re.S)
    ]
    lines = [
        (file, line)
        for file, language, block in blocks
        if language in ("", "bash")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    matches = [(file, re.search(r"(train\.py|rlmods\.\w+) .*", line)) for file, line in lines]
    return [(file, shlex.split(match[0], comments=True)) for file, match in matches if match]


def command_settings(module: ModuleType) -> type[Any]:
    """Return the settings of a command, a dataclass such as `PlanSettings`."""
    name = next(x for x in vars(module) if x.endswith("Settings") and x[0].isupper())
    kind: type[Any] = getattr(module, name)
    return kind


class TestCommands:
    @pytest.mark.parametrize(
        ("page", "words"),
        fenced_commands(),
        ids=lambda x: x if isinstance(x, str) else " ".join(x[:3]),
    )
    @pytest.mark.slow
    def test_overrides_compose(self, page: str, words: list[str]) -> None:
        command, *arguments = words
        if command != "train.py":
            module = import_module(command)
            if hasattr(module, "__path__"):
                module = import_module(f"{command}.__main__")
            if hasattr(module, "parse"):  # a command without settings of a run
                module.parse(arguments)
            elif command != "rlmods.plugin":  # which takes no settings
                overrides = [word for word in arguments if "=" in word]
                configuration(overrides, settings=command_settings(module))
        elif arguments[0] == "-m":  # the first job of a sweep
            check_overrides([word.split(",")[0] for word in arguments[1:]])
        else:
            check_overrides(arguments)

    def test_every_kind_of_command_is_found(self) -> None:
        assert {words[0] for _, words in fenced_commands()} >= {
            "train.py",
            "rlmods.plan",
            "rlmods.collect",
            "rlmods.label",
        }


def test_files_that_one_step_names_exist() -> None:
    for path in re.findall(r"`(rlmods/[\w/.]+)`", (DOCS / "one_step.md").read_text()):
        assert (ROOT / path).exists(), path


class TestTuning:
    ROWS = tuple(
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / "tuning.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| symptom")
    )

    @pytest.mark.slow
    def test_overrides_compose(self) -> None:
        assert all(len(row) == 3 for row in self.ROWS)
        spans = {
            span
            for row in self.ROWS
            for span in re.findall(r"`([^`]+)`", row[2])
            if "=" in span or span.startswith("~")
        }
        assert len(spans) > 40
        for span in sorted(spans):
            check_overrides(shlex.split(span))

    def test_metrics_exist(self) -> None:
        source = "".join(path.read_text() for path in (ROOT / "rlmods").rglob("*.py"))
        names = {
            span
            for row in self.ROWS
            for span in re.findall(r"`((?:train|val|time)/[^`]+)`", row[0])
        }
        assert len(names) > 15
        # `log_by_source`
        by_source = {
            f"{phase}/{name}" for phase in ("train", "val") for name in ("reward", "accuracy")
        }
        for metric in names - {"time/rollout_s", "val/mean@k", "val/pass@k"} - by_source:
            assert f'"{metric}"' in source, metric


class TestOptions:
    def test_page_is_up_to_date(self) -> None:
        assert (DOCS / "options.md").read_text() == f"{script('pages').options_page()}\n"

    def test_every_option_has_a_description(self) -> None:
        assert {folder.name for folder in CONF.iterdir() if folder.is_dir()} == set(groups())
        for group in groups():
            for option, text in options(group).items():
                assert text, f"conf/{group}/{option}.yaml has no first comment"


class TestRLHF:
    @pytest.fixture
    def pipeline(self) -> ModuleType:
        return script("rlhf")

    def test_commands_of_all_stages_are_valid(self, pipeline: ModuleType, tmp_path: Path) -> None:
        stages = pipeline.stages(tmp_path)
        training = [
            arguments[1:] for arguments in stages.values() if arguments[0] == pipeline.TRAIN
        ]
        assert len(training) == 6
        for arguments in training:
            check_overrides(arguments)
        assert {"sft", "reward_model", *pipeline.COMPARED} <= set(stages)
        for stage in ("collect", "label"):
            module, _, *overrides = stages[stage][1:]
            configuration(overrides, settings=command_settings(import_module(module)))

    def test_runs_with_and_without_the_penalty_differ_only_in_its_coefficient(
        self, pipeline: ModuleType, tmp_path: Path
    ) -> None:
        stages = pipeline.stages(tmp_path)
        difference = set(stages["ppo"]) ^ set(stages["ppo_without_kl"])
        assert difference == {
            "kl.coefficient=1",
            "kl.coefficient=0",
            f"run_dir={tmp_path}/ppo",
            f"run_dir={tmp_path}/ppo_without_kl",
        }

    @pytest.mark.slow
    def test_held_out_prompts_are_the_validation_split_of_arithmetic(
        self, pipeline: ModuleType, tmp_path: Path
    ) -> None:
        pipeline.write_held_out(tmp_path / "val.jsonl")
        splits = Preferences(str(tmp_path / "val.jsonl"), num_val=0)()
        assert {p.text for p in splits.train} == {p.text for p in Arithmetic()().val}
        for prompt in splits.train:
            best = prompt.meta["candidates"][prompt.meta["ranks"].index(0)]
            assert best == f"<answer>{prompt.answer}</answer>"
            assert sorted(prompt.meta["ranks"]) == [0, 1, 1, 1]

    def test_table_and_plot(self, pipeline: ModuleType, tmp_path: Path) -> None:
        metrics = {run: dict.fromkeys(pipeline.COLUMNS, 0.5) for run in pipeline.COMPARED}
        for run in pipeline.COMPARED:
            (tmp_path / run).mkdir()
            row = {"iteration": 1, **dict.fromkeys(pipeline.PANELS, 0.5)}
            (tmp_path / run / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
        pipeline.show(tmp_path, metrics)
        pipeline.plot(tmp_path, metrics)
        assert len((tmp_path / "table.md").read_text().splitlines()) == 2 + len(pipeline.COMPARED)
        assert (tmp_path / "rlhf.png").stat().st_size > 1000


class TestAlgorithms:
    @pytest.mark.slow
    def test_commands_are_valid_and_cover_every_algorithm(self) -> None:
        algorithms = script("algorithms")
        for row in algorithms.ROWS:
            check_overrides(row.command.split())
        measured = {row.name.removeprefix("tiny_") for row in algorithms.ROWS}
        names = {path.stem for path in (CONF / "algo").glob("*.yaml")}
        assert measured.isdisjoint(algorithms.NOT_MEASURED)
        assert measured | set(algorithms.NOT_MEASURED) == names

    def test_page_has_a_row_for_every_command(self) -> None:
        page = (DOCS / "algorithms.md").read_text()
        assert all(f"`{row.command}`" in page for row in script("algorithms").ROWS)


class TestAgents:
    @staticmethod
    def write(run: Path, accuracies: list[float], **metrics: float) -> None:
        run.mkdir(parents=True)
        rows = [{"iteration": 0, "val/accuracy": accuracies[0]}]
        rows += [
            {"iteration": i, "val/accuracy": value, **metrics}
            for i, value in enumerate(accuracies[1:], 1)
        ]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def test_commands_are_valid_and_differ_in_the_algorithm_only(self, tmp_path: Path) -> None:
        agents = script("agents")
        check_overrides([agents.WARM_START])
        commands = {name: agents.command(name, 1, tmp_path) for name in agents.ALGORITHMS}
        for words in commands.values():
            check_overrides(words)
        difference = set(commands["GRPO"]) ^ set(commands["DAPO"])
        assert difference == {
            "algo=grpo",
            "algo=dapo",
            f"run_dir={tmp_path}/grpo-1",
            f"run_dir={tmp_path}/dapo-1",
        }

    def test_tokens_that_branches_share_are_counted_once(self, tmp_path: Path) -> None:
        metrics = {"train/responses": 10.0, "train/response_tokens": 30.0, "train/tool_calls": 2.0}
        self.write(tmp_path / "all", [0.0, 0.5, 0.9], **metrics)
        self.write(
            tmp_path / "own",
            [0.0, 0.5, 0.9],
            **metrics,
            **{"train/shared_tokens": 12.0, "train/shared_tool_calls": 0.5},
        )
        agents = script("agents")
        found = agents.read_curve(tmp_path / "all")
        assert (found.tokens, found.calls, found.accuracy) == (
            [0, 300, 600],
            [0, 20, 40],
            [0.0, 0.5, 0.9],
        )
        found = agents.read_curve(tmp_path / "own")
        assert (found.tokens, found.calls) == ([0, 180, 360], [0, 15, 30])

    def test_the_target_is_reached_by_two_validations_in_a_row(self) -> None:
        curve = script("agents").Curve([1, 2, 3, 4, 5], [0] * 5, [0.1, 0.9, 0.7, 0.8, 0.85])
        assert (curve.first(0.8), curve.first(0.9)) == (3, None)

    def test_table_and_plot(self, tmp_path: Path) -> None:
        agents = script("agents")
        curve = agents.Curve([0, 1000, 2000], [0, 10, 20], [0.0, 0.9, 0.9])
        slow = agents.Curve([0, 1000, 2000], [0, 10, 20], [0.0, 0.1, 0.9])
        curves = {name: [curve, curve] for name in agents.ALGORITHMS} | {"PPO": [curve, slow]}
        lines = agents.table(curves).splitlines()
        assert lines[2] == "| ARPO | 0.000 | 0.900 | 0.900 | 1,000 | 10 | 2,000 | 20 |"
        assert lines[-1] == "| PPO | 0.000 | 0.900 | 0.900 | 1 of 2 | 1 of 2 | 2,000 | 20 |"
        agents.draw(curves, tmp_path / "plot.png")
        assert (tmp_path / "plot.png").stat().st_size > 1000


class TestGrader:
    ROWS = (
        {"gold": "1/2", "pred_text": r"\boxed{0.5}", "expected": True, "category": "fraction"},
        {"gold": "2", "pred_text": r"\boxed{3}", "expected": True, "category": "integer"},
        {"gold": "2", "pred_text": r"\boxed{2}", "expected": False, "category": "hostile"},
        {"gold": "2", "pred_text": r"\boxed{2}", "expected": None, "category": "integer"},
    )

    def test_agreement_and_false_positives(self) -> None:
        with pytest.raises(
            SystemExit, match="row 2 has no expected: each needs gold, pred_text, expected"
        ):
            script("grader").measure(
                "ours", [self.ROWS[0], {"gold": "1", "pred_text": "1", "category": "a"}]
            )
        result = script("grader").measure("ours", list(self.ROWS))
        assert (result["rows"], result["agreement"], result["hostile_false_positives"]) == (
            4,
            0.3333,
            1,
        )
        assert result["ordinary_rows_per_s"] > 0

    def test_timeouts_are_counted_as_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = script("grader")

        def slow(text: str, gold: str, question: str) -> bool:
            if gold == "1/2" and calls:
                time.sleep(60)
            calls.append(gold)
            return True

        calls: list[str] = []
        monkeypatch.setattr(bench, "LIMIT_S", 1)
        monkeypatch.setitem(bench.GRADERS, "ours", lambda: slow)
        result = bench.measure("ours", list(self.ROWS))
        assert result["raised_or_late"] == 1
        assert result["slowest_s"] < 10
