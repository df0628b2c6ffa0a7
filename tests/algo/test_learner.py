"""Iterations of every algorithm: order of the rows, schedule, weights of the rollout."""

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import Strategy
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlmods.advantage import GAE
from rlmods.algo import SFT, Batch, learner as learners
from rlmods.callbacks import IterationCheckpoint
from rlmods.config import build
from rlmods.critic import Separate
from rlmods.distributed import deferred
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.rollout import Local, MultiTurn, local
from rlmods.rollout.turns import num_added_tokens
from rlmods.sampling import Dynamic
from rlmods.schedule import Schedule
from rlmods.training.evaluation import Validation
from rlmods.training.train_step import Microbatches
from tests.support.composed import composed
from tests.support.environments import Echo
from tests.support.tiny_setup import SPLITS, attached, collected, fit, half_flat, learner, policy


class TestMinibatches:
    def orders(self, iteration: int = 0, seed: int = 0) -> list[list[int]]:
        """Return the order of 24 rows in each of two epochs of three minibatches."""
        made = learner(batch=Batch(prompts=4, samples=4, epochs=2, minibatches=3), seed=seed)
        made.iteration = iteration
        parts = made.minibatches(24)
        assert [len(part) for part in parts] == [8] * 6
        return [torch.cat(parts[:3]).tolist(), torch.cat(parts[3:]).tolist()]

    def test_each_epoch_has_every_row_once(self) -> None:
        for order in self.orders():
            assert sorted(order) == list(range(24))

    def test_orders_differ_by_epoch_iteration_and_seed(self) -> None:
        orders = [*self.orders(), *self.orders(iteration=1), *self.orders(seed=1)]
        assert len({tuple(order) for order in orders}) == 6


def test_the_rows_of_a_group_follow_each_other_where_its_prompt_is_computed_once() -> None:
    made = learner(batch=Batch(prompts=4, samples=4, token_budget=48))
    batch = collected(made)

    def num_runs(microbatches: Microbatches) -> int:
        """Return how many runs of rows of one group there are."""
        order = [group for rows, _ in microbatches(batch) for group in rows.group.tolist()]
        assert len(order) == 16
        return len(list(groupby(order)))

    assert made.policy.packs
    assert num_runs(made.microbatches) == 4 < num_runs(Microbatches(made.ranks, made.timer, 48))


def test_the_schedule_follows_the_iterations() -> None:
    schedule = Schedule(warmup=2, decay="linear")
    rows = fit(learner(SFT, schedule=schedule, optimizer=partial(torch.optim.SGD, lr=0.5)), 5)
    assert [row["train/lr"] for row in rows] == pytest.approx(
        [0.5 * schedule(i, 5) for i in range(5)]
    )
    assert len({row["train/lr"] for row in rows}) == 5


@dataclass
class Copying(Local):
    """A rollout that samples from the weights it was last synced with."""

    def sync(self, policy: Any, *, iteration: int) -> None:
        super().sync(policy.frozen_copy(), iteration=iteration)
        self.iterations = [*getattr(self, "iterations", []), iteration]


def test_the_rollout_gets_the_weights_of_every_iteration() -> None:
    made = learner(rollout=Copying(max_tokens=8))
    rows = fit(made, 3)
    assert made.rollout.iterations == [0, 1, 2, 3]
    assert max(row["train/sampler_logprob_gap"] for row in rows) < 1e-4


