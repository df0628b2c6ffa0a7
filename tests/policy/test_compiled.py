"""Compiled transformer blocks against blocks that run as they are."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from rlmods.adapter import LoRA
from rlmods.advantage import GAE
from rlmods.callbacks import IterationCheckpoint
from rlmods.critic import Separate, Shared
from rlmods.distributed.sharding import blocks
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.policy import HuggingFace, Policy, Random, Tiny, compiled, variants
from rlmods.policy.compiled import compile_blocks
from rlmods.policy.packing import IMPLEMENTATION, packed_attention
from rlmods.training.networks import compile_networks
from tests.support import tiny_setup
from tests.support.models import gpt2, llama
from tests.support.packed_rows import RAGGED, groups, policy
from tests.support.tiny_setup import fit, learner

# torch's compiler hides them
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SHAPES = [
    [(5, [3, 9, 1]), (2, [4])],
    [(1, [7])],
    [(8, [2, 2, 12, 6])],
    [(4, [3]), (5, [5])],
    [(3, [9, 9, 9]), (7, [1, 2, 3, 4])],
    [(2, [2])],
    [(6, [10, 11])],
    [(9, [20])],
    [(3, [4, 4]), (4, [4, 4]), (5, [4, 4])],
    [(12, [3, 8])],
]


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that has compiled nothing, and only traces."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    with config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    torch._dynamo.reset()


def num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def made(kind: str) -> Policy:
    torch.manual_seed(0)
    network = policy(llama(), gradient_checkpointing=kind == "checkpointing")
    if kind == "lora":
        network = LoRA(rank=4)(network)
        for name, x in network.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(x, std=0.1)
    network.train(kind == "checkpointing")
    return network


def gradient(network: Policy, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return loss and gradient of an update."""
    network.zero_grad()
    with torch.no_grad():
        old = network(tokens, mask).logprobs
    found = network(tokens, mask, entropy=True)
    weights = torch.linspace(-1, 2, tokens.numel()).view(tokens.shape)
    loss = (weights * ((found.logprobs - old).exp() + 0.3 * found.entropy)).sum()
    loss.backward()
    gradients = [x.grad.flatten() for x in network.parameters() if x.grad is not None]
    return loss.detach(), torch.cat(gradients)


def check_equal(kind: str, packs: bool) -> None:
    plain, other = made(kind), made(kind)
    compile_blocks(other.model)
    plain.packs = other.packs = packs
    for shape in SHAPES[:3]:
        expected = gradient(plain, *groups(shape))
        found = gradient(other, *groups(shape))
        assert expected[1].norm() > 1e-2
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5 * float(y.abs().max()))
    assert num_graphs() > 0


@pytest.mark.parametrize("packs", [True, False])
def test_loss_and_gradient_with_an_adapter(packs: bool) -> None:
    check_equal("lora", packs)


