"""What `trainer.strategy` may be."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlmods.config import build
from rlmods.distributed import strategy as module
from rlmods.distributed.strategy import DDP, FSDP2, check_launch, check_replicas, check_resume
from rlmods.errors import UserError
from tests.support.composed import composed

CPU = ("trainer.accelerator=cpu", "trainer.devices=2", "trainer.precision=32-true", "logger=none")


def test_every_rank_loads_the_checkpoint_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have not read its bytes, and may have found another one."""
    paths = [tmp_path / "first.ckpt", tmp_path / "other.ckpt"]
    for i, path in enumerate(paths):
        torch.save({"iteration": i}, path)
    for kind in (DDP, FSDP2):
        monkeypatch.setattr(kind, "broadcast", lambda self, path: paths[0])
        assert kind().load_checkpoint(paths[1], weights_only=True) == {"iteration": 0}


def test_deterministic_kernels_are_an_option(tmp_path: Path) -> None:
    """On a GPU, cuBLAS reads the variable when it is used first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
        try:
            strategy(tmp_path, "trainer.accelerator=cpu", "trainer.precision=32-true")
            assert not torch.are_deterministic_algorithms_enabled()
            strategy(tmp_path, *CPU[:1], *CPU[2:], "trainer.deterministic=warn")
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("setting", "limit", "is_sharded"),
    [(None, 12 * 15, True), (None, 12 * 15 + 1, False), (False, 1, False), (True, 10**9, True)],
)
def test_large_checkpoints_are_sharded(
    setting: bool | None, limit: int, is_sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two networks with 9 and 6 trained numbers: weights and two moments, 4 bytes each."""
    monkeypatch.setattr(module, "SHARDED_FROM_BYTES", limit)
    monkeypatch.setattr(module.sharding, "shard", lambda *args, **options: None)
    monkeypatch.setattr(module.deferred, "read", lambda *args: None)
    monkeypatch.setattr(FSDP2, "root_device", torch.device("cpu"))
    made = FSDP2(sharded_checkpoints=setting)
    made.shards = object()  # type: ignore[assignment]
    made.precision_plugin = SimpleNamespace(precision="32-true")
    frozen = nn.Linear(50, 50).requires_grad_(False)
    made.shard(nn.Sequential(nn.Linear(3, 3, bias=False), frozen))
    made.shard(nn.Linear(6, 1, bias=False))
    assert made._save_distributed_checkpoint is is_sharded


def strategy(tmp_path: Path, *typed: str) -> Any:
    return build.trainer(composed(*typed, f"run_dir={tmp_path}").config).strategy


def num_ranks(*typed: str) -> int:
    spec = composed(*typed, "trainer.precision=32-true")
    return build.num_ranks(spec, spec.config)


@pytest.mark.parametrize(("option", "kind"), [("ddp", DDP), ("fsdp", FSDP2)])
def test_an_option_makes_it(option: str, kind: type, tmp_path: Path) -> None:
    made = strategy(tmp_path, f"trainer={option}", *CPU, "trainer.strategy.timeout_s=60")
    assert type(made) is kind
    assert made._timeout.total_seconds() == 60


@pytest.mark.parametrize(
    "typed", ["fsdp", "fsdp_cpu_offload", "{_target_: lightning.pytorch.strategies.FSDPStrategy}"]
)
def test_fsdp_1_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match=r"FSDP1.*type trainer=fsdp"):
        composed(f"+trainer.strategy={typed}", *CPU)


@pytest.mark.parametrize("typed", ["ddp_spawn", "ddp_fork"])
def test_ranks_that_are_no_processes_of_their_own_are_refused(typed: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="type trainer=ddp"):
        strategy(tmp_path, f"+trainer.strategy={typed}", *CPU)


def test_lightnings_own_name_for_ddp_will_do(tmp_path: Path) -> None:
    assert strategy(tmp_path, "+trainer.strategy=ddp", *CPU) is not None


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (
            ("batch.prompts=31",),
            "batch.prompts=31 cannot be shared evenly by 2 ranks: type batch.prompts=32",
        ),
        (
            ("batch.minibatches=256",),
            "does not divide the 128 rows of each of 2 ranks: type one of",
        ),
    ],
)
def test_a_share_for_every_rank(typed: tuple[str, ...], advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        num_ranks(*typed, "trainer=ddp", *CPU)


@pytest.mark.parametrize(
    ("typed", "environment", "advice"),
    [
        (
            (),
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            "2 processes were started, but this trainer has 1: type trainer=ddp or",
        ),
        (
            ("trainer=ddp", *CPU),
            {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            r"trainer\.devices=2 trainer\.num_nodes=2",
        ),
    ],
)
def test_a_launcher_starts_as_many_as_there_are(
    typed: tuple[str, ...],
    environment: dict[str, str],
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=advice):
        num_ranks(*typed)


@pytest.mark.parametrize(("started", "ranks"), [(2, 4), (4, 2), (1, 8), (8, 1)])
def test_more_or_fewer_processes_than_ranks_are_refused(
    started: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(started))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(
        UserError,
        match=f"{started} processes were started, but this trainer has {ranks}: "
        f".*trainer.devices={started}$",
    ):
        check_launch(ranks)
    check_launch(started)
    monkeypatch.delenv("WORLD_SIZE")
    check_launch(ranks)


@pytest.mark.parametrize(("replicas", "ranks"), [(3, 8), (0, 8), (16, 8)])
def test_replicas_divide_the_ranks(replicas: int, ranks: int) -> None:
    with pytest.raises(
        UserError, match=f"replicas={replicas} does not divide 8 ranks: type one of 1, 2, 4, 8"
    ):
        check_replicas(replicas, ranks)
    check_replicas(4, ranks)


def test_shards_are_loaded_by_fsdp_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is sharded: type trainer=fsdp"):
        check_resume(DDP(), tmp_path)
    check_resume(FSDP2(), tmp_path)
    (tmp_path / "one.ckpt").touch()
    check_resume(DDP(), tmp_path / "one.ckpt")
    check_resume(DDP(), None)


def test_what_lightning_does_not_know_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        strategy(tmp_path, "+trainer.strategy=nonsense", *CPU)
    assert "\n" not in str(error.value)
