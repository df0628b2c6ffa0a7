"""Recorded decode steps: the same responses as steps one by one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import Local, cache, graph as graphs, local
from rlmods.rollout.cache import CachedRows
from rlmods.types import Prompt
from tests.rollout.models import gap
from tests.support import recorded_graph
from tests.support.models import gpt2, llama, needs_bfloat16, needs_onednn

PADDED = ("3+4=", "12-30+5=", "3+41=", "7")
EQUAL = ("3+4=", "5+6=")


def sampled(policy: Policy, texts: tuple[str, ...], *, recorded: bool) -> list[Any]:
    rollout = Local(max_tokens=40, temperature=1.3, graphs=recorded)
    rollout.sync(policy, iteration=0)
    prompts = [Prompt(id=text, text=text) for text in texts]
    return list(rollout.generate(prompts, samples=6, iteration=0))


@pytest.fixture
def policy() -> Policy:
    """A policy with shared key heads, a third of whose responses end early."""
    made = Policy(llama(), character_tokenizer())
    made.eos_ids = frozenset(range(0, 96, 40))
    return made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[recorded_graph.RecordedGraph]:
    return recorded_graph.install(monkeypatch)


@needs_onednn
@pytest.mark.parametrize("texts", [PADDED, EQUAL])
@pytest.mark.parametrize("mixed", [False, pytest.param(True, marks=needs_bfloat16)])
def test_responses_are_those_of_single_steps(
    texts: tuple[str, ...],
    mixed: bool,
    policy: Policy,
    made: type[recorded_graph.RecordedGraph],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache, "MIN_REPLAYS", 1)  # so that the cache grows
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        expected = sampled(policy, texts, recorded=False)
        assert made.made == 0
        actual = sampled(policy, texts, recorded=True)
    lengths = {len(response.tokens) for response in expected}
    assert len(lengths) > 4
    assert max(lengths) == 40
    if mixed:  # attention under a mask rounds otherwise, so that another token may be sampled
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounding = gap(policy, expected, 1.3)
            assert rounding < 0.2
            assert gap(policy, actual, 1.3) < 2 * rounding
    else:
        assert [x.tokens for x in actual] == [x.tokens for x in expected]
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(
                torch.tensor(one.behavior_logprobs),
                torch.tensor(other.behavior_logprobs),
                rtol=0,
                atol=1e-4,
            )
    # once for each size of the cache, and whenever half of the rows have ended
    assert 2 <= made.made <= 8


@needs_onednn
def test_steps_may_follow_rows_that_leave_and_ids_of_the_host(
    policy: Policy, made: type[recorded_graph.RecordedGraph]
) -> None:
    """Whatever reads the cache sees the tokens of recorded steps."""
    logits = []
    for recorded in (False, True):
        with graphs.sampling(policy), torch.no_grad():
            rows = CachedRows(policy, recorded)
            rows.begin([[5, 6, 7], [8, 9]], [None, None], 30, [0, 0], 256)
            found = []
            for step in range(6):
                rows.append(torch.tensor([10 + step, 20 + step]))
            for layer in rows.cache.layers:  # no memory of smaller buffers is kept
                assert layer.keys.data_ptr() == layer.buffers[0].data_ptr()
            past = rows.past(1, [8, 9, *range(20, 26)])
            found += [keys for keys, _ in past.states]
            rows.select(torch.tensor([1]))
            found.append(rows.extend([[30, 31]]))
            found += [rows.append(torch.tensor([40 + step])).clone() for step in range(6)]
        logits.append(found)
    for one, other in zip(*logits, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    assert made.made >= 2


@needs_onednn
def test_memory_that_no_token_uses_may_hold_anything(
    policy: Policy, made: type[recorded_graph.RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **options: empty(*args, **options).fill_(torch.nan)
    )
    responses = sampled(policy, PADDED, recorded=True)
    assert torch.tensor([x for r in responses for x in r.behavior_logprobs]).isfinite().all()


@needs_onednn
def test_kernels_that_read_on_the_host_are_not_asked_for(
    policy: Policy, made: type[recorded_graph.RecordedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    update = graphs.FixedCache.update

    def watched(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return update(*args)

    monkeypatch.setattr(graphs.FixedCache, "update", watched)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        sampled(policy, EQUAL, recorded=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(seen) == {False}


@needs_onednn
class TestCheck:
    """Before a run, replayed steps are compared with training."""

    @pytest.fixture(autouse=True)
    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "check_graphs", lambda policy, fused: None)

    def test_right_steps(self, policy: Policy, made: type[recorded_graph.RecordedGraph]) -> None:
        policy.eos_ids = frozenset({-1})
        Local(max_tokens=4, graphs=True).check_policy(policy)
        assert made.made >= 1

    def test_wrong_steps(
        self,
        policy: Policy,
        made: type[recorded_graph.RecordedGraph],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(made, "replay", lambda graph: None)
        with pytest.raises(UserError, match=r"nats per token: type rollout\.graphs=false"):
            Local(max_tokens=4, graphs=True).check_policy(policy)

    def test_steps_that_the_host_reads(
        self,
        policy: Policy,
        made: type[recorded_graph.RecordedGraph],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        head = policy.head
        monkeypatch.setattr(policy, "head", lambda x: head(x) * float(x.sum().isfinite()))
        with pytest.raises(UserError, match=r"recorded \(operation not permitted .*graphs=false"):
            Local(max_tokens=4, graphs=True).check_policy(policy)


class TestRefused:
    @pytest.fixture
    def on_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let policies seem to be on a GPU."""
        monkeypatch.setattr(Policy, "device", SimpleNamespace(type="cuda"))

    @pytest.fixture
    def other(self) -> Policy:
        return Policy(gpt2(), character_tokenizer())

    def test_without_a_gpu(self, policy: Policy) -> None:
        with pytest.raises(UserError, match=r"not on cpu: type rollout\.graphs=false"):
            Local(max_tokens=4, graphs=True).check_policy(policy)

    @needs_onednn
    def test_other_networks(self, policy: Policy, other: Policy, on_gpu: None) -> None:
        graphs.check_graphs(policy, fused=True)
        with pytest.raises(UserError, match="not this GPT2LMHeadModel"):
            graphs.check_graphs(other, fused=True)
        with pytest.raises(UserError, match=r"rollout\.fused=true"):
            graphs.check_graphs(policy, fused=False)

    @needs_onednn
    def test_angles_that_the_host_computes(self, policy: Policy, on_gpu: None) -> None:
        policy.model.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
        with pytest.raises(UserError, match="positions of the type dynamic move"):
            graphs.check_graphs(policy, fused=True)
