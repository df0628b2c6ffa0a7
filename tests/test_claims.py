"""bench/claims.py: its entrants fit their tasks, and its statistics are those it names; steps of the
ladder of DAPO."""

from itertools import pairwise

import pytest
from hydra import compose, initialize_config_dir

from rlmods.cli.command import silent_refusal
from rlmods.cli.scorecard import Entrant, Job
from rlmods.config import plugins
from rlmods.config.options import CONF
from rlmods.lab.statistics import mean_interval
from rlmods.lab.tunnel.results import Result
from rlmods.run import name
from tests.support.composed import composed
from tests.test_docs import script

claims = script("claims")


def swept(experiment: str) -> tuple[str, list[str]]:
    """Return the group that an experiment sweeps, and its options."""
    plugins.register()
    name.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", [f"experiment={experiment}"], return_hydra_config=True)
    [(group, options)] = config.hydra.sweeper.params.items()
    return group, options.split(",")


class TestLadder:
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


@pytest.mark.slow
@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: f"{claim.task} {claim.member}")
def test_entrants_fit_their_task(claim: claims.Claim) -> None:
    for typed in (claim.baseline, claim.member):
        job = Job(Entrant(typed), claims.TASK[claim.task], 1, CONF)
        assert not silent_refusal(job.overrides)


def result(entrant: str, seed: int, score: float, curves: dict[str, list[float]]) -> Result:
    points = {name: list(enumerate(values)) for name, values in curves.items()}
    return Result(entrant, "long", seed, score, points, 2.0, 1000.0)


class TestStatistics:
    def test_mean_of_the_second_half(self) -> None:
        run = result("a", 1, 0.3, {"train/entropy": [9, 9, 1, 2], "train/response_tokens": [9, 4]})
        assert claims.entropy(run) == 1.5
        assert claims.response_tokens(run) == 4

    def test_score_and_final_accuracy(self) -> None:
        task = claims.TASK["long"]
        heights = [task.start, task.best, task.best]
        run = result("a", 1, 0.3, {"val/mean@4": heights})
        assert claims.score(run) == pytest.approx(0.75)
        assert claims.final_accuracy(run) == task.best

    def test_scores_are_over_the_same_tokens(self) -> None:
        """A longer run would be better for its length alone."""
        task = claims.TASK["long"]
        long, short = (
            result("a", 1, 0.3, {"val/mean@4": [task.start, *[task.best] * n]}) for n in (3, 1)
        )
        assert [claims.score(x) for x in claims.cut([long, short])] == pytest.approx([0.5, 0.5])


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
        claim = claims.Claim("long", "a", "b", claims.score, sign, "")
        assert claim.holds(mean_interval(differences)) == verdict

    def test_pairs_by_seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        claim = claims.Claim("long", "a", "b", claims.score, 1, "paper")
        monkeypatch.setattr(claims, "CLAIMS", [claim])
        task = claims.TASK["long"]
        scores = [("a", 1, 0.1), ("a", 2, 0.5), ("b", 2, 0.6), ("b", 1, 0.3)]
        results = []
        for entrant, seed, score in scores:
            height = task.start + score * (task.best - task.start)
            # what one side has more does not count
            more = [task.best] if entrant == "b" else []
            results.append(result(entrant, seed, score, {"val/mean@4": [height, height, *more]}))
        text = claims.page(results, "## The rest")
        assert "| `long` | `a` to `b` | score | paper | 0.3 to 0.45: +0.15 (" in text
        assert "2 seeds | not decided |" in text
        assert "4 runs, 8 minutes of one core, 4,000 sampled tokens." in text
        assert text.endswith("## The rest")

    def test_a_claim_without_runs_says_so(self) -> None:
        rows = claims.verdict_rows([])
        assert len(rows) == 2 + len(claims.CLAIMS)
        assert all(row.endswith("| not run |") for row in rows[2:])
