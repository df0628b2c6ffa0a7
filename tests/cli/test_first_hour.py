"""docs/first_hour.md: its commands run in their order, with fewer iterations."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.processes import Process

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/first_hour.md"
SCALE = 20
"""By which the iterations of the page are divided."""
SMALL = (
    "batch.prompts=2",
    "batch.samples=4",
    "policy.pretrained=false",
    "policy.hidden_size=32",
    "policy.num_layers=2",
    "rollout.max_tokens=6",
    "validation.max_prompts=4",
    "validation.every=1",
)


def blocks() -> Iterator[tuple[str, str]]:
    """Yield language and text of the blocks of the page, a command at a time."""
    for language, text in re.findall(
        r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    ):
        if language == "bash":
            yield from ((language, line) for line in text.replace("\\\n", " ").splitlines())
        else:
            yield language, text


def smaller(command: str) -> list[str]:
    """Return the words of a command, with fewer iterations and a smaller policy."""
    number = (
        r"(?<=trainer\.max_iterations=)\d+|(?<=checkpoint\.every=)\d+|(?<=@)\d+|(?<=runs/first )\d+"
    )
    words = shlex.split(re.sub(number, lambda match: str(int(match[0]) // SCALE), command))
    return [*words[1:], *(SMALL if words[1] == "train.py" else ())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything on the page has been done."""
    folder = tmp_path_factory.mktemp("hour")
    environment = dict(os.environ) | {
        "RLMODS_PLUGINS": str(folder / "plugins"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    (folder / "plugins").mkdir()
    outputs: dict[str, str] = {}
    for language, text in blocks():
        if target := re.match(r"# (plugins/\S+)\n", text):
            assert (folder / target[1]).exists(), f"{target[1]} is not written by the command above"
            (folder / target[1]).write_text(text)
            continue
        if language == "python":
            (folder / "block.py").write_text(text)
        command = smaller(text) if language == "bash" else [str(folder / "block.py")]
        process = Process(command, cwd=folder, env=environment)
        out, err = process.communicate(timeout=240)
        own = re.sub(r"Loading weights:[^\n]*", "", err)  # a progress bar of transformers
        assert (process.returncode, own.strip()) == (0, ""), f"{text}\n{out}\n{err}"
        outputs[" ".join(command[:3])] = out
    (folder / "outputs.json").write_text(json.dumps(outputs))
    return folder


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_runs(folder: Path) -> None:
    assert summary(folder / "runs/first")["iterations"] == 3
    assert summary(folder / "runs/forked")["label"] == "grpo[advantage=rloo,fork=first@1]"
    gradings = []
    for name in ("first", "forked"):
        newest = sorted((folder / f"runs/{name}/checkpoints").glob("*.ckpt"))[-1]
        gradings.append(torch.load(newest, weights_only=True)["rlmods"]["grading"])
    assert gradings[0]["rows"] != gradings[1]["rows"]
    assert gradings[0]["rewards"] == gradings[1]["rewards"]
    assert len(list((folder / "runs/advantages").glob("*/summary.json"))) == 6
    rows = [
        json.loads(line) for line in (folder / "runs/terse/metrics.jsonl").read_text().splitlines()
    ]
    assert any("train/reward/terse" in row for row in rows)


def test_outputs(folder: Path) -> None:
    outputs = json.loads((folder / "outputs.json").read_text())
    assert (folder / "report.html").stat().st_size > 100_000
    assert "advantage=rloo" in outputs["-m rlmods.compare runs/advantages"]
    assert "val/accuracy" in outputs["-m rlmods.evaluate runs/first"]
    assert "setting advantage" in outputs["-m rlmods.diff runs/first"]
    assert outputs[str(folder / "block.py")].startswith("17+25=")
