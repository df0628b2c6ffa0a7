"""The largest microbatches before training: they change no bit, and are the largest."""

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from lightning import Callback

from rlmods.adapter import LoRA
from rlmods.advantage import GAE
from rlmods.algo import (
    DPO,
    GKD,
    SDPO,
    SFT,
    Batch,
    Distill,
    OnlineDPO,
    PolicyGradient,
    ProcessRewardModel,
    RewardModel,
)
from rlmods.critic import Separate, Shared
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.ops import MAX_PADDED
from rlmods.policy.packing import Packing
from rlmods.preference import KTO, Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.rollout import Local as LocalRollout, MultiTurn
from rlmods.router import Routing
from rlmods.teacher import Local, SelfTeacher
from rlmods.training.extensions import PTX
from rlmods.training.lengths import forward_length
from rlmods.training.muon import Muon
from rlmods.training.preflight import ALONE, LARGEST_BUDGET, largest_shapes
from rlmods.types import Prompt, Scores
from tests.support import ranks
from tests.support.environments import Echo
from tests.support.mixtures import mixture
from tests.support.tiny_setup import SPLITS, attached, extension, fit, learner, policy


def with_feedback(responses: list[Any]) -> Scores:
    """Every other response is correct."""
    correct = [i % 2 == 0 for i in range(len(responses))]
    return Scores(
        [float(x) for x in correct], correct=correct, columns={"why": ["odd"] * len(correct)}
    )


MINIBATCHES = Batch(prompts=4, samples=4, minibatches=2, epochs=2, token_budget=64)
OFFLINE = {"rollout": None, "reward": None}
TEACHER = Local(policy=partial(policy, seed=3))
KL = {"kl": Penalty("k3", 0.1, "loss")}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
EXPERTS = Routing(replay=True, aux_coefficient=0.5)
TEXTS = {"ptx_coefficient": 0.5, "ptx_prompts": list(SPLITS.train), "ptx_rows": 4}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "policy gradient": (PolicyGradient, {"batch": MINIBATCHES, "target_kl": 0.01}),
    "entropy": (PolicyGradient, {"entropy_coefficient": 0.1, "target_entropy": 1.0}),
    "critic": (PolicyGradient, KL | {"critic": Separate(), "advantage": GAE()}),
    "shared critic": (PolicyGradient, {"critic": Shared(), "advantage": GAE()}),
    "replay": (PolicyGradient, {"replay_fraction": 0.5}),
    "experts": (PolicyGradient, {"router": EXPERTS}),
    "muon": (PolicyGradient, {"optimizer": partial(Muon, lr=0.1, weight_decay=0.1)}),
    "momentum": (PolicyGradient, {"optimizer": SGD}),
    "ptx": (PolicyGradient, TEXTS),
    "lora": (PolicyGradient, {"adapter": LoRA(rank=4)}),
    "distillation": (Distill, {"teacher": TEACHER}),
    "GKD": (GKD, {"teacher": TEACHER, "batch": Batch(prompts=4, samples=1)}),
    "SDPO": (
        SDPO,
        {
            "teacher": SelfTeacher(
                sibling=True, feedback="why", template="{demonstration};{prompt}", weights="ema"
            ),
            "reward": with_feedback,
            "on_policy_fraction": 1.0,
        },
    ),
    "SFT": (SFT, {}),
    "DPO": (DPO, {"preference": Sigmoid(), "dropout": 0.2}),
    "precomputed DPO": (DPO, {"preference": Sigmoid(), "reference": "precomputed"}),
    "KTO": (DPO, {"preference": KTO()}),
    "online DPO": (OnlineDPO, {"preference": Sigmoid(), "judge": lambda _, a, b: float(a < b)}),
    "reward model": (RewardModel, OFFLINE | {"ranking": BradleyTerry()}),
    "process reward model": (ProcessRewardModel, OFFLINE),
}
QUICK = ("policy gradient", "critic", "experts", "GKD", "online DPO", "DPO")