@pytest.mark.slow
@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("kind", ["plain", "lora", "checkpointing"])
def test_loss_and_gradient(kind: str, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    check_equal(kind, packs)


@pytest.mark.parametrize("model", [llama, gpt2])
def test_other_shapes_are_not_compiled_again(model: Any) -> None:
    network = policy(model())
    compile_blocks(network.model)
    for packs, first in ((True, 1), (False, 2)):  # one row alone is a case of its own
        network.packs = packs
        for shape in SHAPES[:first]:
            gradient(network, *groups(shape))
        before = num_graphs()
        for shape in SHAPES[first:]:
            gradient(network, *groups(shape))
        assert num_graphs() == before
    # with and without gradients: halves of attention, two norms as one, feed-forward; each once for
    # both blocks
    assert before <= 24
    assert all("packed_attention" in reason for reason in counters["graph_break"])


def test_names_stay_and_sampling_is_not_compiled() -> None:
    network = policy(compiles=True)
    names = list(network.state_dict())
    expected = network.next_logits(RAGGED[0], use_cache=True)
    compile_blocks(network.model)
    assert list(network.state_dict()) == names
    torch.testing.assert_close(network.next_logits(RAGGED[0], use_cache=True), expected)
    assert num_graphs() == 0
    network(*RAGGED)
    assert num_graphs() > 0


def run(folder: Path, compile: bool, iterations: int = 2, resume: Path | None = None) -> Any:
    """Return logged rows and weights, of iterations with a checkpoint each."""
    loop = learner(
        policy=tiny_setup.policy(compile=compile),
        kl=Penalty("k3", 0.1, "loss"),
        optimizer=partial(torch.optim.SGD, lr=1.0),
    )
    checkpoints = IterationCheckpoint(folder, every=1)
    rows = fit(loop, iterations, callbacks=(checkpoints,), resume=resume)
    return rows, tiny_setup.flat(loop.policy)


def check_runs(folder: Path) -> None:
    _, weights = run(folder / "eager", compile=False)
    assert num_graphs() == 0
    found, compiled_weights = run(folder / "compiled", compile=True)
    assert num_graphs() > 0
    assert (weights - tiny_setup.flat(tiny_setup.policy())).abs().max() > 1e-3
    torch.testing.assert_close(compiled_weights, weights, rtol=0, atol=1e-5)
    # old and reference log-probabilities are those of compiled blocks
    assert found[0]["train/kl_ref"] < 1e-9
    assert found[0]["train/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    first = folder / "compiled/iteration_000001.ckpt"
    for compile in (True, False):
        _, resumed = run(folder / f"{compile}", compile, resume=first)
        torch.testing.assert_close(resumed, weights, rtol=0, atol=1e-5)


def test_a_run_and_resumed_ones(tmp_path: Path) -> None:
    check_runs(tmp_path)


@pytest.mark.slow
def test_a_run_of_generated_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    check_runs(tmp_path)


def test_frozen_copies_are_compiled() -> None:
    loop = learner(policy=tiny_setup.policy(compile=True), kl=Penalty("k3", 0.1, "loss"))
    compile_networks(loop.all_networks)
    networks = [loop.policy, loop.reference.policy]
    assert networks[0] is not networks[1]
    for network in networks:
        for block in network.model.model.layers:
            assert block.mlp._compiled_call_impl is not None
            assert block.self_attn._compiled_call_impl is not None


def test_compiling_again_and_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MAX_VARIANTS", 1)
    config.recompile_limit = 1
    with pytest.raises(UserError, match=r"again and again: type policy\.compile=false"):
        # of the reference without gradients, of the policy with them
        fit(learner(policy=tiny_setup.policy(compile=True), kl=Penalty("k3", 0.1, "loss")), 1)


def test_mixtures_are_refused() -> None:
    network = tiny_setup.policy(num_experts=4, compile=True)
    with pytest.raises(UserError, match=r"experts .* type policy\.compile=false"):
        fit(learner(policy=network), 1)


def test_every_network_with_blocks_is_compiled() -> None:
    """A value head has none."""
    for critic in (Shared(), Separate()):
        loop = learner(
            policy=tiny_setup.policy(compile=True), critic=critic, advantage=GAE(), kl=None
        )
        compile_networks(loop.all_networks)
        trunks = [x for x in loop.all_networks if blocks(x)]
        assert len(trunks) < len(loop.all_networks) or isinstance(critic, Separate)
        for trunk in trunks:
            for part in blocks(trunk)[0].children():
                assert part._compiled_call_impl is not None


def test_the_option_reaches_the_policy(tmp_path: Path) -> None:
    tiny = Tiny(pretrained=False, hidden_size=32, num_layers=2, compile=True)
    tiny().export(tmp_path)
    made = [
        tiny(),
        Tiny(compile=True)(),
        HuggingFace(name=str(tmp_path), compile=True)(),
        Random(policy=tiny, compile=True)(),
    ]
    adapted = LoRA(rank=2)(made[0])
    assert all(policy.compiles for policy in (*made, adapted, adapted.merged()))
    assert not HuggingFace(name=str(tmp_path))().compiles


def test_a_compiler_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without g++."""

    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled, "BACKEND", fails)
    with pytest.raises(UserError, match=r"cannot compile .*no compiler.*: type policy\.compile=fa"):
        fit(learner(policy=tiny_setup.policy(compile=True)), 1)
