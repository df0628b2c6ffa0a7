"""`python -m rlmods.compare`."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.lab import compare as module, sequential
from rlmods.lab.compare import Comparison, compare, higher_is_better, lines, parse
from rlmods.lab.groups import Group, find_runs, group_runs
from rlmods.lab.sequential import decide, seeds_of, train
from rlmods.lab.statistics import Interval, SequentialTest, power
from rlmods.run.saved import SavedRun
from tests.support.saved_runs import write_run

A = (0.50, 0.52, 0.49, 0.51)
B = (0.60, 0.63, 0.58, 0.61)


def write(
    folder: Path, results: tuple[float, ...], ratio: str, first_seed: int = 1, **options: Any
) -> None:
    for seed, result in enumerate(results, first_seed):
        path = folder / f"ratio={ratio},seed={seed}"
        write_run(path, [0.1, result], seed=seed, parts={"ratio": ratio}, **options)


def groups(folder: Path) -> list[Group]:
    return group_runs(find_runs([folder]))


def only(folder: Path, metric: str = "val/accuracy", **options: Any) -> tuple[Comparison, str]:
    """Return the only comparison of the runs in a folder, and its lines."""
    [x] = compare(groups(folder), metric, **options)
    return x, "\n".join(lines([x]))


class TestVerdict:
    @pytest.mark.parametrize("baseline", [None, "ratio=b", "ratio=b,seed=2"])
    def test_better_and_worse(self, baseline: str | None, tmp_path: Path) -> None:
        """The baseline is the first group, or named by itself or by one of its runs."""
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        named = str(tmp_path / baseline) if baseline and "," in baseline else baseline
        x, text = only(tmp_path, baseline=named)
        is_first = baseline is None
        assert x.better is is_first
        assert (x.baseline, x.name)[is_first] == "ratio=b"
        assert (x.seeds, x.unused) == ([1, 2, 3, 4], [])
        assert x.difference.mean == pytest.approx(0.1 if is_first else -0.1)
        assert 0.0 not in x.difference
        assert ("better than the baseline: +0.1000" in text) is is_first

    def test_of_a_loss(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a", metrics={"val/kl": 1.0})
        for seed, kl in enumerate((2.0, 2.01, 1.99), 1):
            write(tmp_path, (0.5,), "b", seed, metrics={"val/kl": kl})
        x, _ = only(tmp_path, "val/kl")
        assert x.better is False

    @pytest.mark.parametrize(
        "metric",
        [
            "val/accuracy",
            "val/accuracy/gap_questions",
            "val/kling/accuracy",
            "val/mean@4",
            "train/reward",
            "val/gap/mean@8",
            "val/kl/pass@4",
            "val/loss/maj@8",
            "val/gap/accuracy/algebra",
            "val/accuracy/glossary",
            "val/reward/gap",
            "train/reward/wrong",
            "train/pair_accuracy",
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
            "val/hard/response_tokens",
            "reward/accuracy/timeouts",
            "val/reward/accuracy/errors",
            "train/skipped_steps",
            "train/zero_advantage_fraction",
            "train/flat_group_fraction",
            "train/dropped_groups",
            "train/staleness_max",
            "train/clip_fraction/low",
            "judge/unjudged_fraction",
            "val/calibration",
            "val/malformed_calls",
            "train/unscored_fraction",
            "train/nonfinite_steps",
            "train/overflow_steps",
            "train/all_wrong_fraction",
            "time/update_s",
            "perf/peak_memory_mb",
        ],
    )
    def test_less_is_better(self, metric: str) -> None:
        assert not higher_is_better(metric)

    @pytest.mark.parametrize(
        ("first", "second", "unused", "text"),
        [
            # one more of 200 prompts, twice
            ((0.580, 0.600), (0.585, 0.605), [], "Equal differences show no spread of seeds"),
            (A, (0.52, 0.50, 0.51, 0.49), [], "not decided"),
            (A[:1], B, [2, 3, 4], "One common seed does not show"),
        ],
    )
    def test_not_decided(
        self,
        first: tuple[float, ...],
        second: tuple[float, ...],
        unused: list[int],
        text: str,
        tmp_path: Path,
    ) -> None:
        write(tmp_path, first, "a")
        write(tmp_path, second, "b")
        x, found = only(tmp_path)
        assert (x.better, x.unused) == (None, unused)
        assert text in found

    def test_several_are_adjusted(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, (0.52, 0.53, 0.53, 0.55), "b")
        single, _ = only(tmp_path)
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
        assert only(tmp_path)[0].unfinished == []
        write(tmp_path, A[:1], "a", 9, exit="interrupted")
        write(tmp_path, B[:1], "b", 8, exit="interrupted")  # of a seed that is not compared
        write(tmp_path, B[:1], "b", 9, exit=None)
        x, text = only(tmp_path)
        assert x.unfinished == [
            f"{tmp_path}/ratio=a,seed=9 (interrupted, iteration 1)",
            f"{tmp_path}/ratio=b,seed=9 (not finished, iteration 1)",
        ]
        assert f"the last values so far are compared: {', '.join(x.unfinished)}" in text

    def test_runs_that_end_at_different_iterations_are_named(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"settings": {"trainer": {"max_iterations": 9}}}
        write(tmp_path, A, "a", **options)
        options["parts"] = {"ratio": "b"}
        for seed in (1, 2, 8):
            write_run(tmp_path / f"ratio=b{seed}", [0.1] * (1 + seed), seed=seed, **options)
        x, text = only(tmp_path)
        assert x.different_iterations == ["seed=2: 1 and 2"]  # seed 8 is not compared
        assert "at different iterations: seed=2: 1 and 2" in text

    def test_by_prompt(self, tmp_path: Path) -> None:
        write(tmp_path, A[:2], "a", correct={"x": False, "y": True, "z": True})
        write(tmp_path, B[:2], "b", correct={"x": True, "y": True, "w": False})
        x, text = only(tmp_path)
        assert x.prompts is not None
        assert (x.prompts.mean, x.prompts.num_values) == (0.5, 2)
        assert "Greedy accuracy by prompt, for these seeds: +0.5000" in text


class TestRefusals:
    @pytest.mark.parametrize(
        ("num_seeds", "match"),
        [(4, "the same settings apart from the seed"), (1, "there is one run only")],
    )
    def test_one_group(self, num_seeds: int, match: str, tmp_path: Path) -> None:
        write(tmp_path, A[:num_seeds], "a")
        with pytest.raises(UserError, match=match):
            only(tmp_path)

    @pytest.mark.parametrize(
        ("first_seed", "metric", "baseline", "match"),
        [
            (5, "val/accuracy", None, "ratio=b with seed=1,2,3,4 too"),
            (1, "val/acuracy", None, "val/accuracy"),
            (1, "val/accuracy", "ratio=c", "ratio=a"),
        ],
    )
    def test_names_what_to_type(
        self, first_seed: int, metric: str, baseline: str | None, match: str, tmp_path: Path
    ) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b", first_seed)
        with pytest.raises(UserError, match=match):
            only(tmp_path, metric, baseline=baseline)


class TestSequential:
    @staticmethod
    def run(
        folder: Path, results: dict[str, list[float]]
    ) -> tuple[Interval, list[int], list[tuple[str, int]]]:
        """Return the decision, the seeds and the runs that were trained."""
        for name, values in results.items():
            write(folder, (values[0],), name)
        trained = []

        def add(like: SavedRun, seed: int) -> SavedRun:
            name = like.parts["ratio"]
            trained.append((name, seed))
            path = folder / f"new/{name}{seed}"
            values = [results[name][seed - 1]]
            return SavedRun(write_run(path, values, seed=seed, parts={"ratio": name}))

        a, b = groups(folder)
        interval, seeds = decide(a, b, SequentialTest(3, 6), "val/accuracy", 1, add)
        return interval, seeds, trained

    def test_stops_as_soon_as_it_is_decided(self, tmp_path: Path) -> None:
        results = {"a": [0.5] * 6, "b": [0.6, 0.601, 0.599, 0.6, 0.6, 0.6]}
        interval, seeds, trained = self.run(tmp_path, results)
        assert seeds == [1, 2, 3]
        assert trained == [("a", 2), ("b", 2), ("a", 3), ("b", 3)]
        assert 0.0 not in interval

    def test_ends_at_the_budget(self, tmp_path: Path) -> None:
        interval, seeds, _ = self.run(tmp_path, {"a": [0.5] * 6, "b": [0.6, 0.4] * 3})
        assert seeds == [1, 2, 3, 4, 5, 6]
        assert 0.0 in interval

    def test_runs_that_were_added_do_not_change_the_order(self, tmp_path: Path) -> None:
        write(tmp_path, A[:1], "a", first_seed=42)
        write(tmp_path, B[:1], "b", first_seed=3)
        assert seeds_of(*groups(tmp_path), 6) == [42, 1, 2, 3, 4, 5]
        write(tmp_path, A[:4], "a")
        assert seeds_of(*groups(tmp_path), 6) == [42, 1, 2, 3, 4, 5]

    def test_repeats_a_run_that_has_recorded_its_command(self, tmp_path: Path) -> None:
        write_run(tmp_path / "a1", [0.5], seed=1, exit=None)
        write_run(tmp_path / "a2", [0.5], seed=2, overrides=["seed=2"])
        seen = set()

        def add(like: SavedRun, seed: int) -> SavedRun:
            seen.add(like.path.name)
            return like

        [group] = groups(tmp_path)
        decide(group, group, SequentialTest(3, 3), "val/accuracy", 1, add)
        assert seen == {"a2"}


class TestTrain:
    @pytest.fixture
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A stand-in for train.py, which writes its arguments and exits with the status in
        `status`."""
        monkeypatch.setattr(sequential, "TRAIN", (sys.executable, str(tmp_path / "train.py")))
        (tmp_path / "train.py").write_text(
            "import json, sys\nfrom pathlib import Path\n"
            "json.dump(sys.argv[1:], open('argv', 'w'))\n"
            "print('it broke')\nsys.exit(int(Path('status').read_text()))"
        )
        monkeypatch.chdir(tmp_path)
        (tmp_path / "status").write_text("0")
        return tmp_path

    def like(self, folder: Path, **options: Any) -> SavedRun:
        overrides = ["algo=dapo", "seed=1", "run_dir=x", "resume=auto"]
        return SavedRun(write_run(folder / "sweep/a", [0.5], **{"overrides": overrides, **options}))

    def test_the_same_command_with_another_seed(self, script: Path) -> None:
        run = train(self.like(script), 4)
        assert run.path == script / "sweep/algo=dapo,seed=4"
        typed = json.loads((script / "argv").read_text())
        assert typed == ["algo=dapo", "seed=4", f"run_dir='{run.path}'", "resume=auto"]

    def test_the_seed_of_the_data_stays(self, script: Path) -> None:
        overrides = ["data.seed=1", "seed=1"]
        folder = write_run(script / "sweep/data.seed=1,seed=1", [0.5], overrides=overrides)
        assert train(SavedRun(folder), 4).path == script / "sweep/data.seed=1,seed=4"

    def test_a_finished_run_is_kept(self, script: Path) -> None:
        like = self.like(script)
        write_run(script / "sweep/algo=dapo,seed=4", [0.5], seed=4)
        train(like, 4)
        assert not (script / "argv").exists()

    @pytest.mark.parametrize(
        ("status", "error", "match"),
        [("1", UserError, "training failed: it broke"), ("75", KeyboardInterrupt, None)],
    )
    def test_a_failure_and_an_interruption(
        self, status: str, error: type[BaseException], match: str | None, script: Path
    ) -> None:
        (script / "status").write_text(status)
        with pytest.raises(error, match=match):
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
            "reward.function=evil.py:f",
            "environment.agent=evil:play",
            "environment.command=[sh,-c,evil]",
        ],
    )
    def test_overrides_that_reach_further_need_trust(self, override: str, script: Path) -> None:
        like = self.like(script, overrides=[override])
        with pytest.raises(UserError, match="if you trust it, type --trust"):
            train(like, 4)
        assert not (script / "argv").exists()
        train(like, 4, trust=True)
        assert override in json.loads((script / "argv").read_text())

    def test_a_run_without_its_command(self, script: Path) -> None:
        with pytest.raises(UserError, match="has no overrides"):
            train(self.like(script, overrides=None), 4)


