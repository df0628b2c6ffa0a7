"""`make gpu`: what breaks is seen and hides nothing else, both sides do the same work, and every part
runs on the simulated device."""

import copy
import json
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import __main__ as command, correct, plain, process, report, shapes, speed, wheels
from bench.gpu.findings import Findings
from bench.gpu.process import Ended, Setting
from tests.support.simulated_cuda import library

pytestmark = pytest.mark.slow

TINY = shapes.TINY_SHAPES["0.5B"]


class TestFindings:
    def test_file_holds_what_came_before_the_end(self, tmp_path: Path) -> None:
        found = Findings(path=tmp_path / "findings.json")
        found.check("gap", 0.5, 1.0)
        found.figure("speed", 3.0)
        read = Findings.read(tmp_path / "findings.json")
        assert read.checks[0].holds
        assert read.figures == {"speed": 3.0}
        assert not read.is_complete

    def test_step_goes_on_after_an_error(self) -> None:
        found = Findings()
        with found.step("first"):
            raise ValueError("no such kernel")
        with found.step("second"):
            found.figure("speed", 1)
        [failure] = found.failures
        assert failure.step == "first"
        assert failure.error == "ValueError: no such kernel"
        assert 'ValueError("no such kernel")' in "\n".join(failure.lines)
        assert found.figures == {"speed": 1}

    @pytest.mark.parametrize(
        ("value", "at_least", "holds"),
        [(1.0, False, True), (1.1, False, False), (0.9, True, False), (1.0, True, True)],
    )
    def test_bounds(self, value: float, at_least: bool, holds: bool) -> None:
        found = Findings()
        found.check("x", value, 1.0, at_least=at_least)
        assert found.checks[0].holds == holds

    @pytest.mark.parametrize("at_least", [True, False])
    def test_nan_does_not_hold(self, at_least: bool) -> None:
        found = Findings()
        found.check("x", math.nan, 1.0, at_least=at_least)
        assert not found.checks[0].holds


def test_limit_ends_all_processes(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', '{child}']); "
        "print(p.pid, flush=True); p.wait()"
    )
    ended = process.run([sys.executable, "-c", code], tmp_path / "log", 1.0)
    assert ended.was_killed
    assert "its limit" in ended.reason
    state = Path(f"/proc/{ended.lines[-1]}/status")
    deadline = time.monotonic() + 10
    while state.exists() and "zombie" not in state.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


