"""Train algorithms on the tasks of the wind tunnel and compare them: `python -m rlmods.scorecard
algo=grpo,dapo ['mine: dapo ratio=symmetric' ...] [seeds=3] [tasks=long,sparse]
[folder=runs/scorecard] [overrides='OVERRIDE ...'] [jobs=CORES] [reference=true]`.

Every algorithm, and every recipe with overrides in quotes, is trained on every task with each seed,
under a budget of sampled tokens. The first one is the baseline. `FOLDER/scorecard.html` shows the
scores with intervals, curves and costs, `FOLDER/results.jsonl` the numbers. Finished runs are not
repeated: type the same command again after an interruption, or with more seeds, tasks and
algorithms. The results of shipped algorithms come with the package: `reference=false` trains them.
"""

from rlmods.errors import UserError, counted, one_line_errors, print_usage, suggest

print_usage(__name__, __doc__)

import hashlib
import os
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from itertools import combinations, product
from pathlib import Path

from omegaconf import OmegaConf

from rlmods.config.instantiate import parse_settings
from rlmods.config.options import CONF
from rlmods.lab.sequential import train_run
from rlmods.lab.tunnel.page import page
from rlmods.lab.tunnel.results import (
    Result,
    Scores,
    read_result,
    reference_results,
    scorecard,
    write_results,
)
from rlmods.lab.tunnel.tasks import Task, find_tasks
from rlmods.run.files import atomic_write, dumps
from rlmods.run.name import member_name
from rlmods.run.saved import SavedRun, read_config
from rlmods.settings.bounds import Count, bounded

NOT_SPENT = "the last validation was before the end of its token budget"
INTERRUPTED = "interrupted: type the same command again to go on"


@dataclass(frozen=True)
class Entrant:
    """An algorithm with overrides, such as `dapo ratio=symmetric`, or `mine: dapo ratio=mine` with
    a name of its own."""

    typed: str

    @property
    def name(self) -> str:
        """What the page calls it."""
        return self.typed.partition(": ")[0]

    @property
    def overrides(self) -> list[str]:
        """Overrides of the command line: a word without `=` is the option of `algo`."""
        words = shlex.split(self.typed.removeprefix(f"{self.name}: "))
        return [word if "=" in word else f"algo={word}" for word in words]


@dataclass(frozen=True)
@bounded("")
class Options:
    """Settings of the command, described in the module's docstring."""

    tasks: str = ""
    seeds: Count = 3
    folder: str = "runs/scorecard"
    overrides: str = ""
    """Overrides of all runs."""
    jobs: Count = field(default_factory=lambda: os.cpu_count() or 1)
    """Number of runs that are trained at a time, each with one thread."""
    reference: bool = True
    """Take results that come with the package."""


@dataclass(frozen=True)
class Settings:
    """What is typed behind the command."""

    entrants: Sequence[Entrant]
    tasks: Sequence[Task]
    options: Options

    @property
    def folder(self) -> Path:
        """Folder of the runs and of the page."""
        return Path(self.options.folder)


def parse(words: Sequence[str]) -> Settings:
    """Return the settings that are typed.

    Raises:
        UserError: a word is unknown, or no algorithm is named.
    """
    known = [setting.name for setting in fields(Options)]
    entrants: list[Entrant] = []
    typed: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key in known:
            typed.append(word)
        elif key == "algo" and " " not in word:
            entrants += map(Entrant, value.split(","))
        elif word.startswith("-") or ("=" in word and " " not in word):
            raise UserError(
                f"{word}: no such setting; {suggest(key, ['algo', *known])}. An override belongs "
                f"to an algorithm, in quotes: 'dapo {word}'"
            )
        else:
            entrants.append(Entrant(word))
    if not entrants:
        raise UserError("no algorithm: type algo=grpo,dapo")
    unique = list(dict.fromkeys(entrants))
    for a, b in combinations(unique, 2):
        if a.name == b.name:
            raise UserError(f"two entrants are called {a.name}: type another name before the colon")
        if member_name(a.overrides) == member_name(b.overrides):
            raise UserError(f"{a.name} and {b.name} are the same: drop one of them")
    options = parse_settings(OmegaConf.from_dotlist(typed), "", Options)
    return Settings(unique, find_tasks(options.tasks), options)