@pytest.mark.parametrize("after_setup", [False, True])
def test_the_rollout_gets_the_weights_of_the_checkpoint(
    after_setup: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning loads it before `on_fit_start`, or after it under `trainer=fsdp`."""
    fit(
        learner(rollout=Copying(max_tokens=8)),
        2,
        callbacks=(IterationCheckpoint(tmp_path, every=0),),
    )
    monkeypatch.setattr(Strategy, "restore_checkpoint_after_setup", after_setup)
    made = learner(rollout=Copying(max_tokens=8))
    [row] = fit(made, 3, resume=tmp_path / "iteration_000002.ckpt")
    assert made.rollout.iterations == [2, 3]
    assert row["train/sampler_logprob_gap"] < 1e-4


@dataclass
class Fitted(Local):
    """A rollout that records the sizes of the run, and its number of weights when it gets them."""

    seen: list[Any] = field(default_factory=list)

    def fit_run(self, policy: Any, run: Any) -> None:
        self.seen.append(run)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        super().sync(policy, iteration=iteration)
        self.seen.append(iteration)


@pytest.mark.parametrize("turns", [False, True])
def test_an_engine_learns_the_sizes_of_the_run_before_its_first_sync(turns: bool) -> None:
    engine = Fitted(max_tokens=8)
    validation = Validation(every=None, max_tokens=None if turns else 12)
    rollout = MultiTurn(engine, Echo()) if turns else engine
    made = learner(rollout=rollout, validation=validation)
    longest = max(len(made.policy.encode(x)) for x in SPLITS.train)
    extra = num_added_tokens(made.policy, rollout, SPLITS.train)
    fit(made, 1, precision="bf16-mixed")
    run, *iterations = engine.seen
    assert iterations == [0, 1]
    assert (run.precision, run.num_rows, run.reserved_bytes) == ("bf16-mixed", 16, 0.0)
    assert run.longest_row == longest + extra + (rollout.max_tokens if turns else 12)


def test_every_network_with_layers_is_in_train_mode_if_it_needs_it() -> None:
    made = learner(policy=policy(gradient_checkpointing=True), critic=Separate(), advantage=GAE())
    with made.update_mode():
        assert [network.training for network in made.networks.values()] == [True, True]
    assert not any(network.training for network in made.networks.values())


def test_every_network_whose_weights_are_read_later_is_checked() -> None:
    made = learner(critic=Separate(), advantage=GAE())
    for network in made.networks.values():
        network.is_checked = False
    fit(made, 1)
    assert all(network.is_checked for network in made.networks.values())


def needs_autocast(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    """Attention that refuses float32, as FlashAttention does."""
    if not torch.is_autocast_enabled("cpu"):
        raise RuntimeError("only support fp16 and bf16 data type")
    return sdpa_attention_forward(module, query, key, value, mask, **options)


class TestChecksOnTheDevice:
    """The checks of a run on a GPU, made there: on a processor FlashAttention has no kernel."""

    @pytest.fixture
    def flash(self, monkeypatch: pytest.MonkeyPatch) -> str:
        AttentionInterface.register("needs_autocast", needs_autocast)
        AttentionMaskInterface.register("needs_autocast", sdpa_mask)
        monkeypatch.setattr(build, "device_type", lambda accelerator: "cuda")
        monkeypatch.setattr(build, "select_device", lambda accelerator, devices: None)
        return "needs_autocast"

    def load(self, folder: Path, attention: str) -> Any:
        policy().export(folder / "model")
        return build.load(
            composed(
                "policy=hf",
                f"policy.name={folder}/model",
                "algo=grpo",
                f"policy.attention={attention}",
                "trainer.accelerator=cpu",
                "rollout.max_tokens=4",
                "batch.prompts=2",
                "batch.samples=2",
            )
        )

    def test_no_network_runs_while_it_is_loaded(self, flash: str, tmp_path: Path) -> None:
        made = self.load(tmp_path, flash).learner
        assert not made.policy.is_checked
        assert not made.reference.policy.is_checked
        fit(made, 1, precision="bf16-mixed", splits=made.splits)
        assert made.policy.is_checked
        assert made.reference.policy.is_checked

    def test_weights_are_read_onto_the_device(
        self, flash: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = self.load(tmp_path, "sdpa").learner
        networks = (made.policy, made.reference.policy)
        assert {x.device.type for network in networks for x in network.parameters()} == {"meta"}
        places: list[Any] = []

        def watched(network: torch.nn.Module, device: torch.device) -> None:
            places.append(device)
            deferred.read(network, device)

        monkeypatch.setattr(learners, "read", watched)
        monkeypatch.setattr(build, "device_type", lambda accelerator: "cpu")
        other = self.load(tmp_path, "sdpa").learner
        assert not deferred.is_deferred(other.policy)
        for each in (made, other):
            fit(each, 1, precision="bf16-mixed", splits=each.splits)
        assert set(places) == {torch.device("cpu")}
        for one, two in zip(made.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)

    def test_attention_that_does_not_run_is_named(self, flash: str, tmp_path: Path) -> None:
        made = self.load(tmp_path, flash).learner
        message = (
            r"policy\.attention=needs_autocast does not run on cpu in this precision \(only support "
            r"fp16 and bf16 data type\): type trainer\.precision=bf16-mixed, or policy\.attention=sdpa"
        )
        with pytest.raises(UserError, match=message):
            fit(made, 1, splits=made.splits)

    def test_a_sampler_that_disagrees_is_found(self, flash: str, tmp_path: Path) -> None:
        def disagree(*args: Any, **_: Any) -> float:
            assert torch.is_autocast_enabled("cpu")
            return 0.5

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "sampler_gap", disagree)
            made = self.load(tmp_path, flash).learner
            with pytest.raises(UserError, match="other log-probabilities with a cache"):
                fit(made, 1, precision="bf16-mixed", splits=made.splits)


class Events(L.Callback):
    """Keeps the events of a run as (name, iteration)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_iteration_end(self, trainer: Any, learner: Any, metrics: Any) -> None:
        self.seen.append(("end", learner.iteration))

    def on_validation_metrics(self, trainer: Any, learner: Any, metrics: Any, rows: Any) -> None:
        self.seen.append(("validation", learner.iteration))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}


def test_the_end_of_an_iteration_is_announced_once_and_before_its_checkpoint(
    tmp_path: Path,
) -> None:
    """Also if it took several batches of prompts, and wherever the checkpoint stands."""
    events = Events()
    made = learner(
        sampling=Dynamic(),
        reward=half_flat,
        validation=Validation(every=1, max_prompts=2),
        validation_prompts=SPLITS.val,
    )
    rows = fit(made, 2, callbacks=(IterationCheckpoint(tmp_path, every=1), events))
    assert max(row.get("train/draws", 0) for row in rows) > 1
    expected = [("validation", 0)]
    for iteration in (1, 2):
        expected += [("validation", iteration), ("end", iteration)]
        path = tmp_path / f"iteration_{iteration:06d}.ckpt"
        saved = torch.load(path, weights_only=True)["callbacks"]["Events"]
        assert [tuple(event) for event in saved["seen"]] == expected
    assert events.seen == expected


def test_response_tokens_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = attached(learner())
    count = made.ranks.reduce_count
    monkeypatch.setattr(
        made.ranks,
        "reduce_count",
        lambda x, op="sum": 2 * count(x, op) if op == "sum" else count(x, op),
    )
    made.sample(SPLITS.train[:4])
    num_tokens = sum(len(row["tokens"]) for row in made.samples)
    assert made.response_tokens == 2 * num_tokens > 0
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}])
    monkeypatch.setattr(made, "optimizers", lambda: optimizer)
    made.iteration_start, made.timer.seconds["rollout"] = 0.0, 0.5
    made.timer.seconds["rollout_ahead"] = 1.5
    metrics = made.iteration_metrics()
    assert metrics["perf/response_tokens_per_s"] == num_tokens
    claimed = made.timer.claimed_s
    assert claimed > 0
    assert metrics["time/other_s"] == pytest.approx(metrics["time/iteration_s"] - claimed)
