import io
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rich
from rich.console import Console

from rlmods.callbacks import Progress, Samples
from rlmods.callbacks.progress import FLAT_HALF, format_iteration, format_signal
from rlmods.types import Prompt
from tests.callbacks.stubs import Tiny, fit, notify, trainer


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (
            {
                "train/reward": 0.4321,
                "train/accuracy": 0.375,
                "train/response_tokens": 6.12,
                "train/grad_norm": 0.81,
                "train/clip_fraction/low": 0.011,
                "train/clip_fraction/high": 0.02,
                "other": 1.0,
            },
            "reward 0.432  accuracy 0.375  tokens 6.1  clip low 0.01  clip high 0.02  grad 0.81  1.2 s",
        ),
        ({"train/accuracy": 0, "train/skipped_steps": 0.5}, "accuracy 0.000  1.2 s"),
        ({"train/skipped_steps": 1}, "no step: no learning signal  1.2 s"),
        (
            {"train/skipped_steps": 1, "train/unscored_fraction": 1},
            "no step: every response is unscored  1.2 s",
        ),
    ],
)
def test_format_iteration(metrics: dict[str, float], line: str) -> None:
    assert format_iteration({**metrics, "time/iteration_s": 1.23}) == line


@pytest.mark.parametrize("shape", [(0.3, 0.7), (1.0, 1.0), (0.05, 0.5), (2.0, 0.3)])
def test_the_signal_of_twice_the_samples_is_foretold(shape: tuple[float, float]) -> None:
    """Against groups drawn from the same prompts with twice the samples."""
    generator = np.random.default_rng(0)
    rates = generator.beta(*shape, 20_000)

    def flat(num_samples: int) -> float:
        correct = generator.binomial(num_samples, rates)
        return float(((correct == 0) | (correct == num_samples)).mean())

    name = "train/flat_group_fraction"
    line = format_signal({name: flat(8), f"{name}/half": flat(4), f"{name}/quarter": flat(2)}, 8)
    assert line.endswith("with batch.samples=16")
    foretold = float(line.split("about ")[1].split("%")[0]) / 100
    assert foretold == pytest.approx(1 - flat(16), abs=0.02)


def test_two_samples_foretell_nothing() -> None:
    line = format_signal({"train/flat_group_fraction": 0.5, FLAT_HALF: 1.0}, 2)
    assert line == "signal: 50% of the groups have correct and wrong responses"


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    fit(Tiny(), 2, [Progress()])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    assert [line.split("  ")[::2] for line in lines] == [
        ["iteration 1/2", "tokens 2.0"],
        ["iteration 2/2", "tokens 2.0"],
    ]


def test_validations_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    stub = trainer()
    stub.callbacks = [Progress()]
    learner = SimpleNamespace(iteration=0, max_iterations=100)
    notify(
        stub,
        "on_validation_metrics",
        learner,
        {"val/accuracy": 0.5, "val/pass@4": 0.75, "val/response_tokens": 3},
        [],
    )
    assert capsys.readouterr().out == "iteration   0/100  val/accuracy 0.500  val/pass@4 0.750\n"


def test_long_sampling_prints_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = time.monotonic()
    progress = Progress(patience_s=30)
    for seconds in (20, 31, 40):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: start + seconds)
        progress.on_tokens(3, 8, 50)
    assert capsys.readouterr().out == "sampling 3/8 responses, 50 tokens\n"


def test_long_phases_print_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start, progress, learner = time.monotonic(), Progress(patience_s=30), Tiny()
    for phase, times in {
        "reward": (20, 31, 55, 62),
        "update": (95, 130),
        "validation": (170,),
    }.items():
        for i, seconds in enumerate(times):
            monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: start + seconds)
            if i == 0:
                learner.timer._begin(phase)
            learner.timer.progress = 3 * i
            progress.show_phase(learner)
    lines = [
        "grading, 11 s",
        "grading, 42 s",
        "updating, 0 s, 0 microbatches",
        "updating, 35 s, 3 microbatches",
    ]
    assert capsys.readouterr().out.splitlines() == [
        *(f"iteration 1: {line}" for line in lines),
        "iteration 0: validating, 0 s",
    ]


def test_a_slow_reward_is_shown_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    class Slow(Tiny):
        def training_step(self, batch: list[Prompt], batch_idx: int) -> None:
            with self.timer.within("reward"):
                time.sleep(0.3)
            super().training_step(batch, batch_idx)

    progress = Progress(patience_s=0.1)
    fit(Slow(), 1, [progress])
    assert "iteration 1: grading, 0 s" in capsys.readouterr().out
    assert progress._thread is None


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=150, _environ={"TERM": "xterm"})
    monkeypatch.setattr(rich, "get_console", lambda: console)
    return out


def shows_cursor(shown: str) -> bool:
    return shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0


def test_bars_on_a_terminal(screen: io.StringIO, tmp_path: Path) -> None:
    progress = Progress()

    class Sampling(Tiny):
        def training_step(self, batch: object, batch_idx: int) -> None:
            for done in (0, 8, 16):
                self.rollout.on_tokens(done, 16, 3 * done)
                progress._bars.progress.refresh()  # type: ignore[union-attr]
            super().training_step(batch, batch_idx)  # type: ignore[arg-type]

    fit(Sampling(), 3, [progress, Samples(tmp_path, print_every=1)])
    shown = screen.getvalue()
    for part in ("sampling", "8/16", "24 tokens", "3/3", "reward", "[bold]0"):
        assert part in shown, part
    assert shows_cursor(shown)
    assert progress._bars is None


def test_failing_run_restores_the_terminal(screen: io.StringIO) -> None:
    class Failing(Tiny):
        def training_step(self, batch: object, batch_idx: int) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fit(Failing(), 3, [Progress()])
    assert shows_cursor(screen.getvalue())
