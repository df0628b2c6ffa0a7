"""`python train.py` end to end: in its own process and working directory, checked by its output
files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from rlmods.cli.evaluate import evaluate
from rlmods.errors import UserError
from tests.support.processes import Process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = (
    "batch.prompts=4",
    "batch.samples=4",
    "rollout.max_tokens=7",
    "trainer.max_iterations=2",
    "trainer.accelerator=cpu",
    "validation.max_prompts=8",
    "validation.samples=2",
)
RANDOM = (
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "policy.num_layers=2",
    "data.level=1",
    "sampling=fixed",
)

METRICS = {
    "train/reward",
    "train/reward/accuracy",
    "train/reward/format",
    "train/reward/overlong",
    "train/accuracy",
    "train/kl_ref",
    "train/kl_old",
    "train/entropy",
    "train/clip_fraction/low",
    "train/clip_fraction/high",
    "train/ratio_max",
    "train/grad_norm",
    "train/lr",
    "train/response_tokens",
    "train/truncated_fraction",
    "train/flat_group_fraction",
    "train/unique_fraction",
    "train/sampler_logprob_gap",
    "reward/accuracy/timeouts",
    "reward/accuracy/errors",
    "time/rollout_s",
    "time/reward_s",
    "time/score_s",
    "time/update_s",
    "perf/response_tokens_per_s",
    "perf/peak_memory_mb",
}
VALIDATION_METRICS = {"val/accuracy", "val/maj@2", "val/mean@2", "val/pass@2"}

PLUGIN = """
from types import SimpleNamespace

class Even:
    def __call__(self, responses):
        return [float(len(r.tokens) + r.tokens[0] % 2 == 0) for r in responses]

class Plain:
    def __call__(self, rewards, mask, group, values=None):
        return SimpleNamespace(advantages=rewards.sum(1, keepdim=True) * mask, returns=None)

class Straight:
    def __call__(self, log_ratio, advantages, mask):
        return SimpleNamespace(objective=log_ratio.exp() * advantages, clipped=mask & False)
