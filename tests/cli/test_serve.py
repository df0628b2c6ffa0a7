"""`python -m rlmods.serve`, without vLLM: the arguments of the server, and what is refused."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.cli import serve
from rlmods.cli.serve import ServeSettings, flags
from rlmods.distributed import trainer
from rlmods.errors import UserError
from tests.support import tiny_setup


def pairs(given: list[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in zip(given, [*given[1:], ""], strict=True)
        if name.startswith("--")
    }


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the server found when it started."""
    found: list[dict[str, Any]] = []

    def run() -> None:
        folder = Path(pairs(sys.argv)["--model"])
        config = json.loads((folder / "config.json").read_text())
        files = {path.name for path in folder.iterdir()}
        found.append(
            {
                "arguments": sys.argv[1:],
                "config": config,
                "files": files,
                "environment": dict(os.environ),
                "folder": folder,
            }
        )

    vllm: Any = ModuleType("vllm")
    vllm.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: {"LlamaForCausalLM"})
    entry: Any = ModuleType("vllm.entrypoints.launchers.api_server.entry")
    entry.main = run
    parents = (
        "vllm.entrypoints",
        "vllm.entrypoints.launchers",
        "vllm.entrypoints.launchers.api_server",
    )
    for name, module in {
        "vllm": vllm,
        **{name: ModuleType(name) for name in parents},
        entry.__name__: entry,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["serve"])
    for name in (
        *serve.ENVIRONMENT,
        "VLLM_LOGGING_LEVEL",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
    ):
        monkeypatch.setenv(name, "")  # restored after the test, also if it was not set
        monkeypatch.delenv(name)
    return found


@pytest.mark.parametrize(
    ("has_gpu", "typed", "expected"),
    [
        (True, None, "bfloat16"),
        (True, "float32", "float32"),
        (False, None, "float32"),
        (False, "bfloat16", "bfloat16"),
    ],
)
def test_the_data_type_is_that_of_the_trainer(
    has_gpu: bool,
    typed: str | None,
    expected: str,
    started: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the files too: half as much to write and read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(trainer, "MIN_PARAMETERS", 1)
    # vLLM's import is isolated from the random state of the GPUs
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: None)
    small = ["policy=tiny", "policy.pretrained=false", "policy.hidden_size=64"]
    serve.serve([*small, *([] if typed is None else [f"dtype={typed}"])])
    [found] = started
    assert pairs(found["arguments"])["--dtype"] == expected
    assert found["config"]["dtype"] == expected


def test_the_policy_of_the_run_is_served(started: list[dict[str, Any]]) -> None:
    arguments = [
        "policy=tiny",
        "policy.pretrained=false",
        "policy.hidden_size=64",
        "port=8123",
        "--",
        "--max-num-seqs",
        "8",
    ]
    assert serve.serve(arguments) == "stopped"
    [found] = started
    assert found["config"]["hidden_size"] == 64
    assert found["files"] >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert pairs(found["arguments"]).items() >= {
        ("--port", "8123"),
        ("--max-num-seqs", "8"),
        ("--host", "127.0.0.1"),
    }
    assert found["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in found["environment"]
    assert not found["folder"].exists()


def test_flags_are_those_that_the_trainer_needs(tmp_path: Path) -> None:
    policy = tiny_setup.policy()
    given = pairs(
        flags(
            ServeSettings(tensor_parallel=4, dtype="bfloat16", max_length=100, cache_gib=0.5),
            policy,
            tmp_path,
        )
    )
    expected = {
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--tensor-parallel-size": "4",
    }
    expected |= {
        "--dtype": "bfloat16",
        "--max-model-len": "100",
        "--kv-cache-memory-bytes": str(2**29),
        "--model": str(tmp_path),
    }
    assert expected.items() <= given.items()
    assert "--enable-scale-out" in given
    plain = pairs(flags(ServeSettings(), policy, tmp_path))
    assert (plain["--dtype"], plain["--max-model-len"]) == ("float32", str(policy.context_length))
    assert "--weight-transfer-config" not in plain
    receives = pairs(flags(ServeSettings(transfer="nccl"), policy, tmp_path))
    assert json.loads(receives["--weight-transfer-config"]) == {"backend": "nccl"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["port=http"], r"^port=http: must be a whole number$"),
        (["dtype=int8"], r"^dtype=int8: must be one of float32, bfloat16, float16 or null$"),
        (["transfer=gloo"], r"^transfer=gloo: must be one of files, nccl$"),
        (["policy=nothing"], r"policy=nothing"),
    ],
)
def test_invalid_settings_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        serve.serve(arguments)


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        UserError, match=r"vLLM cannot be imported .*: pip install 'rlmods\[vllm\]'"
    ):
        serve.serve(["policy=tiny"])
