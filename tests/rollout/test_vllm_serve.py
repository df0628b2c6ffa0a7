"""`rollout=vllm_server` with servers of vLLM itself: `make test-vllm`."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from rlmods.adapter import LoRA
from rlmods.data import Arithmetic
from rlmods.errors import UserError
from rlmods.policy import Policy, Tiny
from rlmods.rollout import VLLMServer, broadcast
from tests.rollout import gloo
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


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run two servers."""
    started = dict(start(folder, *settings) for _ in range(2))
    try:
        for url, process in started.items():
            wait(url, process, folder)
        yield started
    finally:
        for process in started.values():
            kill(process)


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    with running(tmp_path_factory.mktemp("servers")) as started:
        yield started


def policy(change: float = 0.0) -> Policy:
    loaded = Tiny()()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in loaded.parameters():
            x.add_(change * torch.randn(x.shape, generator=generator))
    return loaded


@pytest.fixture
def by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's side of gloo in place of NCCL, and small chunks."""
    monkeypatch.setattr(broadcast, "DEVICE", "cpu")
    monkeypatch.setattr(broadcast, "unique_id", gloo.unique_id)
    monkeypatch.setattr(broadcast, "NCCLGroup", gloo.GlooGroup)
    monkeypatch.setattr(broadcast, "CHUNK_BYTES", 200_000)


def broadcasting(urls: list[str], **settings: Any) -> VLLMServer:
    return VLLMServer(urls=urls, max_tokens=12, transfer="nccl", retries=0, **settings)


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


def test_servers_without_the_setting_end_the_run(by_gloo: None, servers: Any) -> None:
    with pytest.raises(UserError, match=r"not configured.*rlmods\.serve transfer=nccl"):
        broadcasting(list(servers)).sync(policy(), iteration=0)


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


@pytest.fixture(scope="module")
def receivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Addresses of servers for `rollout.transfer=nccl`: vLLM's own addresses and engine, with gloo
    in place of NCCL."""
    folder = tmp_path_factory.mktemp("receivers")
    extension = ("--", "--worker-extension-cls", "tests.rollout.gloo_worker.Extension")
    with running(folder, "transfer=nccl", *extension) as started:
        yield list(started)


def test_weights_are_broadcast(by_gloo: None, receivers: list[str]) -> None:
    part = broadcasting(receivers)
    sampled = []
    for iteration, change in enumerate((0.0, 0.2, 0.1)):
        changed = policy(change)
        part.sync(changed, iteration=iteration)
        responses = part.generate(PROMPTS, samples=4, iteration=0)
        assert gap(changed, responses) < 1e-4
        sampled.append(outcomes(responses))
    assert sampled[0] != sampled[1] != sampled[2]
    files = VLLMServer(urls=receivers, max_tokens=12)
    files.sync(changed, iteration=0)
    assert outcomes(files.generate(PROMPTS, samples=4, iteration=0)) == sampled[-1]


def test_a_transfer_that_failed_does_not_reach_the_next_one(
    by_gloo: None, receivers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server gets a weight that it does not know, after it has loaded a part of the layer that
    joins queries, keys and values. Without the end of that transfer, the layer would be complete
    before it has its values."""
    part = broadcasting(receivers)
    send = broadcast.Broadcast._send

    def unknown(self: Any, threads: Any, chunk: broadcast.Chunk, url: str) -> None:
        if url == receivers[0] and "model.layers.0.self_attn.k_proj.weight" in chunk.info["names"]:
            names = ["model.nothing.weight" for _ in chunk.info["names"]]
            chunk = replace(chunk, info=chunk.info | {"names": names})
        send(self, threads, chunk, url)

    with monkeypatch.context() as patch:
        patch.setattr(broadcast.Broadcast, "_send", unknown)
        with pytest.warns(UserWarning, match=r"HTTP 500.*nothing.*: left out until the next"):
            part.sync(policy(0.2), iteration=0)
    assert part._servers._available == (receivers[1],)
    assert gap(policy(0.2), part.generate(PROMPTS, samples=4, iteration=0)) < 1e-4
    part.sync(policy(0.1), iteration=1)
    assert part._servers._available == tuple(receivers)
    part._servers._available = (receivers[0],)
    assert gap(policy(0.1), part.generate(PROMPTS, samples=4, iteration=1)) < 1e-4


def test_the_next_trainer_ends_a_transfer(
    by_gloo: None, receivers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is killed after it has begun."""
    killed = broadcasting(receivers[:1])

    def stop(self: Any, threads: Any, chunk: broadcast.Chunk, url: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(broadcast.Broadcast, "_send", stop)
        with pytest.raises(KeyboardInterrupt):
            killed.sync(policy(0.2), iteration=0)
    part = broadcasting(receivers[:1], timeout_s=100.0)
    part.sync(policy(0.1), iteration=0)
    assert gap(policy(0.1), part.generate(PROMPTS, samples=4, iteration=0)) < 1e-4