"""
OPTIONS = {
    "reward/even": "mine.Even",
    "advantage/plain": "mine.Plain",
    "ratio/straight": "mine.Straight",
}


def start(
    folder: Path, *overrides: str, plugins: Path | None = None, small: bool = True
) -> Process:
    """Start `python train.py` in `folder`, in a new process group."""
    environment = {k: v for k, v in os.environ.items() if k != "RLMODS_PLUGINS"} | {
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    if plugins is not None:
        environment["RLMODS_PLUGINS"] = str(plugins)
    return Process(["train.py", *(SMALL if small else ()), *overrides], cwd=folder, env=environment)


def train(folder: Path, *overrides: str, **options: Any) -> SimpleNamespace:
    process = start(folder, *overrides, **options)
    out, err = process.communicate(timeout=240)
    return SimpleNamespace(code=process.returncode, out=out, err=err)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file."""
    return {
        str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def assert_refused(result: SimpleNamespace, *words: str) -> None:
    """Check that the command failed with a one-line error that contains `words`."""
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert result.code != 0
    for word in words:
        assert word in lines[0]


@pytest.fixture(scope="module")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def finished(working_directory: Path) -> SimpleNamespace:
    """A finished run of a real interpreter, with a relative run_dir, the defaults of `algo=dapo
    reward=math` and a reference policy."""
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        *SMALL,
        "algo=dapo",
        "reward=math",
        "kl=loss",
        "run_dir=run",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "RLMODS_PLUGINS"} | {
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    result = subprocess.run(
        command,
        cwd=working_directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return SimpleNamespace(
        out=result.stdout, path=working_directory / "run", overrides=("kl=loss", "run_dir=run")
    )


MIXTURE = (
    "data=mixture",
    "+data@data.sources.sums=arithmetic",
    "+data@data.sources.digits=arithmetic",
    "data.sources.digits.level=1",
    "reward=by_source",
    "+reward@reward.rewards.sums=math",
    "+reward@reward.rewards.digits=length",
    "+data.weights.sums=3",
)


def test_lightning_callbacks_and_a_mixture_from_the_command_line(tmp_path: Path) -> None:
    stopping = {
        "_target_": "lightning.pytorch.callbacks.EarlyStopping",
        "monitor": "val/accuracy",
        "mode": "max",
        "patience": 1,
        "min_delta": 2,
    }
    typed = [f"+callbacks.early_stopping.{key}={value}" for key, value in stopping.items()]
    policy = [text for text in RANDOM if not text.startswith("data.")]
    result = train(
        tmp_path,
        *policy,
        *MIXTURE,
        *typed,
        "trainer.max_iterations=9",
        "validation.every=1",
        "run_dir=run",
    )
    assert (result.code, result.err) == (0, "")
    assert (
        "2 of 9 iterations, ended by EarlyStopping: Monitored metric val/accuracy did not "
        "improve in the last 1 records" in result.out
    )
    assert "75% sums, 25% digits" in " ".join(result.out.split())
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["exit"], summary["iterations"]) == ("finished", 2)
    samples = rows(tmp_path / "run/samples/iteration_000001.jsonl")
    assert [sum(row["source"] == name for row in samples) for name in ("sums", "digits")] == [12, 4]
    assert all(
        (row["reward/sums/accuracy"] is None) == (row["source"] == "digits") for row in samples
    )
    assert evaluate(str(tmp_path / "run"), ["validation.max_prompts=4"])["val/accuracy/sums"] == 0.0


class TestRun:
    def test_writes_the_documented_files(self, finished):
        for name in (
            "config.yaml",
            "versions.txt",
            "metrics.jsonl",
            "summary.json",
            "samples",
            "checkpoints",
            "export",
        ):
            assert (finished.path / name).exists()
        assert "torch " in (finished.path / "versions.txt").read_text()
        logged = OmegaConf.load(finished.path / "tensorboard/version_0/hparams.yaml")
        assert logged["label"] == "dapo[kl=loss]"
        assert logged.batch.prompts == OmegaConf.load(finished.path / "config.yaml").batch.prompts
        assert OmegaConf.load(finished.path / "csv/version_0/hparams.yaml").label == "dapo[kl=loss]"
        assert "${" not in (finished.path / "config.yaml").read_text()
        # the choice of trainer.precision=auto
        assert "\n  precision: 32-true\n" in (finished.path / "config.yaml").read_text()
        assert "auto: bfloat16 is for models of 50M parameters or more" in " ".join(
            finished.out.split()
        )
        assert [p.name for p in (finished.path / "checkpoints").iterdir()] == [
            "iteration_000002.ckpt"
        ]
        assert {p.name for p in finished.path.parent.iterdir()} == {"run"}

    def test_evaluate_repeats_the_last_validation(self, finished):
        validations = [
            row for row in rows(finished.path / "metrics.jsonl") if "val/accuracy" in row
        ]
        metrics = evaluate(str(finished.path), [])
        assert metrics["val/accuracy"] == validations[-1]["val/accuracy"]
        assert metrics["prompts"] == 8
        assert all(
            low <= metrics[name] <= high for name, (low, high) in metrics["interval_95"].items()
        )
        assert (
            evaluate(
                str(finished.path),
                ["validation.max_prompts=3", "data.level=1", "validation.samples=2"],
            )["prompts"]
            == 3
        )
        with pytest.raises(UserError, match="no held-out prompts"):
            evaluate(str(finished.path), ["data.num_val=0"])

    def test_logs_the_documented_metrics(self, finished):
        logged = rows(finished.path / "metrics.jsonl")
        assert all(list(row)[:3] == ["iteration", "optimizer_step", "wall_s"] for row in logged)
        iterations = [row for row in logged if "train/reward" in row]
        validations = [row for row in logged if "val/accuracy" in row]
        assert [row["iteration"] for row in iterations] == [1, 2]
        assert [row["iteration"] for row in validations] == [0, 2]
        for row in iterations:
            assert not METRICS - row.keys()
        for row in validations:
            assert not VALIDATION_METRICS - row.keys()

    def test_logged_metrics_match_the_samples(self, finished):
        for row in rows(finished.path / "metrics.jsonl"):
            if "train/reward" not in row:
                continue
            samples = rows(finished.path / f"samples/iteration_{row['iteration']:06d}.jsonl")
            for name, column in {
                "train/reward": "reward",
                "train/accuracy": "correct",
                "train/reward/format": "reward/format",
            }.items():
                assert row[name] == pytest.approx(
                    sum(s[column] for s in samples) / len(samples), abs=1e-9
                )
            assert row["train/response_tokens"] == pytest.approx(
                sum(len(s["tokens"]) for s in samples) / len(samples)
            )
            assert len({s["reward"] for s in samples}) > 1

    def test_writes_a_summary(self, finished):
        summary = json.loads((finished.path / "summary.json").read_text())
        keys = [
            "label",
            "algo",
            "parts",
            "iterations",
            "val/accuracy",
            "wall_s",
            "response_tokens",
            "peak_memory_mb",
            "exit",
        ]
        assert list(summary) == [*keys, "seed", "overrides"]
        assert summary["seed"] == 1
        assert {"algo=dapo", "reward=math", "kl=loss"} <= set(summary["overrides"])
        assert list(summary["val/accuracy"]) == ["first", "best", "last"]
        values = (summary["algo"], summary["label"], summary["iterations"], summary["exit"])
        assert values == ("dapo", "dapo[kl=loss]", 2, "finished")
        samples = [
            s for i in (1, 2) for s in rows(finished.path / f"samples/iteration_{i:06d}.jsonl")
        ]
        assert summary["response_tokens"] == sum(len(s["tokens"]) for s in samples)

    def test_exports_the_trained_model(self, finished):
        model = AutoModelForCausalLM.from_pretrained(finished.path / "export")
        saved = torch.load(finished.path / "checkpoints/iteration_000002.ckpt", weights_only=True)[
            "state_dict"
        ]
        for name, value in model.state_dict().items():
            assert torch.equal(value, saved[f"policy.model.{name}"])

    def test_is_never_overwritten_and_can_be_resumed(self, finished):
        before = contents(finished.path)
        assert_refused(
            train(finished.path.parent, *finished.overrides), "already holds a run", "resume=auto"
        )
        assert contents(finished.path) == before
        log_before = (finished.path / "metrics.jsonl").read_text()
        result = train(
            finished.path.parent, *finished.overrides, "resume=auto", "trainer.max_iterations=3"
        )
        assert (result.code, result.err) == (0, "")
        logged = (finished.path / "metrics.jsonl").read_text()
        assert logged.startswith(log_before)
        assert [
            (r["iteration"], "train/reward" in r) for r in rows(finished.path / "metrics.jsonl")
        ][-2:] == [(3, True), (3, False)]
        assert len(logged.splitlines()) == len(log_before.splitlines()) + 2
        summary = json.loads((finished.path / "summary.json").read_text())
        assert (summary["iterations"], summary["exit"]) == (3, "finished")
        prompt_ids = [
            {s["id"] for s in rows(finished.path / f"samples/iteration_{i:06d}.jsonl")}
            for i in (1, 2, 3)
        ]
        # no prompt repeats within an epoch
        assert not prompt_ids[2] & (prompt_ids[0] | prompt_ids[1])


GOOD = json.dumps({"prompt": "1+1=", "answer": "2"})
MISTAKES = {
    "broken JSON": (f"{GOOD}\n{{\n", (), ("data.jsonl:2", "broken JSON")),
    "no answers": (
        json.dumps({"prompt": "1+1=", "reply": "2"}),
        (),
        ('no column "answer"', "data.answer=COLUMN"),
    ),
    "no rows": ("", (), ("no rows", "data.train=FILE")),
    "a prompt beyond the context": (
        json.dumps({"prompt": "1" * 300, "answer": "2"}),
        (),
        ("train-1", "context of 256", "rollout.max_tokens"),
    ),
    "half a checkpoint": (
        GOOD,
        ("resume={folder}/half.ckpt",),
        ("half.ckpt", "cannot be read", "resume=PATH"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_user_errors_are_one_line_and_write_nothing(mistake, finished, tmp_path):
    text, overrides, words = MISTAKES[mistake]
    (tmp_path / "data.jsonl").write_text(text)
    checkpoint = next((finished.path / "checkpoints").iterdir()).read_bytes()
    (tmp_path / "half.ckpt").write_bytes(checkpoint[: len(checkpoint) // 2])
    formatted = [override.format(folder=tmp_path) for override in overrides]
    data = ("data=jsonl", "data.train=data.jsonl", "data.num_val=0", "batch.prompts=1")
    assert_refused(train(tmp_path, *data, "run_dir=new", *formatted), *words)
    assert {p.name for p in tmp_path.iterdir()} == {"data.jsonl", "half.ckpt"}


class TestPlugins:
    @pytest.fixture
    def plugins(self, tmp_path):
        folder = tmp_path / "plugins"
        for option, target in OPTIONS.items():
            path = folder / f"mine/{option}.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(f"_target_: {target}\n")
        (folder / "mine/mine.py").write_text(PLUGIN)
        return folder

    def test_train_and_are_labelled_as_ablation(self, plugins, tmp_path):
        swapped = [option.replace("/", "=") for option in OPTIONS]
        result = train(
            tmp_path, *RANDOM, *swapped, "trainer.max_iterations=1", "run_dir=run", plugins=plugins
        )
        assert (result.code, result.err) == (0, "")
        summary = json.loads((tmp_path / "run/summary.json").read_text())
        assert summary["label"] == "dapo[sampling=fixed,advantage=plain,ratio=straight]"
        assert {k: summary["parts"][k] for k in ("reward", "advantage", "ratio")} == {
            "reward": "even",
            "advantage": "plain",
            "ratio": "straight",
        }


def test_sweep_with_one_run_dir_is_refused(tmp_path):
    result = train(tmp_path, "seed=1,2", "run_dir=here", "-m")
    assert_refused(
        result,
        "run_dir=here is one directory for all members of the sweep",
        "type hydra.sweep.dir=here",
    )
    assert not (tmp_path / "here").exists()
