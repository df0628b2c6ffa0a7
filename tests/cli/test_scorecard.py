"""`python -m rlmods.scorecard`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from rlmods.cli import scorecard
from rlmods.cli.command import configuration
from rlmods.cli.scorecard import (
    Entrant,
    Job,
    Scorecard,
    all_jobs,
    check,
    parse,
    run_scorecard,
    settings_digest,
    settings_since,
)
from rlmods.errors import UserError
from rlmods.lab.tunnel.results import Result, read_results, reference_results
from rlmods.lab.tunnel.tasks import TASKS
from tests.cli.test_main import ROOT

COMMAND = (sys.executable, "-m", "rlmods.scorecard")
QUICK = "callbacks.budget.max_tokens=2500 validation.max_prompts=6 validation.every=1"


def test_an_entrant_is_an_algorithm_with_overrides() -> None:
    assert Entrant("dapo ratio=symmetric algo.entropy_coefficient=0.1").overrides == [
        "algo=dapo",
        "ratio=symmetric",
        "algo.entropy_coefficient=0.1",
    ]
    assert Entrant("ratio=symmetric").overrides == ["ratio=symmetric"]


def test_an_entrant_may_have_a_name() -> None:
    entrant = Entrant("my ratio: dapo ratio=symmetric")
    assert entrant.name == "my ratio"
    assert entrant.overrides == ["algo=dapo", "ratio=symmetric"]
    assert Entrant("dapo").name == "dapo"


def test_settings_are_read() -> None:
    words = ["algo=grpo,dapo", "dapo ratio=symmetric", "seeds=2", "tasks=tools,long", "jobs=1"]
    settings = parse([*words, "folder=x/y", "algo=grpo"])
    assert [entrant.name for entrant in settings.entrants] == ["grpo", "dapo", words[1]]
    assert [task.name for task in settings.tasks] == ["long", "tools"]
    assert (settings.options.seeds, settings.options.jobs) == (2, 1)
    assert settings.folder == Path("x/y")
    jobs = all_jobs(settings)
    assert len({job.run.path for job in jobs}) == len(jobs) == 2 * 2 * 3
    assert [job.seed for job in jobs] == [1] * 6 + [2] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seeds=2"], "no algorithm: type algo=grpo,dapo"),
        (["algo=grpo", "seeds=0"], "seeds=0: must be at least 1"),
        (["algo=grpo", "tasks=lnog"], "did you mean long"),
        (["algo=grpo", "ratio=symmetric"], "in quotes: 'dapo ratio=symmetric'"),
        (["algo=grpo", "seed=3"], "did you mean seeds"),
        (["a: grpo", "a: dapo"], "two entrants are called a"),
        (["algo=grpo", "a: grpo"], "grpo and a are the same"),
        (["dapo kl=none ratio=none", "dapo  ratio=none kl=none"], "are the same"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(words)


@pytest.mark.slow
def test_what_does_not_fit_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    def jobs(entrant: str, tasks: str) -> dict[tuple[str, str], str]:
        words = ["algo=grpo", entrant, f"tasks={tasks}", "seeds=1", f"folder={tmp_path}"]
        return check(all_jobs(parse(words)))

    assert jobs("dapo ratio=symmetric", "long") == {}
    [reason] = jobs("online_dpo preference=dpo", "long,turns").items()
    assert reason[0] == ("online_dpo preference=dpo", "turns")
    with pytest.raises(UserError, match=r"'dapo ratio=symetric' fits no task: .*symmetric"):
        jobs("dapo ratio=symetric", "long,turns")


def test_runs_that_did_not_finish_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def train_all(jobs: list[Job], num_workers: int) -> Iterator[tuple[Job, str]]:
        trained.extend(job.seed for job in jobs)
        return iter(())

    monkeypatch.setattr(scorecard, "train_all", train_all)
    monkeypatch.setattr(scorecard, "check", lambda _: {})
    words = ["algo=grpo", "tasks=long", "seeds=4", f"folder={tmp_path}", "reference=false"]
    settings = parse(words)
    ends = ["finished", "failed: no memory", "interrupted"]  # and one that was never started
    for job, end in zip(all_jobs(settings), ends, strict=False):
        job.run.path.mkdir(parents=True)
        (job.run.path / "summary.json").write_text(json.dumps({"exit": end}))
        (job.run.path / "config.yaml").write_text("callbacks: {budget: {max_tokens: 9}}")
    run_scorecard(settings)
    assert trained == [2, 3, 4]


def test_results_of_the_package_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = {
        ("grpo", "long", seed): Result("grpo", "long", seed, 0.1 * seed, {}, 1.0, 10.0)
        for seed in (1, 2)
    }
    monkeypatch.setattr(scorecard, "reference_results", lambda _: shipped)

    def missing(*words: str) -> list[str]:
        typed = ["tasks=long", "seeds=2", f"folder={tmp_path}", *words]
        card = Scorecard(parse(typed), {})
        return [job.name for job in card.find(all_jobs(card.settings))]

    assert missing("algo=grpo") == []
    assert missing("algo=grpo", "reference=false") == ["long, grpo, seed 1", "long, grpo, seed 2"]
    assert len(missing("algo=grpo", "overrides=trainer.max_iterations=1")) == 2
    assert missing("algo=grpo", "seeds=3") == ["long, grpo, seed 3"]
    assert missing("algo=grpo,dapo") == ["long, dapo, seed 1", "long, dapo, seed 2"]
    assert len(missing("grpo: dapo")) == 2
    card = Scorecard(parse(["algo=grpo", "tasks=long", f"folder={tmp_path}"]), {})
    card.find(all_jobs(card.settings))
    card.write()
    assert "2 results of the package" in (tmp_path / "scorecard.html").read_text()
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "is_reference"),
    [
        (["algo=grpo"], True),
        (["algo=grpo", "overrides=batch.prompts=8"], False),
        (["x: grpo"], False),
        (["grpo kl=none"], False),
    ],
    ids=str,
)
def test_only_shipped_recipes_are_references(
    words: list[str], is_reference: bool, tmp_path: Path
) -> None:
    card = Scorecard(parse([*words, "tasks=long", "seeds=1", f"folder={tmp_path}"]), {})
    [job] = all_jobs(card.settings)
    job.run.path.mkdir(parents=True)
    (job.run.path / "config.yaml").write_text("callbacks: {budget: {max_tokens: 9}}")
    card.add(job)
    [result] = card.results.values()
    assert bool(result.settings) is is_reference


def test_runs_of_other_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe or a task changed after a run, which then has no result of the present one. A run
    records the precision that it chose."""
    monkeypatch.setattr(scorecard, "train_all", lambda jobs, num_workers: iter(()))
    settings = parse(["algo=grpo", "tasks=long", "seeds=2", f"folder={tmp_path}"])
    for job, eps in zip(all_jobs(settings), (0.04, 0.3), strict=True):
        config = configuration([*job.overrides, f"run_dir='{job.run.path}'"])
        OmegaConf.update(config, "kl.coefficient", eps)
        config.trainer.precision = "32-true"
        OmegaConf.set_struct(config, False)
        del config.rollout.fused  # a setting that is new since the run
        job.run.path.mkdir(parents=True)
        OmegaConf.save(config, job.run.path / "config.yaml", resolve=True)
        (job.run.path / "summary.json").write_text('{"exit": "finished"}')
    run_scorecard(settings)
    [told] = [x for x in capsys.readouterr().out.splitlines() if "has changed" in x]
    assert told.startswith("kl.coefficient=0.3 (now 0.04) has changed since 1 finished run began")
    results = read_results(tmp_path / "results.jsonl")
    assert [bool(result.settings) for result in results] == [True, False]


