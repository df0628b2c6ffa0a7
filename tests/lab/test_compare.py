"""`python -m rlmods.compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlmods.errors import UserError
from rlmods.lab import compare as module
from rlmods.lab import sequential
from rlmods.lab.compare import compare, higher_is_better, lines, parse
from rlmods.lab.groups import Group, find_runs, group_runs
from rlmods.lab.sequential import decide, seeds_of, train
from rlmods.lab.statistics import SequentialTest
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run

A = (0.50, 0.52, 0.49, 0.51)
B = (0.60, 0.63, 0.58, 0.61)


def write(
    folder: Path, results: tuple[float, ...], ratio: str, first_seed: int = 1, **options: object
) -> None:
    for seed, result in enumerate(results, first_seed):
        write_run(
            folder / f"ratio={ratio},seed={seed}",
            [0.1, result],
            seed=seed,
            parts={"ratio": ratio},
            **options,
        )  # type: ignore[arg-type]


def groups(folder: Path) -> list[Group]:
    return group_runs(find_runs([folder]))


class TestVerdict:
    def test_better_and_worse(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        [x] = compare(groups(tmp_path), "val/accuracy")
        assert (x.better, x.baseline, x.name, x.seeds, x.unused) == (
            True,
            "ratio=a",
            "ratio=b",
            [1, 2, 3, 4],
            [],
        )
        assert x.difference.mean == pytest.approx(0.1)
        assert 0.0 not in x.difference
        [y] = compare(groups(tmp_path), "val/accuracy", baseline="ratio=b")
        assert (y.better, y.difference.mean) == (False, pytest.approx(-0.1))
        assert "better than the baseline: +0.1000" in "\n".join(lines([x]))

    def test_of_a_loss(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a", metrics={"val/kl": 1.0})
        for seed, kl in enumerate((2.0, 2.01, 1.99), 1):
            write(tmp_path, (0.5,), "b", seed, metrics={"val/kl": kl})
        [x] = compare(groups(tmp_path), "val/kl")
        assert x.better is False

    @pytest.mark.parametrize(
        "metric",
        [
            "val/accuracy",
            "val/accuracy/gap_questions",
            "val/kling/accuracy",
            "val/mean@4",
            "train/reward",
            "perf/response_tokens_per_s",
        ],
    )
    def test_more_is_better(self, metric: str) -> None:
        assert higher_is_better(metric)

    @pytest.mark.parametrize(
        "metric",
        [
            "train/kl_ref",
            "train/ptx_loss",
            "train/response_tokens",
            "val/malformed_calls",
            "train/unscored_fraction",
            "train/nonfinite_steps",
            "train/all_wrong_fraction",
            "time/rollout_s",
            "reward/accuracy/timeouts",
        ],
    )
    def test_less_is_better(self, metric: str) -> None:
        assert not higher_is_better(metric)

    def test_two_seeds_with_equal_differences_decide_nothing(self, tmp_path: Path) -> None:
        write(tmp_path, (0.580, 0.600), "a")
        write(tmp_path, (0.585, 0.605), "b")  # one more of 200 prompts, twice
        [x] = compare(groups(tmp_path), "val/accuracy")
        assert (x.better, x.p_value) == (None, 1.0)
        assert "Equal differences show no spread of seeds: train both with more" in "\n".join(
            lines([x])
        )

    def test_not_decided(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, (0.52, 0.50, 0.51, 0.49), "b")
        [x] = compare(groups(tmp_path), "val/accuracy")
        assert x.better is None
        assert "not decided" in "\n".join(lines([x]))

    def test_a_single_seed_decides_nothing(self, tmp_path: Path) -> None:
        write(tmp_path, A[:1], "a")
        write(tmp_path, B, "b")
        [x] = compare(groups(tmp_path), "val/accuracy")
        text = "\n".join(lines([x]))
        assert (x.better, x.unused) == (None, [2, 3, 4])
        assert "One common seed does not show" in text
        assert "seed=2,3,4" in text

    def test_several_are_adjusted(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, (0.52, 0.53, 0.53, 0.55), "b")
        single = compare(groups(tmp_path), "val/accuracy")[0]
        assert single.better
        for name in "cde":
            write(tmp_path, (0.50, 0.51, 0.50, 0.51), name)
        several = compare(groups(tmp_path), "val/accuracy")
        assert several[0].p_value == pytest.approx(4 * single.p_value)
        assert several[0].better is None
        assert "adjusted for 4 comparisons (Holm)" in "\n".join(lines(several))

    def test_runs_that_have_not_finished_are_named(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        assert compare(groups(tmp_path), "val/accuracy")[0].unfinished == []
        write(tmp_path, A[:1], "a", 9, exit="interrupted")
        write(tmp_path, B[:1], "b", 8, exit="interrupted")  # of a seed that is not compared
        write(tmp_path, B[:1], "b", 9, exit=None)
        [x] = compare(groups(tmp_path), "val/accuracy")
        ends = [
            "ratio=a,seed=9 (interrupted, iteration 1)",
            "ratio=b,seed=9 (not finished, iteration 1)",
        ]
        assert x.unfinished == [f"{tmp_path}/{end}" for end in ends]
        assert f"the last values so far are compared: {', '.join(x.unfinished)}" in "\n".join(
            lines([x])
        )

    def test_runs_that_end_at_different_iterations_are_named(self, tmp_path: Path) -> None:
        settings = {"trainer": {"max_iterations": 9}}
        write(tmp_path, A, "a", settings=settings)
        for seed in (1, 2, 8):
            write_run(
                tmp_path / f"ratio=b{seed}",
                [0.1] * (1 + seed),
                seed=seed,
                parts={"ratio": "b"},
                settings=settings,
            )
        [x] = compare(groups(tmp_path), "val/accuracy")
        assert x.different_iterations == ["seed=2: 1 and 2"]  # seed 8 is not compared
        assert "at different iterations: seed=2: 1 and 2" in "\n".join(lines([x]))

    def test_by_prompt(self, tmp_path: Path) -> None:
        write(tmp_path, A[:2], "a", correct={"x": False, "y": True, "z": True})
        write(tmp_path, B[:2], "b", correct={"x": True, "y": True, "w": False})
        [x] = compare(groups(tmp_path), "val/accuracy")
        assert x.prompts is not None
        assert (x.prompts.mean, x.prompts.num_values) == (0.5, 2)


class TestRefusals:
    def test_one_group(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        with pytest.raises(UserError, match="the same settings apart from the seed"):
            compare(groups(tmp_path), "val/accuracy")

    def test_one_run(self, tmp_path: Path) -> None:
        write(tmp_path, A[:1], "a")
        with pytest.raises(UserError, match="there is one run only"):
            compare(groups(tmp_path), "val/accuracy")

    def test_no_common_seed(self, tmp_path: Path) -> None:
        write(tmp_path, A[:2], "a")
        write(tmp_path, B[:2], "b", first_seed=5)
        with pytest.raises(UserError, match="ratio=b with seed=1,2 too"):
            compare(groups(tmp_path), "val/accuracy")

    @pytest.mark.parametrize(
        ("metric", "baseline", "match"),
        [("val/acuracy", None, "val/accuracy"), ("val/accuracy", "ratio=c", "ratio=a")],
    )
    def test_a_misspelled_name(
        self, metric: str, baseline: str | None, match: str, tmp_path: Path
    ) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        with pytest.raises(UserError, match=match):
            compare(groups(tmp_path), metric, baseline=baseline)


class TestSequential:
    @staticmethod
    def run(
        folder: Path, results: dict[str, list[float]]
    ) -> tuple[object, list[int], list[tuple[str, int]]]:
        write(folder, (results["a"][0],), "a")
        write(folder, (results["b"][0],), "b")
        trained = []

        def add(like: SavedRun, seed: int) -> SavedRun:
            name = like.parts["ratio"]
            trained.append((name, seed))
            return SavedRun(
                write_run(
                    folder / f"new/{name}{seed}",
                    [results[name][seed - 1]],
                    seed=seed,
                    parts={"ratio": name},
                )
            )

        a, b = groups(folder)
        interval, seeds = decide(a, b, SequentialTest(3, 6), "val/accuracy", 1, add)
        return interval, seeds, trained

    def test_stops_as_soon_as_it_is_decided(self, tmp_path: Path) -> None:
        interval, seeds, trained = self.run(
            tmp_path, {"a": [0.5] * 6, "b": [0.6, 0.601, 0.599, 0.6, 0.6, 0.6]}
        )
        assert seeds == [1, 2, 3]
        assert trained == [("a", 2), ("b", 2), ("a", 3), ("b", 3)]
        assert 0.0 not in interval  # type: ignore[operator]

    def test_ends_at_the_budget(self, tmp_path: Path) -> None:
        interval, seeds, _ = self.run(
            tmp_path, {"a": [0.5] * 6, "b": [0.6, 0.4, 0.6, 0.4, 0.6, 0.4]}
        )
        assert seeds == [1, 2, 3, 4, 5, 6]
        assert 0.0 in interval  # type: ignore[operator]

    def test_runs_that_were_added_do_not_change_the_order(self, tmp_path: Path) -> None:
        write(tmp_path, A[:1], "a", first_seed=42)
        write(tmp_path, B[:1], "b", first_seed=3)
        a, b = groups(tmp_path)
        assert seeds_of(a, b, 6) == [42, 1, 2, 3, 4, 5]
        write(tmp_path, A[:4], "a")
        a, b = groups(tmp_path)
        assert seeds_of(a, b, 6) == [42, 1, 2, 3, 4, 5]

    def test_repeats_a_run_that_has_recorded_its_command(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a1", [0.5], seed=1, exit=None)
        write_run(tmp_path / "a2", [0.5], seed=2, overrides=["seed=2"])
        seen = []

        def add(like: SavedRun, seed: int) -> SavedRun:
            seen.append(like.path.name)
            return like

        [group] = groups(tmp_path)
        decide(group, group, SequentialTest(3, 3), "val/accuracy", 1, add)
        assert set(seen) == {"a2"}


class TestTrain:
    @pytest.fixture
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A stand-in for train.py, which writes its arguments and exits with the status in
        `status`."""
        monkeypatch.setattr(sequential, "TRAIN", (sys.executable, str(tmp_path / "train.py")))
        save = (
            "import json, sys; from pathlib import Path; json.dump(sys.argv[1:], open('argv', 'w'))"
        )
        code = f"{save}; print('it broke'); sys.exit(int(Path('status').read_text()))"
        (tmp_path / "train.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "status").write_text("0")
        return tmp_path

    def like(self, folder: Path, **options: object) -> SavedRun:
        overrides = ["algo=dapo", "seed=1", "run_dir=x", "resume=auto"]
        return SavedRun(write_run(folder / "sweep/a", [0.5], **{"overrides": overrides, **options}))  # type: ignore[arg-type]

    def test_the_same_command_with_another_seed(self, script: Path) -> None:
        run = train(self.like(script), 4)
        assert run.path == script / "sweep/algo=dapo,seed=4"
        assert json.loads((script / "argv").read_text()) == [
            "algo=dapo",
            "seed=4",
            f"run_dir='{run.path}'",
            "resume=auto",
        ]

    def test_a_finished_run_is_kept(self, script: Path) -> None:
        like = self.like(script)
        write_run(script / "sweep/algo=dapo,seed=4", [0.5], seed=4)
        train(like, 4)
        assert not (script / "argv").exists()

    def test_a_failure(self, script: Path) -> None:
        (script / "status").write_text("1")
        with pytest.raises(UserError, match="training failed: it broke"):
            train(self.like(script), 4)

    def test_an_interruption(self, script: Path) -> None:
        (script / "status").write_text("75")
        with pytest.raises(KeyboardInterrupt):
            train(self.like(script), 4)

    @pytest.mark.parametrize(
        "override",
        [
            "--multirun",
            "hydra.run.dir=/",
            "+hydra.launcher=x",
            "+reward._target_=os.system",
            "run_name=${oc.env:KEY}",
            "environment.tools=[os.system]",
            "environment.tools.0=os.system",
            "rollout.urls=[http://h]",
            "rollout.folder=/etc",
            "callbacks.checkpoint.folder=/etc",
            "callbacks.samples.path=/etc/x",
            "logger.csv={save_dir:/etc}",
            "logger.mlflow.tracking_uri=http://h",
            "+reward.judge.url=http://h",
            "reward.terms.judge={weight: 1.0, reward: {url: http://h}}",
            "policy.allow_pickle=true",
            "env_id=x",
        ],
    )
    def test_overrides_that_reach_further_need_trust(self, override: str, script: Path) -> None:
        with pytest.raises(
            UserError, match="may reach beyond the process: if you trust it, type --trust"
        ):
            train(self.like(script, overrides=[override]), 4)
        assert not (script / "argv").exists()
        train(SavedRun(script / "sweep/a"), 4, trust=True)
        assert override in json.loads((script / "argv").read_text())

    def test_a_run_without_its_command(self, script: Path) -> None:
        with pytest.raises(UserError, match="has no overrides"):
            train(self.like(script, overrides=None), 4)


class TestCommand:
    def test_prints_words_or_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        module.main([str(tmp_path)])
        assert "ratio=b: 0.6050" in capsys.readouterr().out
        module.main([str(tmp_path), "--json"])
        [row] = json.loads(capsys.readouterr().out)
        assert row["better"] is True

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--sequential", "--min-seeds", "1"],
            ["--sequential", "--max-seeds", "2"],
            ["--sequential", "--baseline", "ratio=z"],
        ],
    )
    def test_settings(self, arguments: list[str], tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        with pytest.raises(UserError, match=r"needs|ratio=a"):
            module.run(parse([str(tmp_path), *arguments]))

    def test_last_is_positive(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit):
            parse([str(tmp_path), "--last", "0"])

    def test_sequential_needs_two_groups(self, tmp_path: Path) -> None:
        for name in "abc":
            write(tmp_path, A, name)
        with pytest.raises(UserError, match="compares two groups, not 3"):
            module.run(parse([str(tmp_path), "--sequential"]))

    def test_sequential(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        text = module.run(parse([str(tmp_path), "--sequential"]))
        assert text.startswith("ratio=b is better than ratio=a in val/accuracy: +0.1")
        assert sys.executable not in text