@dataclass(frozen=True)
class Job:
    """A run of an entrant on a task."""

    entrant: Entrant
    task: Task
    seed: int
    folder: Path
    """Folder of the scorecard."""
    common: Sequence[str] = ()
    """Overrides of all runs."""

    @property
    def varied(self) -> list[str]:
        """Overrides that name its directory."""
        return [*self.common, *self.entrant.overrides, f"seed={self.seed}"]

    @property
    def overrides(self) -> list[str]:
        """Overrides of its command line."""
        return [self.task.experiment, *self.varied]

    @property
    def run(self) -> SavedRun:
        """The run directory."""
        return SavedRun(self.folder / self.task.name / member_name(self.varied))

    @property
    def name(self) -> str:
        """What is printed."""
        return f"{self.task.name}, {self.entrant.name}, seed {self.seed}"


def all_jobs(settings: Settings) -> list[Job]:
    """Return all runs, first those with the first seed, so that an early page has every cell."""
    jobs: list[Job] = []
    common = shlex.split(settings.options.overrides)
    for seed in range(1, settings.options.seeds + 1):
        for task, entrant in product(settings.tasks, settings.entrants):
            jobs.append(Job(entrant, task, seed, settings.folder, common))
    return jobs


def train_all(jobs: Sequence[Job], num_workers: int) -> Iterator[tuple[Job, str]]:
    """Train runs in processes of their own, several at a time. Yield each with why it did not
    finish, "" if it did.

    Raises:
        KeyboardInterrupt: a signal ended a run; the others have saved and ended.
    """
    with ThreadPoolExecutor(num_workers) as pool:
        futures = {}
        for job in jobs:
            future = pool.submit(train_run, job.overrides, job.run.path, OMP_NUM_THREADS="1")
            futures[future] = job
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def check(jobs: Sequence[Job]) -> dict[tuple[str, str], str]:
    """Compose every entrant on every task. Return why an entrant is refused by a task, by the names
    of both.

    Raises:
        UserError: an entrant is refused by all tasks.
    """
    from rlmods.cli.command import silent_refusal

    reasons = {}
    for job in jobs:
        reason = silent_refusal(job.overrides)
        if reason:
            reasons[job.entrant.name, job.task.name] = reason
    for job in jobs:
        tasks = {other.task.name for other in jobs}
        own = [reasons.get((job.entrant.name, task)) for task in tasks]
        if all(own):
            raise UserError(f"'{job.entrant.name}' fits no task: {own[0]}")
    return reasons


def settings_digest(entrant: str, task: str) -> str:
    """Return a digest of the shipped recipe of an algorithm and of a task: a reference result of
    other settings is not used. "" if there is no such algorithm."""
    algo = CONF / "algo" / f"{entrant}.yaml"
    if not algo.is_file():
        return ""
    tunnel = CONF / "experiment" / "tunnel"
    files = (algo, tunnel / "base.yaml", tunnel / f"{task}.yaml")
    settings = list(map(read_config, files))
    return hashlib.sha256(dumps(settings).encode()).hexdigest()[:16]


def settings_since(job: Job) -> list[str]:
    """Return the settings that have changed since a finished run began: in its recipe, its task or
    the package. Settings that are new since then are not among them."""
    from rlmods.cli.command import configuration
    from rlmods.run.resume import changed_settings, recorded_precision

    saved = job.run.path / "config.yaml"
    config = configuration(job.overrides)
    if config.trainer.precision == "auto":
        config.trainer.precision = recorded_precision(saved) or "auto"
    changes = changed_settings(saved, config)
    budget = read_config(saved)["callbacks"]["budget"]["max_tokens"]
    if budget != config.callbacks.budget.max_tokens:  # a resumed run may change it
        changes["callbacks.budget.max_tokens"] = (budget, config.callbacks.budget.max_tokens)
    return [f"{key}={old} (now {new})" for key, (old, new) in changes.items() if old != "unset"]