def test_runs_with_another_budget_are_named(tmp_path: Path) -> None:
    [job] = all_jobs(parse(["algo=grpo", "tasks=long", "seeds=1", f"folder={tmp_path}"]))
    config = configuration([*job.overrides, f"run_dir='{job.run.path}'"])
    budget = config.callbacks.budget.max_tokens
    config.callbacks.budget.max_tokens = 9
    job.run.path.mkdir(parents=True)
    OmegaConf.save(config, job.run.path / "config.yaml", resolve=True)
    assert settings_since(job) == [f"callbacks.budget.max_tokens=9 (now {budget})"]


def test_a_run_that_samples_nothing_is_a_cell_with_a_reason(tmp_path: Path) -> None:
    """Algorithms that do not sample never spend the budget."""
    card = Scorecard(parse(["algo=grpo", "tasks=long", "seeds=1", f"folder={tmp_path}"]), {})
    [job] = all_jobs(card.settings)
    job.run.path.mkdir(parents=True)
    (job.run.path / "config.yaml").write_text("callbacks: {budget: {max_tokens: 9}}")
    rows = [{"iteration": i, "val/mean@4": 0.5} for i in (0, 3)]
    (job.run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert card.add(job) == "no score: the last validation was before the end of its token budget"
    card.write()
    html = (tmp_path / "scorecard.html").read_text()
    assert "the last validation was before the end of its token budget" in html


def test_the_digest_follows_the_algorithm_and_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(algo: object = 0, base: object = 0, task: object = 0) -> str:
        for name, value in [
            ("algo/grpo", algo),
            ("experiment/tunnel/base", base),
            ("experiment/tunnel/long", task),
        ]:
            file = tmp_path / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# a comment\n{yaml.safe_dump({'setting': value})}")
        return settings_digest("grpo", "long")

    monkeypatch.setattr(scorecard, "CONF", tmp_path)
    assert len({digest(), digest(algo=1), digest(base=1), digest(task=1)}) == 4
    assert digest() == digest()
    assert settings_digest("mine", "long") == ""


@pytest.mark.slow
def test_trains_what_is_missing_and_writes_the_page(tmp_path: Path) -> None:
    common = ["tasks=tools", f"folder={tmp_path}", f"overrides={QUICK}"]  # no reference results
    words = ["algo=grpo,dr_grpo", *common, "seeds=1"]
    first = subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "2 of 2 runs to train" in first.stdout
    html = (tmp_path / "scorecard.html").read_text()
    assert html.count("<figcaption>val/mean@4") == 1
    assert html.count("<polyline") == 2 * html.count("<figure>") > 2
    assert html.count("<td>1 run, ") == 2
    words[-1] = "seeds=2"
    again = subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "2 of 4 runs to train" in again.stdout
    html = (tmp_path / "scorecard.html").read_text()
    assert html.count("<polyline") == 4 * html.count("<figure>")


@pytest.mark.slow
def test_a_run_of_one_iteration_has_a_score(tmp_path: Path) -> None:
    """Its budget ends with a last validation."""
    budget = "overrides=callbacks.budget.max_tokens=10 validation.max_prompts=6"
    words = ["algo=grpo", "tasks=tools", "seeds=1", budget, f"folder={tmp_path}"]
    for count in ("1 of 1 run to train", "0 of 1 run to train"):
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert count in done.stdout
    [result] = read_results(tmp_path / "results.jsonl")
    assert result.score is not None


WIDE = ("grpo", "dapo")
"""Algorithms with results on all tasks."""
SOME = ("ppo", "reinforce_pp", "rft")
SOME_TASKS = ("sparse", "experts", "proxy", "tools", "turns")
TEN = (*WIDE, *SOME, "dr_grpo", "gspo", "sapo", "cispo", "rloo")
CELLS = {
    *product(WIDE, [task.name for task in TASKS]),
    *product(SOME, SOME_TASKS),
    *product(TEN, ["long"]),
}


def test_the_package_has_results_of_the_present_settings() -> None:
    """Those that docs/scorecard.md names, with three seeds, over whole budgets."""
    found = reference_results(settings_digest)
    budgets: dict[str, int] = {}
    for entrant, task in CELLS:
        for seed in (1, 2, 3):
            result = found[entrant, task, seed]
            assert result.score is not None
            if task not in budgets:
                config = configuration([f"experiment=tunnel/{task}", "algo=grpo"])
                budgets[task] = config.callbacks.budget.max_tokens
            [metric] = [x.metric for x in TASKS if x.name == task]
            assert result.curves[metric][-1][0] >= budgets[task]
            assert result.num_tokens >= budgets[task]
