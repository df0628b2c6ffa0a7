"""Errors of a device or process without memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.algo import Batch
from rlmods.callbacks import IterationCheckpoint
from rlmods.distributed.strategy import FSDP2
from rlmods.errors import UserError
from rlmods.rollout import Local, MultiTurn
from rlmods.training.out_of_memory import advise, is_out_of_memory, out_of_memory
from tests.support.environments import Echo
from tests.support.tiny_setup import fit, learner, policy

CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.15 "
    "GiB of which 1.20 GiB is free. Including "
    "non-PyTorch memory, this process has 77.90 GiB memory in use."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1610612736 bytes."
)
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"
RUNTIME = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
ERRORS = {
    f"update: out of memory on cuda:1: type ADVICE [{CUDA[:160]}]": torch.OutOfMemoryError(CUDA),
    f"update: out of memory on the CPU: type ADVICE [{CPU}]": RuntimeError(CPU),
    f"update: out of memory on the GPU: type ADVICE [{CUBLAS}]": RuntimeError(CUBLAS),
    f"update: out of memory on the GPU: type ADVICE [{RUNTIME.replace(chr(10), ' ')}]": RuntimeError(
        RUNTIME
    ),
    "update: out of memory on the CPU: type ADVICE": MemoryError(),
    "update: out of memory on the CPU: type ADVICE [Unable to allocate 8 EiB for an "
    "array]": MemoryError("Unable to allocate 8 EiB for an array"),
}


@pytest.mark.parametrize("message", ERRORS)
def test_one_line_names_stage_device_and_size(message: str) -> None:
    assert is_out_of_memory(ERRORS[message])
    assert str(out_of_memory("update", ERRORS[message], "ADVICE")) == message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("size mismatch"),
        RuntimeError("the server ran out of memory"),
        ValueError("out of memory"),
    ],
)
def test_other_errors_pass(error: Exception) -> None:
    trained = learner()
    with pytest.raises(type(error)) as raised, trained.timer.within("score"):
        raise error
    assert raised.value is error


def test_an_allocation_of_the_cpu_that_fails() -> None:
    trained = learner()
    trained._trainer = SimpleNamespace(world_size=1, strategy=None, callbacks=[])
    message = r"score: out of memory on the CPU: type .* \[.*DefaultCPUAllocator: "
    with pytest.raises(UserError, match=message), trained.timer.within("score"):
        torch.empty(2**55, dtype=torch.uint8)


class TestStages:
    """Each stage of an iteration names itself and what it needs less of."""

    @pytest.fixture
    def setup(self) -> Any:
        def setup(**changes: Any) -> Any:
            return learner(**{"batch": Batch(prompts=4, samples=4, token_budget=64)} | changes)

        return setup

    def fail(self, *args: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError(CUDA)

    def message(self, trained: Any, **options: Any) -> str:
        with pytest.raises(UserError) as raised:
            fit(trained, 1, **options)
        message = str(raised.value)
        assert message.endswith(f" [{CUDA[:160]}]")
        return message.removesuffix(f" [{CUDA[:160]}]")

    def test_update(self, setup: Any) -> None:
        trained = setup()
        trained.loss = self.fail
        expected = (
            "type batch.token_budget=32 (the longest row has 12 tokens), or "
            "policy.gradient_checkpointing=true"
        )
        assert self.message(trained) == f"update: out of memory on cuda:1: {expected}"

    def test_rollout(self, setup: Any) -> None:
        trained = setup()
        trained.rollout._decode_batch = self.fail
        assert self.message(trained).endswith(
            "type a smaller rollout.batch_size, or rollout.max_tokens=4"
        )

    def test_in_an_environment_it_is_whole_responses_that_are_long(self, setup: Any) -> None:
        """`rollout.max_tokens`, 8 here, limits a turn: twice as many tokens would be no less."""
        trained = setup(rollout=MultiTurn(Local(max_tokens=8, batch_size=4), Echo()))
        trained._trainer = SimpleNamespace(world_size=1, strategy=None)
        assert trained.rollout.max_tokens == 60
        assert advise(trained, "rollout").endswith("environment.max_tokens=30")

    @pytest.mark.parametrize("iteration", [0, 1])
    def test_transfer_of_weights(self, setup: Any, iteration: int) -> None:
        trained = setup()
        sync = trained.rollout.sync

        def fail(policy: Any, *, iteration: int) -> None:
            self.fail() if iteration == failing else sync(policy, iteration=iteration)

        failing, trained.rollout.sync = iteration, fail
        assert self.message(trained).startswith("sync: out of memory on cuda:1")

    def test_score(self, setup: Any) -> None:
        trained = setup(batch=Batch(prompts=4, samples=4, token_budget=64, minibatches=2))
        trained.scorer.score = self.fail
        assert self.message(trained).startswith("score: out of memory on cuda:1")

    def test_checkpoint(self, setup: Any, tmp_path: Any) -> None:
        trained = setup()
        checkpoint = IterationCheckpoint(tmp_path, every=1, keep=1)
        checkpoint.on_save_checkpoint = self.fail  # type: ignore[method-assign]
        message = self.message(trained, callbacks=(checkpoint,))
        assert message.startswith("checkpoint: out of memory")
        assert "type trainer=fsdp trainer.devices=2, or adapter=lora" in message


class TestAdvice:
    def advice(self, stage: str = "update", *, strategy: Any = None, **changes: Any) -> str:
        trained = learner(**changes)
        trained._trainer = SimpleNamespace(strategy=strategy, world_size=1)
        return advise(trained, stage)

    def test_with_gradient_checkpointing(self) -> None:
        checkpointed = policy(gradient_checkpointing=True)
        row = "the longest row has 12 tokens"
        expected = f"batch.token_budget=96 ({row}), or trainer=fsdp trainer.devices=2"
        assert self.advice(policy=checkpointed) == expected

    def test_a_longer_row_has_its_own_microbatch(self) -> None:
        advice = self.advice(batch=Batch(prompts=4, samples=4, token_budget=12))
        assert advice.startswith("policy.gradient_checkpointing=true")

    def test_more_ranks_if_sharded(self) -> None:
        sharded = FSDP2()
        assert (
            self.advice("start", strategy=sharded)
            == "more devices, trainer.devices=2, or adapter=lora"
        )
        assert self.advice("checkpoint", strategy=sharded).startswith(
            "trainer.strategy.sharded_checkpoints=true, or"
        )
