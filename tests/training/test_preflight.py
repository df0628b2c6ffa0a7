"""The largest microbatches before training: their sizes, and that a run with them is the run
without."""

from __future__ import annotations

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
from rlmods.policy.packing import Packing
from rlmods.preference import KTO, Sigmoid
from rlmods.ranking import BradleyTerry
from rlmods.rollout import Local as LocalRollout
from rlmods.rollout import MultiTurn
from rlmods.router import Routing
from rlmods.teacher import Local
from rlmods.training.extensions import PTX
from rlmods.training.preflight import RowShape, largest_microbatches, largest_shapes, row_shape
from rlmods.types import Prompt
from tests.support import ranks
from tests.support.environments import Echo
from tests.support.mixtures import mixture
from tests.support.tiny_setup import SPLITS, attached, extension, fit, learner, policy

OFFLINE = {"rollout": None, "reward": None}
TEACHER = Local(policy=partial(policy, seed=3))
KL = {"kl": Penalty("k3", 0.1, "loss")}
EXPERTS = {"router": Routing(replay=True, aux_coefficient=0.5, entropy_coefficient=0.1)}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "policy gradient": (PolicyGradient, {}),
    "minibatches": (
        PolicyGradient,
        {"batch": Batch(prompts=4, samples=4, minibatches=2, epochs=2, token_budget=64)},
    ),
    "entropy": (PolicyGradient, {"entropy_coefficient": 0.1, "target_entropy": 1.0}),
    "reference": (PolicyGradient, KL),
    "critic": (PolicyGradient, KL | {"critic": Separate(), "advantage": GAE()}),
    "shared critic": (PolicyGradient, {"critic": Shared(), "advantage": GAE()}),
    "replay": (PolicyGradient, {"replay_fraction": 0.5}),
    "early stop": (
        PolicyGradient,
        {"target_kl": 0.01, "batch": Batch(prompts=4, samples=4, minibatches=2)},
    ),
    "experts": (PolicyGradient, EXPERTS),
    "momentum": (
        PolicyGradient,
        {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)},
    ),
    "distillation": (Distill, {"teacher": TEACHER}),
    "GKD": (GKD, {"teacher": TEACHER, "batch": Batch(prompts=4, samples=1)}),
    "SFT": (SFT, {}),
    "DPO": (DPO, {"preference": Sigmoid()}),
    "DPO with dropout": (DPO, {"preference": Sigmoid(), "dropout": 0.2}),
    "precomputed DPO": (DPO, {"preference": Sigmoid(), "reference": "precomputed"}),
    "KTO": (DPO, {"preference": KTO()}),
    "online DPO": (
        OnlineDPO,
        {"preference": Sigmoid(), "judge": lambda prompt, a, b: float(a < b)},
    ),
    "reward model": (RewardModel, OFFLINE | {"ranking": BradleyTerry()}),
    "process reward model": (ProcessRewardModel, OFFLINE),
    "ptx": (
        PolicyGradient,
        {"ptx_coefficient": 0.5, "ptx_prompts": list(SPLITS.train), "ptx_rows": 4},
    ),
    "lora": (PolicyGradient, {"adapter": LoRA(rank=4)}),
}


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


def run(case: str, preflight: bool) -> tuple[Any, list[dict[str, Any]], list[str]]:
    torch.manual_seed(0)
    trained, lines = setup(case, preflight=preflight), Lines()
    rows = fit(trained, 2, callbacks=(lines,))
    untimed = [
        {k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows
    ]
    return trained, untimed, lines.lines


QUICK = ("policy gradient", "critic", "replay", "GKD", "online DPO", "SFT")
"""Cases of `make test`."""


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in CASES]
)
def test_changes_no_bit(case: str) -> None:
    (with_it, rows, lines), (without, expected, none) = (
        run(case, preflight) for preflight in (True, False)
    )
    assert repr(rows) == repr(expected)
    states = [
        [*x.state_dict().values(), *_tensors(x.optimizers().optimizer.state_dict())]
        for x in (with_it, without)
    ]
    assert len(states[0]) == len(states[1])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert none == []
    [line] = lines
    assert line.startswith("preflight: ")


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, dict):
        x = [*x.values()]
    return (
        [t for y in x for t in _tensors(y)]
        if isinstance(x, list | tuple)
        else [x]
        if isinstance(x, torch.Tensor)
        else []
    )


