"""The recipe of docs/scaling.md on two processes: with a small model, and stand-ins of servers that
answer at random."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from rlmods.data import Arithmetic
from rlmods.policy import Tiny
from tests.rollout.stand_in import servers
from tests.support.processes import ROOT, Process

pytestmark = pytest.mark.slow
TITLE = "## Eight GPUs, from SFT to GRPO"
EVALUATE = "python -m rlmods.evaluate runs/grpo rollout=local validation.samples=8"
SMALL = (
    *("trainer.accelerator=cpu", "trainer.precision=32-true", "trainer.max_iterations=2"),
    *("validation.max_prompts=4", "logger=none", "batch.prompts=4", "data.num_val=8"),
)
SAMPLED = (*("batch.samples=2", "rollout.max_tokens=8", "callbacks.monitor.max_sampler_gap=null"),)


def commands() -> list[str]:
    """Return the commands of the recipe, one a line."""
    page = (ROOT / "docs/scaling.md").read_text()
    recipe = page.partition(TITLE)[2].partition("\n## ")[0]
    blocks = re.findall(r"```\n(.*?)```", recipe, re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def run(folder: Path, command: str, *more: str) -> str:
    """Run a command on two processes instead of all GPUs, and return its output."""
    command = re.sub(r"^(CUDA_VISIBLE_DEVICES=\S+ )?torchrun", "-m torch.distributed.run", command)
    command = re.sub(r"^python ", "", command)
    command = re.sub(r"nproc-per-node=\d", "nproc-per-node=2", command)
    command = re.sub(r"trainer.devices=\d", "trainer.devices=2", command)
    command = command.replace("Qwen/Qwen2.5-1.5B", "model").replace("train.py", f"{ROOT}/train.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    typed = [*shlex.split(command), *more]
    process = Process(typed, cwd=folder, env=environment, merge=True)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output[-4000:]
    return str(output)


def test_training_and_evaluation_run(tmp_path: Path) -> None:
    Tiny()().export(tmp_path / "model")
    rows = [
        {"prompt": prompt.text, "answer": prompt.answer, "solution": prompt.answer}
        for prompt in Arithmetic(num_train=64, num_val=1)().train
    ]
    for name in ("demonstrations", "problems"):
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    sft, *serve, grpo = commands()
    assert "runs/sft/export" in run(tmp_path, sft, *SMALL)
    assert all("rlmods.serve policy=hf policy.name=runs/sft port=800" in line for line in serve)
    with servers(None, None) as found:
        for port, server in zip((8000, 8001), found, strict=True):
            grpo = grpo.replace(f"http://127.0.0.1:{port}", server.url)
        grpo = grpo.replace("batch.prompts=48", "").replace("rollout.max_tokens=1024", "")
        run(tmp_path, grpo, *SMALL, *SAMPLED)
        assert all(server.num_loads == 3 for server in found)
        assert all(x.dtype.itemsize == 2 for x in found[0].weights.values())
    assert "val/pass@8" in run(tmp_path, EVALUATE, "validation.max_prompts=4")
