"""The comparison of learning trains both sides on the same prompts and judges their difference by
the noise of seeds."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest
import scipy.stats

from bench import learning, process
from bench.learning import Curve, Task
from bench.workloads import WORKLOADS, prepare
from tests.bench.test_bench import forked

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of 2 prompts x 2 responses of at most 4 tokens, and few held-out prompts."""
    monkeypatch.setitem(WORKLOADS, "tiny", WORKLOADS["mini"])
    monkeypatch.setattr(learning, "NUM_VAL", 4)


def curve(side: str, seed: int, *accuracy: float, greedy: float = 0.5) -> Curve:
    return Curve(side, 1, seed, accuracy, greedy)


class TestTask:
    @pytest.mark.slow
    def test_prompts_are_those_that_training_draws(self, tmp_path: Path) -> None:
        task = Task(steps=4, iterations=2)
        forked(
            task.command(3, prepare(task.workload, tmp_path).model, tmp_path / "run"),
            tmp_path / "log",
        )
        rows = [
            json.loads(line)
            for path in sorted((tmp_path / "run" / "samples").glob("*"))
            for line in path.read_text().splitlines()
        ]
        drawn = [row["prompt"] for row in sorted(rows, key=lambda row: row["iteration"])]
        assert drawn == [prompt.text for prompt in task.prompts(3) for _ in range(2)]
        assert [prompt.id for prompt in task.prompts(4)] != [
            prompt.id for prompt in task.prompts(3)
        ]

    def test_learning_rate_of_the_recipe_with_its_number_of_steps(self, tmp_path: Path) -> None:
        for steps in learning.LEARNING_RATES:
            task = Task(steps, 5)
            command = task.command(1, tmp_path, tmp_path)
            for expected in (
                f"batch.minibatches={steps}",
                f"optimizer.lr={task.learning_rate}",
                "advantage.eps=0.0001",
                "reward=accuracy",
            ):
                assert expected in command


def test_value_of_welchs_test() -> None:
    """By hand: s^2/n is 1/3 and 4/3, so the error is sqrt(5/3) and the degrees of freedom are
    (5/3)^2 / (1/18 + 8/9)."""
    p, low, high = learning.welch([1, 2, 3], [2, 4, 6])
    distribution = scipy.stats.t(50 / 17)
    error = math.sqrt(5 / 3)
    assert p == pytest.approx(2 * distribution.sf(2 / error))
    width = distribution.isf(learning.LEVEL / 2) * error
    assert (low, high) == pytest.approx((-2 - width, -2 + width))


def test_samples_without_variance() -> None:
    assert learning.welch([1, 1], [1, 1]) == (1, 0, 0)
    assert learning.welch([1, 1], [2, 2]) == (0, -1, -1)
    p, low, high = learning.welch([1, 1, 1], [0.8, 1, 1.1])
    assert 0.5 < p < 1
    assert low < 0 < high


