"""`python -m rlmods.convert`: files are written here as the other projects write them."""

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.lab import compare, show
from rlmods.lab.convert import convert, main
from rlmods.lab.groups import find_runs, group_runs
from rlmods.lab.report.__main__ import main as report
from rlmods.lab.report.contents import contents
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def trl_run(folder: Path, num_steps: int = 3, **more: float) -> Path:
    """A run as `transformers/trainer_callback.py` (TrainerState.save_to_json) and
    `trl/trainer/grpo_trainer.py` (GRPOTrainer.log) write it, with an evaluation at the end."""
    pandas = pytest.importorskip("pandas")
    log = []
    for step in range(1, num_steps + 1):
        logged = {
            "reward": step / 10,
            "rewards/accuracy/mean": step / 10,
            "rewards/accuracy/std": 0.1,
            "reward_std": 0.5,
            "frac_reward_zero_std": 0.25,
            "completions/mean_length": 7.0,
            "completions/clipped_ratio": 0.0,
            "clip_ratio/low_mean": 0.01,
            "clip_ratio/high_mean": 0.02,
            "kl": 0.001,
            "entropy": 0.6,
            "loss": -0.1,
            "grad_norm": 1.5,
            "learning_rate": 2e-4,
            "step_time": 2.0,
            "num_tokens": 100.0,
        }
        log.append({"step": step, "epoch": step / 10, **logged, **more})
    log.append(
        {"step": num_steps, "epoch": 0.3, "eval_reward": 0.4, "eval_rewards/accuracy/mean": 0.4}
    )
    state = {"global_step": num_steps, "max_steps": num_steps, "log_history": log}
    (folder / "completions").mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    table = {
        "step": [1] * 4,
        "prompt": [[{"role": "user", "content": "1+1="}], [{"role": "user", "content": "2+2="}]]
        * 2,
        "completion": [[{"role": "assistant", "content": text}] for text in ("2", "4", "3", "5")],
        "accuracy": [1.0, 1.0, 0.0, 0.0],
        "source": ["web", "web", "web", "web"],
        "advantage": [0.5, 0.5, -0.5, -0.5],
    }
    pandas.DataFrame(table).to_parquet(folder / "completions" / "completions_00001.parquet")
    return folder


def converted(source: Path, *more: Path, **options: Any) -> SavedRun:
    """Convert into a folder beside the source."""
    out = source.parent / f"run_{source.name}"
    convert([source, *more], out, **options)
    return SavedRun(out)


