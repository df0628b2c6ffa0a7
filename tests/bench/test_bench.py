"""The benchmark measures both sides at the same work and reports what was measured."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import growth, ours, process, records, report, scale, workloads
from bench.endless import Endless
from bench.limit import Architecture, Rates, update_flops
from bench.records import Record, Run, Side
from bench.report import Comparison
from bench.workloads import WORKLOADS, Inputs
from rlmods.reward import Regex
from rlmods.types import Prompt, Response
from tests.support.processes import Process

pytestmark = pytest.mark.slow

MINI = WORKLOADS["mini"]
ARCH = Architecture(
    linear=[(4, 8)], head=(8, 10), layers=1, heads=2, key_heads=1, head_size=2, parameters=100
)
RATES = Rates(update_flops=1e4, decode_flops=1e4, copy_bytes=1e5)


def forked(arguments: Sequence[str], log: Path) -> tuple[float, float]:
    """Run a command of Python as `run_python` does, in a process that starts fast."""
    log.parent.mkdir(parents=True, exist_ok=True)
    running = Process([part for part in arguments if part not in ("-W", "ignore")], merge=True)
    output, _ = running.communicate()
    log.write_text(output)
    assert running.returncode == 0, output[-2000:]
    return 1.0, 5e8


def record(
    seconds: float, rollout: float = 0.1, update: float = 0.2, responses: Sequence[int] = (3, 2)
) -> Record:
    stages = {
        "rollout": rollout,
        "reward": 0.0,
        "score": 0.0,
        "update": update,
        "other": seconds - rollout - update,
    }
    return Record(seconds, stages, [5], responses)


def side(*seconds: float, peak: float = 1e9) -> Side:
    return Side([Run([record(s)], peak) for s in seconds])


@pytest.mark.slow
class TestProcess:
    def test_memory_is_the_largest_of_the_whole_tree(self, tmp_path: Path) -> None:
        """A process of a process holds 300 MB for a while and ends before the command does."""
        child = "import time; x = bytearray(b'1' * 300_000_000); time.sleep(0.5)"
        script = (
            f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {child!r}]); "
            "time.sleep(0.2)"
        )
        seconds, peak = process.run_python(["-c", script], tmp_path / "log")
        assert seconds > 0.7
        assert 3e8 < peak < 2e9

    def test_failure_shows_the_end_of_the_output(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match=r"exit status 3; .*log ends with\nbroken"):
            process.run_python(
                ["-c", "print('broken', flush=True); raise SystemExit(3)"], tmp_path / "log"
            )


class TestRecords:
    def test_are_read_as_written(self, tmp_path: Path) -> None:
        for seconds in (1.0, 2.0):
            records.append(tmp_path / "records", record(seconds))
        assert records.read(tmp_path / "records") == [
            replace(record(s), response_lengths=[3, 2]) for s in (1.0, 2.0)
        ]

    def test_tokens_per_second_weighs_iterations_by_their_time(self) -> None:
        run = Run([record(1.0), record(3.0, responses=(6, 15))], 0.0)
        assert run.tokens_per_s == (5 + 21) / 4

    def test_speedup_compares_processes_that_ran_side_by_side(self) -> None:
        ratio = records.speedup(side(1, 2, 4), side(2, 6, 20))
        assert (ratio.median, ratio.low, ratio.high) == pytest.approx((3, 2, 5))

    def test_different_work_is_an_error(self) -> None:
        records.check_same_work(side(1, 2), side(3, 4), 2)
        for other in (replace(record(1), prompt_lengths=[6]), record(1, responses=(3, 2, 2))):
            with pytest.raises(ValueError, match="iterations differ"):
                records.check_same_work(side(1), Side([Run([other], 0.0)]), 2)
        with pytest.raises(ValueError, match="number of responses"):
            records.check_same_work(side(1), side(1), 3)


class TestWorkloads:
    def test_reward_is_that_of_the_option(self) -> None:
        texts = ["", "8", "7", "the sea.", "it is b!", "x = 4\n", "x = 4 5"]
        responses = [
            Response(Prompt(id=str(i), text=""), text=text) for i, text in enumerate(texts)
        ]
        values = [workloads.reward(text) for text in texts]
        assert Regex(workloads.PATTERN)(responses).values == values
        assert values == [0, 1, 0, 1, 0, 1, 0]

    @pytest.mark.parametrize("name", WORKLOADS)
    def test_has_its_prompts(self, name: str) -> None:
        found = workloads.prompts(WORKLOADS[name])
        assert (
            len(found) == len({json.dumps(prompt) for prompt in found}) == WORKLOADS[name].prompts
        )

    def test_too_few_prompts_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="only 4 of 5 prompts"):
            workloads.prompts(replace(WORKLOADS["smollm2"], prompts=5))


class TestReport:
    def comparison(self, trl: Side | None) -> Comparison:
        return Comparison(
            replace(MINI, prompts=1, samples=2), side(1.0, 2.0, 2.0), trl, ARCH, RATES
        )

    def test_table_has_ratio_with_spread_stages_and_memory(self) -> None:
        text = report.comparison_table(self.comparison(side(2.0, 6.0, 8.0, peak=4e9)))
        assert "| response tokens per second | 2.5 | 0.833 | **3** (2 to 4) |" in text
        assert "| update, s | 0.2 | 0.2 | 1 |" in text
        assert "| peak memory, GB | 1 | 4 | 0.25 |" in text
        assert "| response tokens of an iteration | 5 | 5 | 1 |" in text

    def test_limit_over_the_measured_seconds(self) -> None:
        """Update: 3 forwards at the rate of products, and 7 passes of 4 bytes over 100 parameters
        at that of copies."""
        c = self.comparison(None)
        limit = update_flops(ARCH, [5], [3, 2]) / 1e4 + 2800 / 1e5
        assert c.reached(c.ours, "update") == pytest.approx(limit / 0.2)
        assert f"| {report.number(limit)} | {limit / 0.2:.0%} |" in report.limit_table(c)

    @pytest.mark.parametrize("busy", [False, True])
    def test_says_if_rates_were_disturbed(self, busy: bool) -> None:
        c = replace(
            self.comparison(None), rates=Rates(1.0, 1.0, 1.0) if busy else Rates(1e9, 1e9, 1e9)
        )
        assert ("More than 100 %" in report.limit_table(c)) == busy

    def test_says_if_the_machine_was_busy(self) -> None:
        assert "busy" in report.warn_of_load(1.0, 2)
        assert not report.warn_of_load(0.2, 2)


@pytest.mark.slow
class TestCommand:
    def test_measures_this_project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The miniature: its records come from `train.py`, its rates from a process of their
        own."""
        monkeypatch.setattr(command, "run_python", forked)
        monkeypatch.setattr(command, "ROOT", tmp_path)
        command.main(
            [
                "mini",
                "--rounds=1",
                "--warmup=1",
                "--iterations=2",
                "--rate-seconds=0",
                "--without-trl",
                "--out",
                str(tmp_path),
            ]
        )
        text = (tmp_path / "RESULTS.md").read_text()
        assert "## mini" in text
        assert "| rollout |" in text
        assert "TRL |" not in text
        for name in ("Command", "Date", "Machine", "Versions", "Load average before"):
            assert f"- {name}: " in text
        found = json.loads((tmp_path / "results.json").read_text())["workloads"]["mini"]
        iterations = [Record(**r) for r in found["runs"]["here"][0]["records"]]
        assert len(iterations) == 2
        for iteration in iterations:
            assert (len(iteration.prompt_lengths), len(iteration.response_lengths)) == (2, 4)
            assert 1 <= min(iteration.response_lengths) <= max(iteration.response_lengths) <= 4
            assert sum(iteration.stages.values()) == pytest.approx(iteration.seconds)
            assert (
                min(
                    iteration.stages["rollout"],
                    iteration.stages["update"],
                    iteration.stages["other"],
                )
                > 0
            )

    def test_unknown_workload(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            command.parse(["huge", "--without-trl"])
        assert "huge is not a workload: type some of tiny, smollm2" in capsys.readouterr().err

    @pytest.mark.skipif(find_spec("trl") is not None, reason="TRL is installed")
    def test_without_trl_says_how_to_install_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            command.parse(["mini"])
        assert "make bench" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")
class TestTRL:
    """Run with `.venv-bench/bin/python -m pytest tests/bench`, after `make bench` has made it."""

    @pytest.mark.slow
    def test_does_the_same_work(self, tmp_path: Path) -> None:
        """Other processes: TRL warns on import."""
        arguments = ["mini", "--rounds=1", "--rate-seconds=0", "--out", str(tmp_path)]
        subprocess.run(
            [sys.executable, "-m", "bench", *arguments],
            cwd=process.ROOT,
            check=True,
            capture_output=True,
        )
        runs = json.loads((tmp_path / "results.json").read_text())["workloads"]["mini"]["runs"]
        for name in ("here", "TRL"):
            for iteration in runs[name][0]["records"]:
                assert iteration["prompt_lengths"] == [6, 6]
                assert len(iteration["response_lengths"]) == 4
                assert sum(iteration["stages"].values()) == pytest.approx(iteration["seconds"])
                assert (
                    min(iteration["stages"][stage] for stage in ("rollout", "update", "other")) > 0
                )

    def test_settings_are_those_of_our_side(self, tmp_path: Path) -> None:
        script = f"""
import json
from bench import trl_side
from bench.workloads import WORKLOADS
config = trl_side.config(WORKLOADS["smollm2-bf16"], {str(tmp_path)!r}, per_device_train_batch_size=16)
print(json.dumps({{name: getattr(config, name) for name in
    ("learning_rate", "adam_beta2", "max_grad_norm", "epsilon_high", "bf16", "max_completion_length", "generation_batch_size",
     "max_steps")}}))
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=process.ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        settings = ours.arguments(
            WORKLOADS["smollm2-bf16"], Inputs(tmp_path, tmp_path), tmp_path, tmp_path
        )
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "learning_rate": 1e-6,
            "adam_beta2": 0.99,
            "max_grad_norm": 1.0,
            "epsilon_high": 0.28,
            "bf16": True,
            "max_completion_length": 64,
            "generation_batch_size": 32,
            "max_steps": 5,
        }
        for expected in (
            "optimizer.lr=1e-06",
            "optimizer.betas=[0.9,0.99]",
            "batch.max_norm=1.0",
            "ratio.high=0.28",
            "trainer.precision=bf16-mixed",
            "rollout.max_tokens=64",
            "batch.prompts=4",
            "batch.samples=8",
            "trainer.max_iterations=5",
        ):
            assert expected in settings


class TestGrowth:
    def test_no_token_ends_a_response(self) -> None:
        policy = Endless(pretrained=False, hidden_size=32)()
        assert policy.eos_ids
        assert not policy.eos_ids & set(range(policy.model.config.vocab_size))

    @pytest.mark.slow
    def test_measures_responses_of_the_given_length(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(growth, "run_python", forked)
        monkeypatch.setattr(growth, "ROOT", tmp_path)
        growth.main(["group", "--small", "--out", str(tmp_path)])
        assert "](growth.png)" in (tmp_path / "GROWTH.md").read_text()
        assert (tmp_path / "growth.png").read_bytes()[1:4] == b"PNG"
        points = json.loads((tmp_path / "growth.json").read_text())["points"]
        assert [point["x"] for point in points] == [2, 4]
        assert all(point["seconds"] > point["rollout"] > 0 for point in points)
        assert points[1]["flops"] > 1.5 * points[0]["flops"]

    @pytest.mark.slow
    def test_measures_what_must_not_grow(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scale, "run_python", forked)
        monkeypatch.setattr(growth, "ROOT", tmp_path)
        growth.main(["data", "ranks", "--small", "--out", str(tmp_path)])
        text = (tmp_path / "GROWTH.md").read_text()
        for row in ("| 200 rows |", "| 400 rows |", "| 1 ranks |"):
            assert row in text

    def test_counts_files_by_the_first_part_of_their_path(self, tmp_path: Path) -> None:
        (tmp_path / "samples").mkdir()
        for name in ("samples/a", "samples/b", "c"):
            (tmp_path / name).write_bytes(b"x" * 500_000)
        text = scale.files(tmp_path)
        assert "| c | 1 |" in text
        assert "| samples | 2 |" in text

    def test_line(self) -> None:
        line = growth.fit_line([1.0, 2.0, 5.0], [5.0, 8.0, 17.0])
        assert (line.intercept, line.slope, line.r2) == pytest.approx((2, 3, 1))
        assert growth.fit_line([1.0, 2.0, 3.0], [1.0, 3.0, 1.0]).r2 == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize(("power", "verdict"), [(1, "yes"), (2, "**no**")])
    def test_says_whether_time_grows_faster_than_the_work(self, power: int, verdict: str) -> None:
        point = growth.Point("group")
        # the exponents are those of the upper half
        found = [
            growth.Measurement(point, x, x**power if x > 1 else 100.0, 0.1, 0.1, 1e9, 10 * x)
            for x in (1.0, 2.0, 4.0, 8.0)
        ]
        assert growth.summary(found)[3:6] == [f"{power:.2f}", "1.00", verdict]

    @pytest.mark.parametrize("axis", growth.LABELS)
    def test_points_differ_only_along_their_axis(self, axis: str) -> None:
        for small in (False, True):
            found = growth.points(axis, small)
            varied = {
                "length": "tokens",
                "group": "samples",
                "prompts": "prompts",
                "model": "hidden_size",
            }[axis]
            assert len({getattr(point, varied) for point in found}) == len(found) >= 2
            assert len({replace(point, **{varied: 1}) for point in found}) == 1

    def test_length_and_group_reach_the_figures_of_the_docs(self) -> None:
        assert growth.points("length")[-1].tokens == 4096
        assert growth.points("group")[-1].samples == 64


def test_a_page_names_no_place_on_the_machine() -> None:
    assert report.command_line(
        "bench.engines", ["--vllm", "/a/python", "vllm", "--out=/b", "--batches", "8"]
    ) == ("python -m bench.engines vllm --batches 8")