def test_draws_nothing_from_the_global_generator() -> None:
    states = []
    for preflight in (True, False):
        run("DPO with dropout", preflight)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class TestMemory:
    """What is in memory while the microbatches run is what there is in an iteration."""

    def test_optimizer_state_is_there_and_gone_afterwards(self) -> None:
        trained, seen = setup("policy gradient", preflight=True), []
        loss = trained.loss

        def spy(micro: Any, totals: Any) -> Any:
            weights = torch.cat([p.detach().flatten() for p in trained.policy.parameters()])
            seen.append((len(trained.optimizers().optimizer.state), weights, micro))
            return loss(micro, totals)

        trained.loss = spy
        before = torch.cat([p.detach().flatten() for p in trained.policy.parameters()]).clone()
        end = trained.validate

        def validate() -> None:
            seen.append(
                (
                    len(trained.optimizers().optimizer.state),
                    None,
                    [p.grad for p in trained.policy.parameters()],
                )
            )
            end()

        trained.validate = validate
        fit(trained, 1)
        num_parameters = len(list(trained.policy.parameters()))
        (during, weights, micro), (after, _, gradients), *_ = seen
        assert (during, after) == (num_parameters, 0)
        assert torch.equal(weights, before)
        longest = max(trained.preflight.shapes)
        assert micro.tokens.shape == (16, longest.tokens)
        assert int(micro.mask.sum()) == 16 * 8
        # no response begins like another
        assert len(Packing.of(micro.tokens, micro.mask).distinct) == 16 * 8
        assert set(gradients) == {None}

    def test_ptx_has_its_longest_rows(self) -> None:
        trained, seen = setup("ptx", preflight=True, token_budget=4096), []
        ptx = extension(trained, PTX)
        loss = ptx.loss

        def spy(micro: Any, totals: Any) -> Any:
            seen.append(sorted(micro.forward_tokens.tolist(), reverse=True))
            return loss(micro, totals)

        ptx.loss = spy
        fit(trained, 1)
        lengths = sorted(
            (row_shape(p, trained.policy, ("response",)).tokens for p in ptx.prompts), reverse=True
        )
        assert seen[0] == lengths[:4]
        assert seen[1] != lengths[:4]

    def test_a_lack_of_memory_ends_the_run_before_the_first_rollout(self) -> None:
        trained = setup("policy gradient", preflight=True)

        def fail(*args: Any) -> Any:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has"
            )

        trained.loss = trained.rollout.generate = fail
        with pytest.raises(
            UserError,
            match=r"^preflight: out of memory on cuda:0: type "
            r"batch.token_budget=",
        ) as raised:
            fit(trained, 1)
        assert str(raised.value).endswith(
            "[CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has]"
        )

    @pytest.mark.slow
    def test_a_resumed_optimizer_has_its_state(self, tmp_path: Any) -> None:
        trained = setup("policy gradient", preflight=True)
        fit(trained, 1)
        trained.trainer.save_checkpoint(tmp_path / "x.ckpt")
        finals = []
        for preflight in (True, False):
            resumed = setup("policy gradient", preflight=preflight)
            fit(resumed, 2, resume=tmp_path / "x.ckpt")
            finals.append(torch.cat([p.detach().flatten() for p in resumed.policy.parameters()]))
        assert torch.equal(*finals)

    @pytest.mark.parametrize("resumed", [False, True])
    @pytest.mark.parametrize("case", ["policy gradient", "critic"])
    @pytest.mark.slow
    def test_gradients_of_all_trained_weights_are_there(
        self, case: str, resumed: bool, tmp_path: Any
    ) -> None:
        first, trained, seen = setup(case), setup(case, preflight=True), []
        if resumed:
            fit(first, 1)
            first.trainer.save_checkpoint(tmp_path / "x.ckpt")
        loss = trained.loss

        def spy(micro: Any, totals: Any) -> Any:
            seen.append(
                [
                    p.grad is not None
                    for network in trained.networks.values()
                    for p in network.parameters()
                    if p.requires_grad
                ]
            )
            return loss(micro, totals)

        trained.loss = spy
        fit(trained, 2, resume=tmp_path / "x.ckpt" if resumed else None)
        assert all(seen[0])


