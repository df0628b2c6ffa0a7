"""Train algorithms on the tasks of the wind tunnel and compare them: `python -m rlmods.scorecard
algo=grpo,dapo ['mine: dapo ratio=symmetric' ...] [seeds=3] [tasks=long,sparse]
[folder=runs/scorecard] [overrides='OVERRIDE ...'] [jobs=CORES] [reference=true]`.

Every algorithm, and every recipe with overrides in quotes, is trained on every task with each seed,
under a budget of sampled tokens. The first one is the baseline. `FOLDER/scorecard.html` shows the
scores with intervals, curves and costs, `FOLDER/results.jsonl` the numbers. Finished runs are not
repeated: type the same command again after an interruption, or with more seeds, tasks and
algorithms. The results of shipped algorithms come with the package: `reference=false` trains them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from rlmods.config.options import CONF
from rlmods.errors import UserError, counted, one_line_errors, print_usage, suggest
from rlmods.lab.tunnel.page import page
from rlmods.lab.tunnel.results import Result, read_result, reference_results, write_results
from rlmods.lab.tunnel.scores import Scores, scorecard
from rlmods.lab.tunnel.tasks import Task, find_tasks
from rlmods.run.files import atomic_write, dumps
from rlmods.run.name import member_name
from rlmods.run.saved import SavedRun, read_config

TRAIN = (sys.executable, "-m", "rlmods.cli.train")
ONE_VALIDATION = "one validation only: type overrides='validation.every=1'"
INTERRUPTED = "interrupted: type the same command again to go on"


@dataclass(frozen=True)
class Entrant:
    """An algorithm with overrides, such as `dapo ratio=symmetric`, or `mine: dapo ratio=mine` with
    a name of its own."""

    typed: str

    @property
    def name(self) -> str:
        """What the page calls it."""
        name, colon, _ = self.typed.partition(": ")
        return name if colon else self.typed

    @property
    def overrides(self) -> list[str]:
        """Overrides of the command line: a word without `=` is the option of `algo`."""
        name, colon, rest = self.typed.partition(": ")
        words = shlex.split(rest if colon else name)
        return [word if "=" in word else f"algo={word}" for word in words]


@dataclass(frozen=True)
class Settings:
    """What is typed behind the command."""

    entrants: Sequence[Entrant]
    tasks: Sequence[Task]
    seeds: int = 3
    folder: Path = Path("runs/scorecard")
    overrides: Sequence[str] = ()
    """Overrides of all runs."""
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Number of runs that are trained at a time, each with one thread."""
    reference: bool = True
    """Take results that come with the package."""


def parse(words: Sequence[str]) -> Settings:
    """Return the settings that are typed.

    Raises:
        UserError: a word is unknown, or no algorithm is named.
    """
    entrants: list[Entrant] = []
    names: list[str] = []
    numbers = {"seeds": 3, "jobs": os.cpu_count() or 1}
    folder = Path("runs/scorecard")
    overrides: list[str] = []
    reference = True
    for word in words:
        key, _, value = word.partition("=")
        if key == "algo" and " " not in word:
            entrants += [Entrant(name) for name in value.split(",")]
        elif key == "tasks":
            names += value.split(",")
        elif key == "folder":
            folder = Path(value)
        elif key == "overrides":
            overrides += shlex.split(value)
        elif key == "reference":
            if value not in ("true", "false"):
                raise UserError(f"{word}: type reference=true or reference=false")
            reference = value == "true"
        elif key in numbers:
            if not value.isdecimal() or int(value) < 1:
                raise UserError(f"{word}: type a whole number of at least 1, as in {key}=3")
            numbers[key] = int(value)
        elif word.startswith("-") or ("=" in word and " " not in word):
            known = ("algo", "seeds", "tasks", "folder", "overrides", "jobs", "reference")
            raise UserError(
                f"{word}: no such setting; {suggest(key, known)}. An override belongs to an "
                f"algorithm, in quotes: 'dapo {word}'"
            )
        else:
            entrants.append(Entrant(word))
    if not entrants:
        raise UserError("no algorithm: type algo=grpo,dapo")
    unique = list(dict.fromkeys(entrants))
    names_seen = [entrant.name for entrant in unique]
    for name in names_seen:
        if names_seen.count(name) > 1:
            raise UserError(f"two entrants are called {name}: type another name before the colon")
    named: dict[str, str] = {}
    for entrant in unique:
        directory = member_name(entrant.overrides)
        other = named.setdefault(directory, entrant.name)
        if other != entrant.name:
            raise UserError(f"{other} and {entrant.name} are the same: drop one of them")
    tasks = find_tasks(names)
    return Settings(unique, tasks, numbers["seeds"], folder, overrides, numbers["jobs"], reference)


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
    for seed in range(1, settings.seeds + 1):
        for task in settings.tasks:
            for entrant in settings.entrants:
                job = Job(entrant, task, seed, settings.folder, settings.overrides)
                jobs.append(job)
    return jobs