class TestCommand:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Path:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        return tmp_path

    def test_prints_words_or_json(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        module.main([str(runs)])
        assert "ratio=b: 0.6050" in capsys.readouterr().out
        module.main([str(runs), "--json"])
        [row] = json.loads(capsys.readouterr().out)
        assert row["better"] is True
        with pytest.raises(SystemExit):
            module.main([str(runs), "--last", "0"])

    @pytest.mark.parametrize("settings", [["--min-seeds", "1"], ["--max-seeds", "2"]])
    def test_numbers_of_seeds(self, settings: list[str], runs: Path) -> None:
        with pytest.raises(UserError, match="type 2 <= min-seeds <= max-seeds"):
            module.run(parse([str(runs), "--sequential", *settings]))

    def test_sequential_needs_two_groups(self, runs: Path) -> None:
        write(runs, A, "c")
        with pytest.raises(UserError, match="compares two groups, not 3") as error:
            module.run(parse([str(runs), "--sequential"]))
        typed = str(error.value).partition("such as ")[2].partition(" (")[0].split()
        assert "+0.1" in module.run(parse([*typed, "--sequential"]))

    def test_sequential(self, runs: Path) -> None:
        text = module.run(parse([str(runs), "--sequential"]))
        assert text.startswith("ratio=b is better than ratio=a in val/accuracy: +0.1")


class TestPower:
    def figures(self, folder: Path, *options: str) -> dict[str, float]:
        """Return the printed difference for each number of seeds."""
        text = module.run(parse([str(folder), "--power", *options]))
        rows = [line.split(" seeds: ") for line in text.splitlines() if " seeds: " in line]
        return {seeds.strip(): float(value) for seeds, value in rows}

    def test_is_of_the_differences_of_pairs(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        figures = self.figures(tmp_path)
        deviation = statistics.stdev(b - a for a, b in zip(A, B, strict=True))
        assert list(figures) == ["3", "5", "10", "20"]
        for seeds, seen in figures.items():
            assert power(seen / deviation, int(seeds)) == pytest.approx(0.8, abs=1e-3)
        text = module.run(parse([str(tmp_path), "--power"]))
        assert "better than the baseline" in text
        assert f"+{statistics.mean(B) - statistics.mean(A):.4g}" in text
        assert text.endswith("if it is the true one: 2 seeds")

    def test_a_single_group_stands_for_both(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        figures = self.figures(tmp_path)
        deviation = 2**0.5 * statistics.stdev(A)
        assert power(figures["5"] / deviation, 5) == pytest.approx(0.8, abs=1e-3)

    def test_more_comparisons_see_less(self, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        one = self.figures(tmp_path)
        write(tmp_path, (0.3, 0.35, 0.31, 0.3), "c")
        text = module.run(parse([str(tmp_path), "--power"]))
        assert "adjusted for 2 comparisons" in text
        assert float(text.split(" 5 seeds: ")[1].split()[0]) > one["5"]

    def test_equal_differences_show_no_spread(self, tmp_path: Path) -> None:
        write(tmp_path, (0.54, 0.54), "a")
        with pytest.raises(UserError, match="no spread of seeds"):
            self.figures(tmp_path)

    @pytest.mark.parametrize("other", ["--sequential", "--json"])
    def test_is_alone(self, other: str, tmp_path: Path) -> None:
        write(tmp_path, A, "a")
        write(tmp_path, B, "b")
        with pytest.raises(UserError, match="type it without other actions"):
            self.figures(tmp_path, other)

    def test_one_seed_is_not_enough(self, tmp_path: Path) -> None:
        write(tmp_path, A[:1], "a")
        with pytest.raises(UserError, match="train seed=1,2,3"):
            self.figures(tmp_path)