class Lines(Callback):
    """Keep the lines of `on_preflight`."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_preflight(self, trainer: Any, learner: Any, line: str) -> None:
        self.lines.append(line)


def setup(case: str, **batch: Any) -> Any:
    kind, changes = CASES[case]
    changes = {"batch": Batch(prompts=4, samples=4)} | changes
    if case == "experts":
        changes["policy"] = mixture()
    return learner(kind, **changes | {"batch": replace(changes["batch"], **batch)})


def run(case: str, preflight: bool, iterations: int = 2, **options: Any) -> tuple[Any, ...]:
    """The learner, metrics without times, random state, and the lines of the preflight."""
    torch.manual_seed(0)
    trained = setup(case, preflight=preflight)
    lines = Lines()
    rows = fit(trained, iterations, callbacks=(lines,), **options)
    for row in rows:
        for name in [x for x in row if x.startswith(("time/", "perf/"))]:
            del row[name]
    return trained, repr(rows), torch.get_rng_state(), lines.lines


def is_same(a: Any, b: Any) -> bool:
    """True if weights and optimizer state are equal bit for bit."""
    states = []
    for trained in (a, b):
        optimizer = trained.optimizers().optimizer
        moments = [x for state in optimizer.state.values() for x in state.values()]
        rates = [group["lr"] for group in optimizer.param_groups]
        states.append([*trained.state_dict().values(), *map(torch.as_tensor, [*moments, *rates])])
    return all(torch.equal(x, y) for x, y in zip(*states, strict=True))


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in CASES]
)
def test_changes_no_bit(case: str) -> None:
    trained, rows, state, [line] = run(case, True)
    without, expected_rows, expected_state, _ = run(case, False)
    assert rows == expected_rows
    assert torch.equal(state, expected_state)
    assert is_same(trained, without)
    assert line.startswith("preflight: ")


@pytest.mark.slow
def test_a_resumed_optimizer_keeps_its_state(tmp_path: Any) -> None:
    run("critic", True, 1)[0].trainer.save_checkpoint(tmp_path / "x.ckpt")
    resumed = [run("critic", x, resume=tmp_path / "x.ckpt")[0] for x in (True, False)]
    assert is_same(*resumed)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_changes_no_bit_on_two_ranks(strategy: str) -> None:
    ranks.run("tests.support.preflight_ranks", [strategy], timeout_s=240)


def test_gradients_and_optimizer_state_are_in_memory() -> None:
    trained = setup("critic", preflight=True)
    loss, seen = trained.loss, []

    def spy(micro: Any, totals: Any) -> Any:
        parameters = [p for x in trained.networks.values() for p in x.parameters()]
        num_gradients = sum(p.grad is not None for p in parameters)
        num_states = len(trained.optimizers().optimizer.state)
        seen.append((num_gradients, num_states, len(parameters), micro))
        return loss(micro, totals)

    trained.loss = spy
    fit(trained, 1)
    num_gradients, num_states, num_parameters, micro = seen[0]
    assert num_gradients == num_states == num_parameters
    assert micro.tokens.shape == (16, trained.preflight.longest_row)
    assert int(micro.mask.sum()) == 16 * 8
    # no response begins like another
    assert len(Packing.of(micro.tokens, micro.mask).targets) == 16 * 8


def test_ptx_has_its_longest_rows() -> None:
    ptx = extension(attached(setup("ptx")), PTX)
    [(rows, _)] = ptx.largest_step(None)  # type: ignore[arg-type]
    columns = ("response",)
    lengths = [forward_length(ptx.loop.policy, prompt, columns) for prompt in ptx.prompts]
    assert rows.forward_tokens.tolist() == sorted(lengths, reverse=True)[:4]


def test_every_row_of_a_teacher_that_reads_responses_has_a_loss() -> None:
    [rows] = attached(setup("SDPO")).preflight.largest_rows()
    assert rows.loss_counts.tolist() == [16 * 8, 16]


def test_a_lack_of_memory_ends_the_run_before_the_first_rollout() -> None:
    trained = setup("policy gradient", preflight=True)

    def fail(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. GPU 0 has")

    trained.loss = trained.rollout.generate = fail
    longest = trained.preflight.longest_row
    message = rf"^preflight: out of memory on cuda:0: type batch.token_budget=32 \(.* {longest} tok"
    with pytest.raises(UserError, match=message):
        fit(trained, 1)
    assert not trained.optimizers().optimizer.state


@pytest.mark.parametrize(
    ("minibatches", "replay_fraction", "num_prompts"), [(1, 0.0, 4), (2, 0.0, 4), (1, 0.5, 12)]
)
def test_rows_share_prompts_as_in_an_optimizer_step(
    minibatches: int, replay_fraction: float, num_prompts: int
) -> None:
    batch = Batch(prompts=4, samples=4, minibatches=minibatches)
    made = attached(learner(batch=batch, replay_fraction=replay_fraction))
    [rows] = islice(made.preflight.largest_rows(), 1)
    assert len(rows) == made.preflight.rows_per_step
    assert len(rows.group.unique()) == num_prompts


def test_rows_have_what_an_environment_adds_to_prompts() -> None:
    class Described(Echo):
        def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Any:
            return super().start(replace(prompt, text=f"1234{prompt.text}"), key=key)

    model = attached(learner(rollout=MultiTurn(LocalRollout(max_tokens=8), Described())))
    longest = max(len(model.policy.encode(prompt)) for prompt in model.splits.train)
    [rows] = islice(model.preflight.largest_rows(), 1)
    assert int(rows.lengths.max()) == model.preflight.longest_row == longest + 4 + 60


@pytest.mark.parametrize(
    ("row", "budget", "max_rows", "expected"),
    [
        ((2, 8, 1), 40, 16, [(4, 8)]),
        ((2, 8, 1), 45, 16, [(4, 8), (5, 7)]),
        ((2, 8, 1), 45, 4, [(4, 8)]),
        ((2, 8, 1), 5, 16, [(1, 8)]),
        ((2, 8, 1), 18, 16, [(1, 8), (2, 7)]),
        ((9, 2, 1), 18, 16, [(1, 2)]),
        ((2, 8, 2), 70, 16, [(3, 8), (5, 5)]),
    ],
)
def test_largest_sampled_rows(
    row: tuple[int, int, int], budget: int, max_rows: int, expected: list[tuple[int, int]]
) -> None:
    assert largest_shapes(*row, budget, max_rows) == expected


def test_largest_packed_rows() -> None:
    """A prompt of 100 tokens with 4 responses of 1 to 50."""
    longest, *_, most_padded = largest_shapes(100, 50, 1, 1000, 99, 4)
    assert longest == (13, 50)  # 13 * (50 + 100 / 4) tokens
    assert most_padded == (38, 1)  # 38 * (1 + 100 / 4), with padding at most 4000
    assert largest_shapes(100, 50, 1, 1000, 8, 4) == [(8, 50)]
    # 133 * (4 + 100 / 32) tokens would be within the budget, but have 13832 with padding
    shapes = largest_shapes(100, 50, 1, 1000, 999, 32)
    assert all(num * (100 + length) <= MAX_PADDED * 1000 for num, length in shapes)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("budget", [40, 100, 400])
def test_the_largest_rows_fill_the_budget(packs: bool, budget: int) -> None:
    made = attached(learner(batch=Batch(prompts=8, samples=4, token_budget=budget)))
    made.policy.packs = packs
    for rows in made.preflight.largest_rows():
        first = next(iter(made.microbatches.chunks(rows)))
        packing = Packing.of(rows.tokens[first], rows.mask[first])
        room = rows.forward_tokens.max() * 2
        # without the last token of each row, which nothing depends on
        computed = len(packing) + len(first) if packs else int(rows.forward_tokens[first].sum())
        assert computed <= budget or len(first) == 1
        is_whole_step = len(rows) == made.preflight.rows_per_step
        is_padding_full = packs and rows.tokens[first].numel() + room > MAX_PADDED * budget
        assert is_whole_step or is_padding_full or computed + room > budget


class TestBudget:
    """The default on a GPU whose update takes 1 GiB and `per_token` bytes for each token."""

    def found(
        self, monkeypatch: pytest.MonkeyPatch, free: int, per_token: int, prompts: int = 4000
    ) -> tuple[int, int]:
        """Return the budget, and the largest number of bytes that a trial has taken."""
        made = attached(learner(batch=Batch(prompts=prompts, samples=4)))
        peaks = [0]

        def update() -> None:
            peaks.append(2**30 + per_token * made.microbatches.token_budget)

        functions = {
            "memory_allocated": lambda _: 0,
            "memory_reserved": lambda _: free // 2,
            "mem_get_info": lambda _: (free - free // 2, 2 * free),
            "reset_peak_memory_stats": lambda _: None,
            "max_memory_allocated": lambda _: peaks[-1],
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)
        made.preflight._try = update
        return made.preflight._largest_budget(torch.device("cuda")), max(peaks)

    @pytest.mark.parametrize("per_token", [2**10, 2**18, 2**20, 2**21, 2**22])
    def test_fills_the_card(self, monkeypatch: pytest.MonkeyPatch, per_token: int) -> None:
        free = 40 * 2**30
        budget, taken = self.found(monkeypatch, free, per_token)
        assert taken <= free * ALONE, "a trial was out of memory"
        with_twice = 2**30 + 2 * budget * per_token
        assert budget == LARGEST_BUDGET or with_twice + 2**30 > free * ALONE

    def test_is_no_larger_than_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        budget, _ = self.found(monkeypatch, 40 * 2**30, 0, prompts=100)
        assert budget / 2 < 100 * 4 * 12 <= budget < LARGEST_BUDGET


@pytest.mark.parametrize("value", ["auto", True, False])
def test_runs_on_a_gpu_or_if_asked_to(value: Any) -> None:
    runs = [Batch(preflight=value).runs_preflight(x) for x in ("cuda", "cpu")]
    assert runs == [value in ("auto", True), value is True]