class InterruptedRunError(Exception):
    """A run ended by a signal."""


class Pool:
    """Trains runs in processes of their own, several at a time."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self._stopped = threading.Event()

    def train(self, overrides: Sequence[str], run: SavedRun) -> str:
        """Train a run, or continue it. Return "" if it finished, else why it did not.

        Raises:
            InterruptedRunError: a signal ended it, or the pool.
        """
        if self._stopped.is_set():
            raise InterruptedRunError
        run.path.parent.mkdir(parents=True, exist_ok=True)
        log = run.path.parent / f".{run.path.name}.log"
        command = [*TRAIN, *overrides, f"run_dir='{run.path}'", "resume=auto"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            status = subprocess.call(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        if status in (75, 130):
            raise InterruptedRunError
        if status == 0:
            return ""
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else f"status {status}"

    def results(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        """Train the jobs, and yield each with why it did not finish, "" if it did.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the runs have saved and ended.
        """
        with ThreadPoolExecutor(self.num_workers) as pool:
            futures = {pool.submit(self.train, job.overrides, job.run): job for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except (InterruptedRunError, KeyboardInterrupt):
                self._stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise KeyboardInterrupt from None
            finally:
                self._stopped.set()


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
    settings = [read_config(file) for file in files]
    return hashlib.sha256(dumps(settings).encode()).hexdigest()[:16]


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

    def find(self, jobs: Sequence[Job]) -> list[Job]:
        """Take the results of finished runs and those that come with the package. Return the jobs
        without a result."""
        shipped = reference_results(settings_digest) if self.settings.reference else {}
        missing = []
        for job in jobs:
            key = (job.entrant.typed, job.task.name, job.seed)
            if job.run.exit == "finished":
                self.add(job)
            elif key in shipped and not job.common:
                self.results[key] = shipped[key]
                self.num_shipped[job.entrant.name] += 1
            else:
                missing.append(job)
        return missing

    def add(self, job: Job) -> str:
        """Take the result of a finished run, and return it in words."""
        digest = "" if job.common else settings_digest(job.entrant.typed, job.task.name)
        result = read_result(job.run, job.entrant.name, job.task, job.seed, digest)
        self.results[job.entrant.name, job.task.name, job.seed] = result
        if result.score is None:
            self.reasons[job.entrant.name, job.task.name] = ONE_VALIDATION
            return f"no score: {ONE_VALIDATION}"
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
    pool = Pool(settings.jobs)
    entrants = counted(len(settings.entrants), "entrant")
    print(f"checking {entrants} on {counted(len(settings.tasks), 'task')}", flush=True)
    card = Scorecard(settings, check([job for job in jobs if job.seed == 1]))
    fitting = [job for job in jobs if (job.entrant.name, job.task.name) not in card.reasons]
    missing = card.find(fitting)
    for name, count in card.num_shipped.items():
        shipped = counted(count, "result")
        print(f"{name}: {shipped} of the package; reference=false trains it", flush=True)
    print(f"{len(missing)} of {counted(len(fitting), 'run')} to train", flush=True)
    print(f"their output is in {settings.folder}/TASK/.RUN.log", flush=True)
    started = time.monotonic()
    try:
        for number, (job, reason) in enumerate(pool.results(missing), 1):
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if arguments is None else arguments
    print_usage(words, __doc__)
    try:
        with one_line_errors():
            print(run_scorecard(parse(words)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
