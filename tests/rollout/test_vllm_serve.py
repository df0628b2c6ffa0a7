"""`rollout=vllm_server` with servers of vLLM itself: `make test-vllm`."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from rlmods.adapter import LoRA
from rlmods.data import Arithmetic
from rlmods.policy import Policy, Tiny
from rlmods.rollout import VLLMServer
from tests.rollout.models import gap, outcomes

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

START_S = 180.0
"""Time in which a server must have started."""
PROMPTS = Arithmetic(level=2, num_train=64, num_val=8)().train


def start(folder: Path, *settings: str) -> tuple[str, subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "rlmods.serve",
        "policy=tiny",
        f"port={port}",
        "cache_gib=0.25",
        *settings,
    ]
    with open(folder / f"{port}.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, cwd=Path(__file__).parents[2]
        )
    return f"http://127.0.0.1:{port}", process


def wait(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(f"{url}/health").status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError((folder / f"{url.rpartition(':')[2]}.log").read_text()[-3000:])


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and the processes that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    folder = tmp_path_factory.mktemp("servers")
    started = dict(start(folder) for _ in range(2))
    try:
        for url, process in started.items():
            wait(url, process, folder)
        yield started
    finally:
        for process in started.values():
            kill(process)


def policy(change: float = 0.0) -> Policy:
    loaded = Tiny()()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in loaded.parameters():
            x.add_(change * torch.randn(x.shape, generator=generator))
    return loaded


def test_responses_are_those_of_the_policy(servers: Any) -> None:
    part = VLLMServer(urls=list(servers), max_tokens=12, concurrency=4)
    responses = []
    for iteration, change in enumerate((0.0, 0.2)):
        changed = policy(change)
        part.sync(changed, iteration=iteration)
        responses.append(part.generate(PROMPTS, samples=4, iteration=0))
        assert [r.prompt.id for r in responses[-1]] == [p.id for p in PROMPTS for _ in range(4)]
        assert gap(changed, responses[-1]) < 1e-4
        assert outcomes(part.generate(PROMPTS[:4], samples=4, iteration=1)) != outcomes(
            responses[-1][:16]
        )
        part.sync(changed, iteration=iteration)
        assert outcomes(part.generate(PROMPTS, samples=4, iteration=0)) == outcomes(responses[-1])
    assert outcomes(responses[0]) != outcomes(responses[1])


def test_a_killed_server_loses_nothing(servers: Any) -> None:
    """The last test with these servers."""
    part = VLLMServer(urls=list(servers), max_tokens=12, concurrency=1, retries=0)
    part.sync(policy(), iteration=0)
    expected = part.generate(PROMPTS, samples=4, iteration=0)
    part.sync(policy(), iteration=0)
    process = next(iter(servers.values()))
    part.on_tokens = lambda *_: kill(process)  # after the first response
    with pytest.warns(UserWarning, match="its prompts went to the others"):
        responses = part.generate(PROMPTS, samples=4, iteration=0)
    assert process.returncode == -signal.SIGKILL
    assert outcomes(responses) == outcomes(expected)


def test_an_adapter_is_added_by_the_server(tmp_path: Path) -> None:
    """Log-probabilities and a new adapter with each iteration, with vLLM's own LoRA."""
    url, process = start(tmp_path, "lora_rank=8")
    try:
        wait(url, process, tmp_path)
        part = VLLMServer(urls=url, max_tokens=12, adapter_only=True)
        adapted = LoRA(rank=4)(Tiny()())
        generator = torch.Generator().manual_seed(1)
        outcomes_of = []
        for iteration in range(3):
            part.sync(adapted, iteration=iteration)
            responses = part.generate(PROMPTS, samples=4, iteration=0)
            assert gap(adapted, responses) < 2e-4
            outcomes_of.append(outcomes(responses))
            with torch.no_grad():
                for x in adapted.trainable_tensors().values():
                    x.add_(0.05 * torch.randn(x.shape, generator=generator))
        assert outcomes_of[0] != outcomes_of[1] != outcomes_of[2]
    finally:
        kill(process)