Fake = Callable[[str, Findings], Ended]
DONE = Ended(0, 1.0, False, [])


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the command with a function in place of the processes of its parts, on a card."""

    def started(part: Fake, *arguments: str, card: str | None = "H100") -> tuple[int, str]:
        def run(typed: list[str], log: Path, limit_s: float) -> Ended:
            if "bench.gpu.part" not in typed:
                return Ended(0, 0.0, False, [json.dumps({"card": card} if card else {})])
            folder = Path(json.loads(typed[-1])["folder"])
            log.write_text("output\n")
            return part(typed[-2], Findings(path=folder / "findings.json"))

        monkeypatch.setattr(command, "run", run)
        status = command.main([*arguments, "--out", str(tmp_path / "out")])
        page = tmp_path / "out" / "gpu.md"
        return status, page.read_text() if page.exists() else ""

    return started


def good(name: str, found: Findings) -> Ended:
    found.check("gap", 0.0, 1.0)
    found.end()
    return DONE


class TestCommand:
    def test_everything_holds(self, start: Any, tmp_path: Path) -> None:
        status, page = start(good)
        assert status == 0
        assert "Nothing broke." in page
        written = json.loads((tmp_path / "out" / "gpu.json").read_text())
        assert list(written["parts"]) == list(command.PARTS)

    def test_killed_check_fails_and_hides_nothing(self, start: Any) -> None:
        def part(name: str, found: Findings) -> Ended:
            if name == "sampling":
                return Ended(-9, 100.0, True, ["waiting for the device"])
            return good(name, found)

        status, page = start(part)
        assert status == 1
        assert "| training | 1 of 1 |" in page
        assert "The first thing that broke: sampling, the part: ended after 100 s" in page
        assert "waiting for the device" in page

    def test_broken_measurement_is_no_failed_check(self, start: Any) -> None:
        def part(name: str, found: Findings) -> Ended:
            if name == "rates":
                found.fail("copies", "CUDA error", ["line"])
            return good(name, found)

        status, page = start(part)
        assert status == 0
        assert "The first thing that broke: rates, copies: CUDA error" in page

    def test_check_beyond_its_bound_fails(self, start: Any) -> None:
        def part(name: str, found: Findings) -> Ended:
            if name == "forward":
                found.check("gradient", 0.3, 0.1)
            return good(name, found)

        status, page = start(part)
        assert status == 1
        assert "forward, gradient: 0.3 is not <= 0.1" in page

    def test_no_time_left_is_said(self, start: Any) -> None:
        status, page = start(good, "--seconds", "25")
        assert status == 1  # nothing was checked
        assert "- not done: iteration 0.5B: no time was left" in page

    def test_without_a_gpu_one_line_says_so(
        self, start: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        status, page = start(good, card=None)
        assert status == 2
        assert not page
        [line] = capsys.readouterr().out.splitlines()
        assert "there is no GPU here" in line

    def test_mistakes_are_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["speed"], ["--simulated"]):
            with pytest.raises(SystemExit):
                command.parse(arguments)
        output = capsys.readouterr().err
        assert "speed is not a part: type some of forward, sampling" in output
        assert "add --tiny" in output


class TestTables:
    def test_limit_and_utilisation_are_of_the_cards_rates(self) -> None:
        rates = {"memory TB/s": 2.0, "bfloat16 TFLOP/s": 500.0}
        work = {"rows": 8, "bytes": 4e9, "flops": 1e9}
        ours = {"tokens/s": 100.0, "ms a step": 8.0, "GiB": 1.0}
        found = Findings()
        found.figures = {
            "here, 8 rows": work | ours,
            "plain, 8 rows": work | ours | {"tokens/s": 50.0},
            "graphs, 8 rows": work | ours | {"tokens/s": 200.0},
        }
        text = report.decode_table({"decode 0.5B": found}, rates)
        assert "| decode 0.5B, 8 rows | 100 | 50 | 2 | 8 | 2 | 1 | 1 |" in text
        assert "| decode 0.5B, 8 rows, graphs | 200 | 50 | 4 | 8 | 2 | 1 | 1 |" in text
        found.figures = {
            "plain": {"response tokens/s": 10.0, "s a step": 2.0, "flops": 2e14, "GiB": 3.0}
        }
        text = report.update_table({"update 0.5B": found}, rates)
        assert "| update 0.5B: plain | 10 | 2 | 100 | 20 | 3 |" in text

    def test_missing_figures_are_dashes(self) -> None:
        found = Findings()
        found.figures = {"here": {"time/iteration_s": 2.0, "rows": 16}}
        text = report.iteration_table({"iteration 7B": found})
        assert "| iteration 7B: here, 16 responses | 2 | - | - | - | 0 |" in text


class TestCorrect:
    def test_device_that_computes_something_else_is_seen(self) -> None:
        """A weight that is 0.1 % larger is beyond the bounds of float32, an equal one is not."""
        policy = shapes.policy(TINY)
        tokens, mask = shapes.responses(TINY, 8, seed=1)
        expected = correct.score(policy, tokens, mask, packs=False, mixed=False)
        other = copy.deepcopy(policy)
        other.model.model.layers[0].mlp.down_proj.weight.data.mul_(1.001)
        for tried, holds in ((policy, True), (other, False)):
            found = Findings()
            got = correct.score(tried, tokens, mask, packs=True, mixed=False)
            correct.check_float32(found, "", got, expected)
            assert all(check.holds for check in found.checks) == holds

    def test_runs_that_end_apart_are_seen(self) -> None:
        start = {"w": torch.tensor([0.0, 0.0])}
        run = {"said": ["a"], "rows": [{"train/loss": 1.0}], "before": start}
        expected = run | {"weights": {"w": torch.tensor([1.0, 0.5])}}
        for change, holds in ((0.001, True), (0.1, False)):
            found = Findings()
            got = run | {"weights": {"w": expected["weights"]["w"] + change}}
            correct.compare_runs(found, "grpo", got, expected)
            assert found.checks[-1].holds == holds
        found = Findings()
        correct.compare_runs(found, "grpo", expected | {"said": ["b"]}, expected)
        assert not found.checks[0].holds


class TestPlain:
    def test_both_sides_make_the_same_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In float32, with plain gradient descent, whose step is the gradient."""
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
        rows = speed.on_device(TINY, 1)
        weights = []
        for make in (lambda p: speed.Step(p, 64), lambda p: plain.Update(p.model, None, 3)):
            policy = shapes.policy(TINY)
            step = make(policy)
            step.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
            if isinstance(step, plain.Update):
                policy.packs = False
            step(*rows)
            weights.append(torch.cat([x.detach().flatten() for x in policy.parameters()]))
        start = torch.cat([x.detach().flatten() for x in shapes.policy(TINY).parameters()])
        assert float((weights[0] - start).norm()) > 1e-3
        torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-5)

    def test_halves_the_rows_where_memory_does_not_suffice(self) -> None:
        tried = []

        class Network(torch.nn.Linear):
            def forward(self, input_ids: Any, **_: Any) -> Any:
                tried.append(len(input_ids))
                if len(input_ids) > 2:
                    raise torch.OutOfMemoryError("none left")
                logits = super().forward(torch.ones(*input_ids.shape, 1))
                return type("Output", (), {"logits": logits})

        network = Network(1, 7)
        update = plain.Update(network, torch.optim.SGD(network.parameters(), lr=1.0), rows=8)
        tokens = torch.ones(4, 3, dtype=torch.long)
        mask = torch.tensor([[False, True, True]] * 4)
        update(tokens, mask, torch.ones(4))
        assert tried == [4, 4, 2, 2]
        assert update.rows == 2

    def test_samples_exactly_the_wanted_tokens(self) -> None:
        prompts = shapes.questions(TINY, 2, 5)
        rows = plain.sample(shapes.network(TINY), prompts, 3, 4)
        assert rows.shape == (6, 9)
        assert torch.equal(rows[:, :5], prompts.repeat_interleave(3, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("135M", 134515008), ("0.5B", 494032768), ("1.5B", 1543714304), ("7B", 7615616512)],
)
def test_shapes_are_the_published_ones(name: str, parameters: int) -> None:
    network = shapes.network(shapes.SHAPES[name], "meta")
    assert sum(x.numel() for x in network.parameters()) == parameters