class TestLargestMicrobatches:
    @pytest.mark.parametrize(
        ("tokens", "budget", "max_rows", "expected"),
        [
            ([10, 10, 10, 10], 30, 8, [slice(0, 3)]),
            ([10, 10, 10, 10], 30, 2, [slice(0, 2)]),
            ([50, 10], 30, 8, [slice(0, 1)]),
            ([17, 10, 10, 10], 30, 8, [slice(0, 1), slice(1, 4)]),
            ([17, 10, 10, 10], 30, 2, [slice(0, 1), slice(1, 3)]),
            ([9, 3], 20, 8, [slice(0, 2)]),
            ([], 20, 8, []),
        ],
    )
    def test_by_hand(
        self, tokens: list[int], budget: int, max_rows: int, expected: list[slice]
    ) -> None:
        assert largest_microbatches(tokens, budget, max_rows) == expected

    def test_are_the_largest_of_any_draw(self) -> None:
        from rlmods.ops import pack

        g = torch.Generator().manual_seed(0)
        tokens = torch.randint(1, 60, (40,), generator=g).sort(descending=True).values
        found = largest_microbatches(tokens.tolist(), 100, 10)
        limit = max(int(tokens[x.start]) * (x.stop - x.start) for x in found)
        for _ in range(200):
            lengths = tokens[torch.randperm(40, generator=g)[:10]]
            assert all(
                int(lengths[chunk].max()) * len(chunk) <= limit for chunk in pack(lengths, 100)
            )


def test_rows_have_what_an_environment_adds_to_prompts() -> None:
    class Described(Echo):
        def start(self, prompt: Prompt, *, key: tuple[Any, ...]) -> Any:
            return super().start(replace(prompt, text=f"1234{prompt.text}"), key=key)

    model = learner(rollout=MultiTurn(LocalRollout(max_tokens=8), Described()))
    [responses] = islice(model.preflight.synthetic_responses(), 1)
    longest = max(len(model.policy.encode(prompt)) for prompt in model.splits.train)
    assert max(shape.prompt for shape in model.preflight.shapes) == longest + 4
    assert {(len(r.prompt_tokens), len(r.tokens)) for r in responses} >= {(longest + 4, 60)}


@pytest.mark.parametrize(
    ("minibatches", "replay_fraction", "num_prompts"), [(1, 0.0, 4), (2, 0.0, 8), (1, 0.5, 24)]
)
def test_rows_share_a_prompt_where_a_step_has_whole_groups(
    minibatches: int, replay_fraction: float, num_prompts: int
) -> None:
    """Minibatches and replay take rows of groups at random."""
    batch = Batch(prompts=4, samples=4, minibatches=minibatches)
    made = attached(learner(batch=batch, replay_fraction=replay_fraction))
    [rows] = islice(made.preflight.largest_rows(), 1)
    assert len(rows) == made.preflight.rows_per_step
    lengths = rows.mask.int().argmax(1).tolist()
    assert (
        len(
            {tuple(row[:length]) for row, length in zip(rows.tokens.tolist(), lengths, strict=True)}
        )
        == num_prompts
    )


class TestLargestShapes:
    @pytest.mark.parametrize(
        ("shape", "budget", "max_rows", "expected"),
        [
            (RowShape(2, 8), 40, 16, [(4, 8)]),
            (RowShape(2, 8), 45, 16, [(4, 8), (5, 7)]),
            (RowShape(2, 8), 45, 4, [(4, 8)]),
            (RowShape(2, 8), 4000, 4, [(4, 8)]),
            (RowShape(2, 8), 5, 16, [(1, 8)]),
            (RowShape(2, 8), 18, 16, [(1, 8), (2, 7)]),
            (RowShape(9, 2), 18, 16, [(1, 2)]),
            (RowShape(2, 8, num=2), 70, 16, [(3, 8), (4, 6)]),
        ],
    )
    def test_by_hand(
        self, shape: RowShape, budget: int, max_rows: int, expected: list[tuple[int, int]]
    ) -> None:
        assert largest_shapes(shape, budget, max_rows) == expected


@pytest.mark.parametrize(
    ("value", "device", "runs"),
    [("auto", "cuda", True), ("auto", "cpu", False), (True, "cpu", True), (False, "cuda", False)],
)
def test_runs_on_a_gpu_or_if_asked_to(value: Any, device: str, runs: bool) -> None:
    assert Batch(preflight=value).runs_preflight(torch.device(device)) is runs


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_changes_no_bit_on_two_ranks(strategy: str) -> None:
    ranks.run("tests.support.preflight_ranks", [strategy], timeout_s=240)