@dataclass
class Scorecard:
    """Results so far."""

    settings: Settings
    reasons: dict[tuple[str, str], str]
    """Why an entrant has no score on a task, by the names of both."""
    results: dict[tuple[str, str, int], Result] = field(default_factory=dict)
    """By the names of entrant and task, and seed."""
    num_shipped: Counter[str] = field(default_factory=Counter)
    """Number of results of an entrant that come with the package."""
    changed: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Finished runs by what has changed since they began: the source file of a plugin, or
    settings."""

    def find(self, jobs: Sequence[Job]) -> list[Job]:
        """Take the results of finished runs and those that come with the package. Return the jobs
        without a result."""
        from rlmods.run.directory import changed_plugins

        shipped = reference_results(settings_digest) if self.settings.options.reference else {}
        missing = []
        for job in jobs:
            key = (job.entrant.typed, job.task.name, job.seed)
            if job.run.exit == "finished":
                changes = settings_since(job)
                self.add(job, is_current=not changes)
                for change in [*changed_plugins(job.run.path), *changes]:
                    self.changed[change].append(job.name)
            elif key in shipped and not job.common:
                self.results[key] = shipped[key]
                self.num_shipped[job.entrant.name] += 1
            else:
                missing.append(job)
        return missing

    def add(self, job: Job, *, is_current: bool = True) -> str:
        """Take the result of a finished run, and return it in words.

        Args:
            is_current: the run was trained with the present settings.
        """
        is_shipped = is_current and not job.common
        digest = settings_digest(job.entrant.typed, job.task.name) if is_shipped else ""
        result = read_result(job.run, job.entrant.name, job.task, job.seed, digest)
        self.results[job.entrant.name, job.task.name, job.seed] = result
        if result.score is None:
            self.reasons[job.entrant.name, job.task.name] = NOT_SPENT
            return f"no score: {NOT_SPENT}"
        return f"score {result.score:.3f}"

    def write(self) -> Path:
        """Write `results.jsonl` and `scorecard.html`, and return the path of the page."""
        names = [entrant.name for entrant in self.settings.entrants]
        tasks = self.settings.tasks
        scores: dict[tuple[str, str], Scores] = {}
        found: dict[tuple[str, str], list[Result]] = {}
        for name, task in product(names, tasks):
            own = [r for r in self.results.values() if (r.entrant, r.task) == (name, task.name)]
            found[name, task.name] = own
            scores[name, task.name] = {r.seed: r.score for r in own if r.score is not None}
        html = page(
            shlex.join(["python", "-m", "rlmods.scorecard", *sys.argv[1:]]),
            names,
            tasks,
            scorecard(scores, self.reasons, names[0]),
            found,
            {name: self.cost(name) for name in names},
        )
        folder = self.settings.folder
        write_results(folder / "results.jsonl", self.results.values())
        atomic_write(folder / "scorecard.html", html)
        return folder / "scorecard.html"

    def cost(self, name: str) -> str:
        """Return what the results of an entrant took, in words."""
        own = [result for result in self.results.values() if result.entrant == name]
        minutes = sum(result.minutes for result in own)
        num_tokens = sum(result.num_tokens for result in own)
        cost = f"{counted(len(own), 'run')}, {minutes:.1f} minutes of one core, "
        shipped = self.num_shipped[name]
        note = f"; {counted(shipped, 'result')} of the package" if shipped else ""
        return f"{cost}{num_tokens:,.0f} tokens{note}"


def run_scorecard(settings: Settings) -> str:
    """Train what is missing, write the page, and return what is printed at the end.

    Raises:
        UserError: an entrant or a task cannot be trained.
        KeyboardInterrupt: training was interrupted; the page shows what is finished.
    """
    jobs = all_jobs(settings)
    entrants = counted(len(settings.entrants), "entrant")
    print(f"checking {entrants} on {counted(len(settings.tasks), 'task')}", flush=True)
    card = Scorecard(settings, check([job for job in jobs if job.seed == 1]))
    fitting = [job for job in jobs if (job.entrant.name, job.task.name) not in card.reasons]
    missing = card.find(fitting)
    for name, count in card.num_shipped.items():
        shipped = counted(count, "result")
        print(f"{name}: {shipped} of the package; reference=false trains it", flush=True)
    for change, runs in card.changed.items():
        print(
            f"{change} has changed since {counted(len(runs), 'finished run')} began: delete what "
            f"is outdated in {settings.folder} to train it again",
            flush=True,
        )
    print(f"{len(missing)} of {counted(len(fitting), 'run')} to train", flush=True)
    print(f"their output is in {settings.folder}/TASK/.RUN.log", flush=True)
    started = time.monotonic()
    try:
        for number, (job, reason) in enumerate(train_all(missing, settings.options.jobs), 1):
            seconds = time.monotonic() - started
            left = seconds / number * (len(missing) - number) / 60
            if reason:
                card.reasons[job.entrant.name, job.task.name] = reason
            result = f"no score: {reason}" if reason else card.add(job)
            print(f"{number}/{len(missing)} {job.name}: {result}; {left:.0f} min left", flush=True)
            card.write()
    except KeyboardInterrupt:
        card.write()
        raise
    return f"wrote {card.write()}: open it in a browser"


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    with one_line_errors(INTERRUPTED):
        print(run_scorecard(parse(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