class TestWheels:
    def test_packages_of_the_image_are_left_out_unless_too_old(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "image").write_text("torch==2.11.0\nFileLock==3.1\n# more\n-e git\n")
        image = wheels.read_image(tmp_path / "image")
        assert image == {"torch": "2.11.0", "filelock": "3.1"}
        assert wheels.usable(image) == {"torch": "2.11.0"}
        assert "filelock 3.1 of the image is replaced" in capsys.readouterr().out

    def test_stub_stands_for_a_package(self, tmp_path: Path) -> None:
        assert wheels.write_stub(tmp_path, "lightning-utilities", "0.15") == "0.15+image"
        assert wheels.write_stub(tmp_path, "torch", "2.11.0+cu130") == "2.11.0+cu130"
        [path] = tmp_path.glob("lightning*")
        assert path.name == "lightning_utilities-0.15+image-py3-none-any.whl"
        with zipfile.ZipFile(path) as file:
            metadata = file.read("lightning_utilities-0.15+image.dist-info/METADATA").decode()
        assert "Name: lightning-utilities\nVersion: 0.15+image\n" in metadata

    def test_core_and_adapters_are_fetched(self) -> None:
        names = {wheels.Requirement(x).name for x in wheels.requirements()}
        assert {"torch", "hydra-core", "peft"} <= names


def simulated(tmp_path: Path, *parts: str) -> dict[str, Any]:
    """Run parts with tiny shapes on the simulated device, and return what they found."""
    if library.missing():
        pytest.skip(library.missing())
    typed = ["--tiny", "--simulated", "--seconds", "3000", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", *parts, *typed],
        cwd=process.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Nothing broke." in done.stdout, done.stdout[-4000:]
    found: dict[str, Any] = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    return found


@pytest.mark.slow
def test_parts_run_on_the_simulated_device(tmp_path: Path) -> None:
    found = simulated(tmp_path, "sampling", "rates", "decode 7B", "iteration 135M")
    assert len(found["sampling"]["checks"]) == 4
    assert found["rates"]["figures"]["bfloat16 TFLOP/s"] > 0
    assert found["decode 7B"]["figures"]["here, 8 rows"]["tokens/s"] > 0
    assert found["iteration 135M"]["figures"]["here"]["iterations"] == 2


@pytest.mark.nightly
def test_everything_runs_on_the_simulated_device(tmp_path: Path) -> None:
    found = simulated(tmp_path)
    assert list(found) == list(command.PARTS)
    assert all(part["is_complete"] for part in found.values())
    assert sum(len(part["checks"]) for part in found.values()) > 60


@pytest.mark.nightly
def test_everything_runs_on_the_processor(tmp_path: Path) -> None:
    typed = ["--tiny", "--seconds", "3000", "--out", str(tmp_path)]
    assert command.main(typed) == 0


def test_setting_selects_the_device() -> None:
    assert Setting("simulated", True, 1.0, "").python()[1:] == list(process.SIMULATED)
    assert Setting("cuda", False, 1.0, "").python() == [sys.executable]
    assert Setting("cpu", True, 1.0, "").accelerator == "cpu"