class TestReport:
    def test_measures(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(learning, "LAST", 2)
        assert list(curve("here", 1, 0.0, 0.5, 1.0, greedy=0.25).measures.values()) == [
            0.75,
            0.5,
            0.25,
        ]

    def test_moving_average_ends_at_its_iteration(self) -> None:
        x, y = learning.smooth([1.0, 2.0, 3.0, 6.0], window=2)
        assert list(x) == [2, 3, 4]
        assert list(y) == [1.5, 2.5, 4.5]
        assert list(learning.smooth([1.0, 3.0], window=5)[1]) == [2.0]

    @pytest.mark.parametrize(
        ("shift", "noise", "says"),
        [
            (0.01, 0.01, "The sides agree: every interval lies within ±0.05."),
            (0.01, 0.04, "more seeds are needed for intervals within ±0.05: "),
            (-0.03, 0.015, "more seeds are needed for intervals within ±0.05: greedy"),
            (0.5, 0.01, "**The sides differ: greedy"),
        ],
    )
    def test_says_whether_the_sides_agree(self, shift: float, noise: float, says: str) -> None:
        values = (0.0, noise, -noise)
        here = [curve("here", seed, 0.4 + x, greedy=0.5 + x) for seed, x in enumerate(values)]
        trl = [curve("TRL", seed, 0.4 + x, greedy=0.5 + x - shift) for seed, x in enumerate(values)]
        text = learning.section([*trl, *here], 1)
        assert says in text
        assert f"| 0.500 ± {noise:.3f} | {0.5 - shift:.3f} ± {noise:.3f} | {shift:+.3f} (" in text


class TestCommand:
    @pytest.mark.slow
    def test_trains_both_sides_with_every_seed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TRL, which trains in an environment of its own, is replaced by a model that stays as it
        is."""
        found: list[str] = []

        def run(arguments: Sequence[str], log: Path) -> tuple[float, float]:
            if arguments[0] == "train.py":
                found.append("here")
                return forked(arguments, log)
            text, seed, model, folder = arguments[2:]
            found.append(f"TRL {seed}")
            shutil.copytree(model, Path(folder) / "export")
            (Path(folder) / "accuracy.jsonl").write_text(
                f"0.{seed}\n" * Task(**json.loads(text)).iterations
            )
            return 1.0, 5e8

        monkeypatch.setattr(learning, "run_python", run)
        monkeypatch.setattr(learning, "ROOT", tmp_path)
        monkeypatch.setattr(learning, "find_spec", lambda name: name)
        learning.main(
            ["--steps", "1", "--seeds", "1", "2", "--iterations", "2", "--out", str(tmp_path)]
        )
        assert found == ["here", "TRL 1", "here", "TRL 2"]
        text = (tmp_path / "LEARNING.md").read_text()
        assert "](learning.png)" in text
        assert "## 1 optimizer step of an iteration" in text
        assert "| 0.150 ± 0.071 |" in text
        assert (tmp_path / "learning.png").read_bytes()[1:4] == b"PNG"
        curves = json.loads((tmp_path / "learning.json").read_text())["curves"]
        assert [(c["side"], c["seed"], len(c["accuracy"])) for c in curves] == [
            (s, n, 2) for n in (1, 2) for s in ("here", "TRL")
        ]
        assert not list((tmp_path / "runs" / "bench").iterdir())

    def test_missing_iterations_are_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(arguments: Sequence[str], log: Path) -> tuple[float, float]:
            (tmp_path / "run" / "accuracy.jsonl").write_text("0.5\n")
            return 1.0, 5e8

        monkeypatch.setattr(learning, "run_python", run)
        with pytest.raises(RuntimeError, match="1 iterations instead of 2"):
            learning.train("TRL", Task(1, 2), 1, tmp_path, tmp_path / "run")

    def test_one_seed_has_no_spread(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            learning.parse(["--seeds", "1"])
        assert "--seeds 1 2 3" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")
class TestTRL:
    """Run with `.venv-bench/bin/python -m pytest tests/bench`, after `make bench` has made it."""

    @pytest.mark.slow
    def test_trains_on_the_prompts_and_is_graded_as_here(self, tmp_path: Path) -> None:
        """Another process, as TRL warns on import. It records the prompts that the reward function
        gets."""
        task = Task(4, 2)
        model = prepare(task.workload, tmp_path).model
        script = f"""
import json
from bench import trl_learning
from bench.workloads import WORKLOADS
WORKLOADS["tiny"] = WORKLOADS["mini"]
class Grader:
    def __call__(self, responses):
        with open({str(tmp_path / "seen")!r}, "a") as file:
            file.writelines(json.dumps([r.prompt.text, r.prompt.answer, r.text]) + "\\n" for r in responses)
        return real(responses)
real, trl_learning.Accuracy = trl_learning.Accuracy(), Grader
trl_learning.main('{{"steps": 4, "iterations": 2}}', "3", {str(model)!r}, {str(tmp_path)!r})
"""
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=process.ROOT,
            check=True,
            capture_output=True,
        )
        seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
        expected = [[prompt.text, prompt.answer] for prompt in task.prompts(3) for _ in range(2)]
        assert [row[:2] for row in seen] == expected
        accuracy = [float(line) for line in (tmp_path / "accuracy.jsonl").read_text().splitlines()]
        right = [f"<answer>{answer}</answer>" in text or text == answer for _, answer, text in seen]
        assert accuracy == pytest.approx([mean(right[:4]), mean(right[4:])])
        assert learning.greedy_accuracy(tmp_path / "export", task.workload) in (
            0,
            0.25,
            0.5,
            0.75,
            1,
        )

    def test_settings_are_those_of_our_side(self, tmp_path: Path) -> None:
        script = f"""
import json
from bench import learning, trl_learning, trl_side
task = learning.Task(4, 50)
config = trl_side.config(task.workload, {str(tmp_path)!r}, **trl_learning.settings(task, 7))
names = ("learning_rate", "seed", "max_steps", "generation_batch_size", "per_device_train_batch_size", "num_iterations", "scale_rewards",
    "loss_type", "mask_truncated_completions", "temperature", "top_p", "top_k", "lr_scheduler_type", "warmup_steps", "weight_decay",
    "adam_epsilon", "beta", "shuffle_dataset", "bf16", "fp16")
print(json.dumps({{name: getattr(config, name) for name in names}}))
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=process.ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "learning_rate": 1e-4,
            "seed": 7,
            "max_steps": 200,
            "generation_batch_size": 256,
            "per_device_train_batch_size": 64,
            "num_iterations": 1,
            "scale_rewards": "group",
            "loss_type": "dapo",
            "mask_truncated_completions": False,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "adam_epsilon": 1e-8,
            "beta": 0.0,
            "shuffle_dataset": False,
            "bf16": False,
            "fp16": False,
        }