class TestTRL:
    def test_metrics_get_our_names(self, tmp_path: Path) -> None:
        run = converted(trl_run(tmp_path / "seed_3"))
        assert (run.seed, run.label, run.exit, run.iteration) == (3, "trl", "finished", 3)
        assert run.series("train/reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
        last = run.metrics[-1]
        expected = {
            "train/reward/accuracy": 0.3,
            "train/flat_group_fraction": 0.25,
            "train/response_tokens": 7.0,
            "train/clip_fraction/low": 0.01,
            "train/clip_fraction/high": 0.02,
            "train/kl_ref": 0.001,
            "train/lr": 2e-4,
            "time/iteration_s": 2.0,
            "val/reward/accuracy": 0.4,
            "train/num_tokens": 100.0,
            "wall_s": 6.0,
        }
        assert {name: last[name] for name in expected} == expected
        assert "train/reward_std" not in last  # which is another quantity here

    def test_seconds_of_steps_that_are_not_logged(self, tmp_path: Path) -> None:
        """With `logging_steps=5`, `step_time` is a mean over five steps."""
        log = [{"step": step, "step_time": 2.0} for step in (5, 10)]
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
        assert converted(tmp_path / "a").series("wall_s") == [(5, 10.0), (10, 20.0)]

    def test_responses_stand_by_prompt(self, tmp_path: Path) -> None:
        run = converted(trl_run(tmp_path / "trl"))
        text = show.show(run.path, "1", full=True)
        assert text.index("2+2=") > text.index("1+1=")
        file = run.path / "samples" / "iteration_000001.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert [row["response"] for row in rows] == ["2", "3", "4", "5"]
        assert [row["reward"] for row in rows] == [1.0, 0.0, 1.0, 0.0]
        assert [row["advantage"] for row in rows] == [0.5, -0.5, 0.5, -0.5]
        assert rows[0]["trl/source"] == "web"
        assert rows[0]["id"] == rows[1]["id"] != rows[2]["id"]

    def test_two_runs_are_two_folders(self, tmp_path: Path) -> None:
        sources = [trl_run(tmp_path / "seed_1"), trl_run(tmp_path / "seed_2", entropy=0.7)]
        with pytest.raises(UserError, match=r"seed_2: .* of step 1 is .* a folder of its own"):
            convert(sources, tmp_path / "run")

    def test_state_of_a_checkpoint(self, tmp_path: Path) -> None:
        """Each checkpoint has the log up to its step."""
        folder = tmp_path / "trl"
        for step in (2, 10):
            trl_run(folder / f"checkpoint-{step}", step)
        assert converted(folder).series("train/reward")[-1] == (10, 1.0)


class TestVerl:
    def test_log_and_rollouts(self, tmp_path: Path) -> None:
        """`verl/utils/tracking.py` (FileLogger) and `verl/trainer/ppo/ray_trainer.py`
        (_dump_generations, _val_metrics_update)."""
        data = {
            "critic/score/mean": 0.5,
            "critic/rewards/mean": 0.4,
            "actor/ppo_kl": 0.01,
            "actor/entropy": 0.7,
            "response_length/mean": 40.0,
            "timing_s/step": 3.0,
        }
        core = {"val-core/openai/gsm8k/acc/mean@4": 0.6, "val-aux/openai/gsm8k/reward/mean@4": 0.5}
        log = [{"step": 1, "data": data}, {"step": 2, "data": data | core}]
        write_jsonl(tmp_path / "project" / "grpo.jsonl", log)
        rows = [
            {
                "input": "user\n1+1=",
                "output": "2",
                "gts": "2",
                "score": 1.0,
                "step": 2,
                "acc": True,
            },
            {
                "input": "user\n1+1=",
                "output": "3",
                "gts": "2",
                "score": 0.0,
                "step": 2,
                "acc": False,
            },
        ]
        for folder in ("rollouts", "val_rollouts"):
            write_jsonl(tmp_path / folder / "2.jsonl", rows)
        folders = (tmp_path / "rollouts", tmp_path / "val_rollouts")
        run = converted(tmp_path / "project", *folders, seed=1)
        assert run.label == "verl"
        assert run.series("train/reward") == [(1, 0.5), (2, 0.5)]
        assert run.series("val/mean@4") == [(2, 0.6)]
        assert run.metrics[-1]["wall_s"] == 6.0
        assert run.metrics[-1]["critic/rewards/mean"] == 0.4
        shown = contents(group_runs([run]), "train/reward", 1, None)["samples"]
        assert [x["kind"] for x in shown] == ["iteration", "validation"]
        assert [(x["text"], x["correct"]) for x in shown[0]["rows"]] == [("2", True), ("3", False)]

    def test_of_two_data_sources_both_keep_their_names(self, tmp_path: Path) -> None:
        data = {"val-core/a/acc/mean@1": 0.2, "val-core/b/acc/mean@1": 0.4}
        write_jsonl(tmp_path / "p" / "x.jsonl", [{"step": 1, "data": data}])
        [row] = converted(tmp_path / "p").metrics
        assert "val/mean@1" not in row
        assert data.items() <= row.items()
        names = {"val-core/b/acc/mean@1": "val/accuracy"}
        other = tmp_path / "named"
        convert([tmp_path / "p"], other, names=names)
        assert SavedRun(other).series("val/accuracy") == [(1, 0.4)]
        assert SavedRun(other).series("val/mean@1") == [(1, 0.2)]

    def test_two_runs_are_not_mixed(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            write_jsonl(tmp_path / "p" / f"{name}.jsonl", [{"step": 1, "data": {"actor/lr": 1.0}}])
        with pytest.raises(UserError, match=r"has 2 runs: type files of one, such as .*b\.jsonl$"):
            converted(tmp_path / "p")
        assert converted(tmp_path / "p" / "a.jsonl").series("train/lr") == [(1, 1.0)]


def test_trainer_and_orchestrator_of_prime_rl_are_one_run(tmp_path: Path) -> None:
    """`src/prime_rl/monitors/file.py` (FileMonitor.log_metrics), with names of
    `trainer/rl/train.py` and `orchestrator/metrics.py`. A resumed run appends its steps."""
    trainer = {"entropy/all/mean": 0.5, "optim/grad_norm": 0.1, "optim/lr": 1e-6}
    reward = "train/agg/effective/agent/reward/mean"
    avg = "eval/gsm8k/effective/agent/avg@8"
    log = [{"step": i, "time": 1e9 + i, **trainer} for i in (1, 2)]
    write_jsonl(tmp_path / "out" / "metrics.jsonl", log)
    scores = [(1, 0.1), (2, 0.2), (2, 0.3)]
    log = [{"step": i, "time": 1e9 + i + 0.25, reward: x, avg: x} for i, x in scores]
    write_jsonl(tmp_path / "orchestrator" / "metrics.jsonl", log)
    run = converted(tmp_path / "out", tmp_path / "orchestrator", name="prime")
    assert run.label == "prime"
    assert run.series("train/reward") == [(1, 0.1), (2, 0.3)]
    assert run.series("val/mean@8") == [(1, 0.1), (2, 0.3)]
    assert run.series("train/entropy") == [(1, 0.5), (2, 0.5)]
    assert run.series("wall_s") == [(1, 0.0), (2, 1.0)]


def test_events_and_responses_of_nemo_rl(tmp_path: Path) -> None:
    """`nemo_rl/utils/logger.py` (TensorboardLogger.log_metrics, log_batched_dict_as_jsonl) and
    `nemo_rl/algorithms/grpo.py`."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "logs" / "tensorboard"))
    for step in (1, 2):
        writer.add_scalar("train/reward", step / 4, step)
        writer.add_scalar("train/approx_entropy", 0.5, step)
        writer.add_scalar("validation/accuracy", 0.75, step)
        writer.add_scalar("performance/tokens_per_sec", 9.0, step)
    writer.close()
    row = {
        "content": [["1+1=", "2"]],
        "rewards": [1.0],
        "token_ids": [[5, 6, 7, 0]],
        "token_loss_mask": [[0, 0, 1, 0]],
        "advantages": [[0.0, 0.0, 0.5, 0.0]],
        "idx": 0,
    }
    write_jsonl(tmp_path / "logs" / "train_data_step2.jsonl", [row])
    said = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "3"}]
    row = {"content": [said], "rewards": [0.0], "idx": 0}
    write_jsonl(tmp_path / "logs" / "val_data_step2.jsonl", [row])
    run = converted(tmp_path / "logs")
    assert run.label == "nemo-rl"
    assert run.series("train/reward") == [(1, 0.25), (2, 0.5)]
    assert run.series("val/accuracy") == [(1, 0.75), (2, 0.75)]
    assert run.series("train/entropy") == [(1, 0.5), (2, 0.5)]
    assert run.series("performance/tokens_per_sec") == [(1, 9.0), (2, 9.0)]
    trained, val = contents(group_runs([run]), "train/reward", 1, None)["samples"]
    assert (trained["prompt"], val["prompt"]) == ("1+1=", "1+1=")
    [response] = trained["rows"]
    assert (response["text"], response["length"], response["advantage"]) == ("2", 1, 0.5)
    assert val["rows"][0]["text"] == "3"


class TestTrackers:
    def test_history_of_wandb(self, tmp_path: Path) -> None:
        """`run.scan_history()` as CSV: an empty cell where a step has no value; the step that the
        trainer counts goes before the tracker's own."""
        rows: list[dict[str, Any]] = [
            {
                "": 0,
                "_step": 0,
                "train/global_step": 5,
                "_runtime": 9.5,
                "train/kl": 0.1,
                "note": "x",
            },
            {
                "": 1,
                "_step": 1,
                "train/global_step": 10,
                "_runtime": 19.5,
                "train/kl": "",
                "note": "y",
            },
        ]
        run = converted(write_csv(tmp_path / "history.csv", rows))
        assert run.series("train/kl_ref") == [(5, 0.1)]
        assert run.series("wall_s") == [(5, 0.0), (10, 10.0)]

    def test_chart_of_wandb(self, tmp_path: Path) -> None:
        name = "fresh-sun-1 - train/reward"
        row = {"Step": 3, name: 0.5, f"{name}__MIN": 0.4, f"{name}__MAX": 0.6}
        run = converted(write_csv(tmp_path / "chart.csv", [row]))
        assert run.metrics == [
            {"iteration": 3, "optimizer_step": 3, "wall_s": 0.0, "train/reward": 0.5}
        ]
        both = write_csv(tmp_path / "both.csv", [row | {"old-sea-2 - train/reward": 0.1}])
        with pytest.raises(UserError, match="has 2 runs, fresh-sun-1, old-sea-2: export one"):
            converted(both)

    def test_curves_of_tensorboard(self, tmp_path: Path) -> None:
        """One file a tag, whose slashes browsers replace."""
        tags = {"train_rewards_accuracy_mean": 0.5, "train_clip_ratio_low_mean": 0.1, "own": 2.0}
        (tmp_path / "curves").mkdir()
        for tag, value in tags.items():
            path = tmp_path / "curves" / f"run-logs-tag-{tag}.csv"
            write_csv(path, [{"Wall time": 1e9 + i, "Step": i, "Value": value} for i in (1, 2)])
        run = converted(tmp_path / "curves")
        assert run.series("train/reward/accuracy") == [(1, 0.5), (2, 0.5)]
        assert run.series("train/clip_fraction/low") == [(1, 0.1), (2, 0.1)]
        assert run.series("train/own") == [(1, 2.0), (2, 2.0)]
        assert run.series("wall_s") == [(1, 0.0), (2, 1.0)]


class TestUse:
    def test_one_report_and_one_comparison_with_ours(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for seed in (1, 2, 3):
            source = trl_run(tmp_path / "trl" / f"seed_{seed}", reward=0.3 + seed / 100)
            convert([source], tmp_path / "runs" / f"trl_{seed}")
            rewards = {"train/reward": 0.5 + seed / 90}
            write_run(tmp_path / "runs" / f"ours_{seed}", [0.1] * 4, seed=seed, metrics=rewards)
        folder = str(tmp_path / "runs")
        options = ["--metric", "train/reward", "--baseline", "algo=trl"]
        compare.main([folder, *options])
        text = capsys.readouterr().out
        assert "algo=dapo: 0.5222" in text
        assert "better than the baseline: +0.2022" in text
        assert "paired by 3 seeds" in text
        report([folder, *options])
        page = (tmp_path / "runs" / "report.html").read_text()
        assert "algo=trl" in page
        assert "algo=dapo" in page
        shown = contents(group_runs(find_runs([tmp_path / "runs"])), "train/reward", 1, None)
        assert (shown["parts"], shown["settings"]) == ({}, {})  # theirs are not known
        assert shown["curves"]["train/reward"].keys() == {0, 1}

    def test_rules_of_the_monitor(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A limit holds after three steps. A log without gradients says nothing of steps that train
        nothing."""
        out = tmp_path / "run"
        main([str(trl_run(tmp_path / "trl", 4, kl=20.0)), "--out", str(out)])
        assert "iteration 3: train/kl_ref is 20, beyond 10" in capsys.readouterr().out
        [found] = contents(group_runs(find_runs([out])), "train/reward", 1, None)["runs"]
        assert found["alarms"] == [[3, "kl_ref", 20.0]]
        assert "beyond 10" in SavedRun(out).summary["warnings"][0]
        healthy = converted(trl_run(tmp_path / "healthy", 12))
        assert healthy.summary["warnings"] == []
        data = {"response_length/clip_ratio": 1.0}
        log = [{"step": step, "data": data} for step in range(8)]
        assert converted(write_jsonl(tmp_path / "v.jsonl", log)).summary["warnings"] == []

    def test_idle_steps_are_found(self, tmp_path: Path) -> None:
        source = trl_run(tmp_path / "trl", 6, grad_norm=0.0, frac_reward_zero_std=1.0)
        assert "nothing is trained" in converted(source).summary["warnings"][0]


class TestMistakes:
    def test_nothing_is_executed(self, tmp_path: Path) -> None:
        marker = tmp_path / "executed"

        class Payload:
            def __reduce__(self) -> Any:
                return (Path.touch, (marker,))

        folder = trl_run(tmp_path / "trl")
        for name in ("training_args.bin", "rng_state.pth", "trainer_state.pkl"):
            (folder / name).write_bytes(pickle.dumps(Payload()))
        converted(folder)
        assert not marker.exists()

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("trainer_state.json", "{"),
            ("trainer_state.json", '{"log_history": [{"loss": 1}]}'),
            ("trainer_state.json", '{"log_history": [{"step": "first", "loss": 1}]}'),
            ("completions_00001.parquet", "no table"),
            ("metrics.jsonl", '{"step": 1, "loss": 2}\n'),
            ("grpo.jsonl", '{"step": 1, "data": [2]}\n'),
            ("grpo.jsonl", '{"step": 1\n{"step": 2, "data": {}}\n'),
            ("3.jsonl", '{"input": "1+1="}\n'),
            ("val_data_step3.jsonl", '{"content": [], "rewards": []}\n'),
            ("history.csv", "loss\n1\n"),
            ("run-a-tag-b.csv", "Step,Value\n1,2\n"),
        ],
    )
    def test_of_a_broken_file(
        self, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One line with its name, and nothing is written."""
        (tmp_path / name).write_text(text)
        with pytest.raises(SystemExit) as stopped:
            main([str(tmp_path / name), "--out", str(tmp_path / "run")])
        message = str(stopped.value)
        assert name in message
        assert "\n" not in message
        assert not (tmp_path / "run").exists()

    def test_of_an_argument(self, tmp_path: Path) -> None:
        source = trl_run(tmp_path / "trl")
        with pytest.raises(UserError, match="nothing: no log of another trainer; there is no such"):
            convert([tmp_path / "nothing"], tmp_path / "run")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UserError, match=r"it has none of trainer_state\.json, "):
            convert([tmp_path / "empty"], tmp_path / "run")
        with pytest.raises(UserError, match=r"--rename loss=\.\.\.: there is no such metric"):
            convert([source], tmp_path / "run", names={"loss": "train/loss"})
        with pytest.raises(UserError, match="has files already"):
            convert([source], source)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_run_of_trl(tmp_path: Path) -> None:
    """What TRL itself writes."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlmods.data import Arithmetic
    from rlmods.policy import Tiny

    def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    model = tmp_path / "model"
    Tiny()().export(model)
    prompts = Arithmetic(num_train=8, num_val=1)().train
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "seed_4"),
            use_cpu=True,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            max_steps=3,
            beta=0.01,
            logging_steps=1,
            log_completions=True,
            save_steps=2,
            report_to="none",
        ),
        train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in prompts]),
        reward_funcs=right,
    )
    trainer.train()
    run = converted(tmp_path / "seed_4")
    assert (run.seed, run.label) == (4, "trl")
    history = trainer.state.log_history
    logged = [(entry["step"], entry["reward"]) for entry in history if "reward" in entry]
    assert [step for step, _ in logged] == [1, 2, 3]
    assert run.series("train/reward") == logged
    for name in ("train/kl_ref", "train/lr", "train/grad_norm", "train/clip_fraction/low"):
        assert len(run.series(name)) == 3
    assert run.metrics[-1]["wall_s"] > 0
    shown = contents(group_runs([run]), "train/reward", 1, None)["samples"]
    assert {len(x["rows"]) for x in shown} == {4}
