"""bench/claims.py: the experiments have the members that it compares, and its statistics are those
it names."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.lab.statistics import mean_interval
from rlmods.run import name
from rlmods.run.saved import SavedRun
from tests.support.composed import composed
from tests.support.saved_runs import write_run
from tests.test_docs import script

claims = script("claims")
EXPERIMENTS = tuple(dict.fromkeys(claim.experiment for claim in claims.CLAIMS))


def swept(experiment: str) -> tuple[str, list[str]]:
    """Return the group that an experiment sweeps, and its options."""
    plugins.register()
    name.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"experiment={experiment}"], return_hydra_config=True)
    [(group, options)] = config.hydra.sweeper.params.items()
    return group, options.split(",")


class TestExperiments:
    @pytest.mark.parametrize("experiment", EXPERIMENTS)
    def test_members_are_those_that_are_compared(self, experiment: str) -> None:
        compared = {
            member
            for c in claims.CLAIMS
            if c.experiment == experiment
            for member in (c.baseline, c.member)
        }
        assert set(swept(experiment)[1]) == compared

    def test_each_step_of_the_ladder_changes_one_technique(self) -> None:
        group, options = swept("dapo_ladder")
        techniques = [
            (
                config.algo.overlong_filter,
                config.ratio.high,
                config.reward.terms.overlong.weight,
                config.aggregation._target_,
                config.sampling._target_,
            )
            for config in (
                composed("experiment=dapo_ladder", f"{group}={option}", "data.num_train=100").config
                for option in options
            )
        ]
        changes = [
            [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
            for one, other in pairwise(techniques)
        ]
        assert changes == [[0], [1], [2], [3], [4]]

    def test_the_last_step_of_the_ladder_is_dapo(self) -> None:
        ladder = composed(
            "experiment=dapo_ladder", "variant=ladder_6_dynamic", "data.num_train=100"
        )
        dapo = composed("algo=dapo", "data.num_train=100")
        assert (ladder.parts, ladder.batch) == (dapo.parts, dapo.batch)

    def test_commands_name_the_folders_that_are_read(self, tmp_path: Path) -> None:
        first, *others = claims.commands(tmp_path, (1, 2))
        assert first[-1] == "run_dir=runs/claims/reward_model"
        assert others[0] == [
            "-m",
            "experiment=dapo_ladder",
            "seed=1,2",
            f"hydra.sweep.dir={tmp_path}/dapo_ladder",
        ]
        assert len(others) == len(EXPERIMENTS)


class TestStatistics:
    def rows(self, tmp_path: Path, *rows: dict[str, Any]) -> SavedRun:
        run = write_run(tmp_path / "run", [0.5])
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps({"iteration": i} | row) + "\n" for i, row in enumerate(rows))
        )
        return SavedRun(run)

    def test_accuracy_of_the_last_validations(self, tmp_path: Path) -> None:
        run = self.rows(tmp_path, *({"val/accuracy": x} for x in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)))
        assert claims.accuracy(run) == pytest.approx(0.3)

    def test_clip_fraction(self, tmp_path: Path) -> None:
        run = self.rows(
            tmp_path,
            *(
                {"train/clip_fraction/low": x, "train/clip_fraction/high": 0.01}
                for x in (0.0, 0.18)
            ),
        )
        assert claims.clip_fraction(run) == pytest.approx(-1)

    def test_reward_deviation(self, tmp_path: Path) -> None:
        run = self.rows(tmp_path, *({"train/reward": x} for x in (0.0, 0.3, 0.3, 0.7)))
        assert claims.reward_deviation(run) == pytest.approx(math.sqrt((0.09 + 0.16) / 3))

    def test_wrong_response_tokens(self, tmp_path: Path) -> None:
        run = SavedRun(write_run(tmp_path / "run", [0.5]))
        for iteration in range(1, 13):
            rows = [
                {"tokens": [1] * iteration, "correct": False},
                {"tokens": [1] * 99, "correct": True},
                {"tokens": [], "correct": None},
            ]
            (run.path / f"samples/iteration_{iteration:06d}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows)
            )
        assert claims.wrong_response_tokens(run) == pytest.approx((3 + 12) / 2)

    def test_a_run_without_the_metric(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="has no val/reward/neural"):
            claims.proxy_reward(SavedRun(write_run(tmp_path / "run", [0.5])))


class TestVerdicts:
    @pytest.mark.parametrize(
        ("differences", "sign", "verdict"),
        [
            ([0.1, 0.11, 0.12], 1, "shown"),
            ([0.1, 0.11, 0.12], -1, "opposite"),
            ([0.1, -0.1, 0.12], 1, "not decided"),
            ([0.1], 1, "not decided"),
            ([0.1, -0.1, 0.12], 0, "no difference seen"),
            ([0.1, 0.11, 0.12], 0, "a difference seen"),
        ],
    )
    def test_by_the_interval(self, differences: list[float], sign: int, verdict: str) -> None:
        claim = claims.Claim("x", "a", "b", claims.accuracy, sign, "")
        assert claim.holds(mean_interval(differences)) == verdict

    def test_pairs_by_seed_and_leaves_out_unfinished_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = [
            SavedRun(
                write_run(
                    tmp_path / f"{algo}-{seed}", [value], seed=seed, parts={"algo": algo}, exit=exit
                )
            )
            for algo, seed, value, exit in [
                ("grpo", 1, 0.1, "finished"),
                ("grpo", 2, 0.5, "finished"),
                ("rloo", 2, 0.6, "finished"),
                ("rloo", 1, 0.3, "finished"),
                ("rloo", 3, 0.9, "interrupted"),
            ]
        ]
        monkeypatch.setattr(
            claims,
            "CLAIMS",
            [claims.Claim("rloo_vs_grpo", "grpo", "rloo", claims.accuracy, 1, "paper")],
        )
        text = claims.page({"rloo_vs_grpo": runs})
        assert (
            "| `rloo_vs_grpo` | `grpo` to `rloo` | accuracy | paper | 0.3 to 0.45: +0.15 (" in text
        )
        assert "2 seeds | not decided |" in text
        assert "| `rloo_vs_grpo` | 5 | 0 | 50 |" in text

    def test_an_experiment_without_runs_says_so(self) -> None:
        rows = claims.verdict_rows({})
        assert len(rows) == 2 + len(claims.CLAIMS)
        assert all(row.endswith("| not run |") for row in rows[2:])
