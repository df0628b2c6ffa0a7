"""Sampling with vLLM itself: `make test-vllm`."""

from collections.abc import Sequence
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlmods.adapter import LoRA
from rlmods.distributed import sharding
from rlmods.distributed.collectives import all_gather
from rlmods.errors import UserError
from rlmods.policy import Policy, Tiny
from rlmods.policy.tiny import character_tokenizer
from rlmods.rollout import VLLM, Local
from rlmods.rollout.vllm import memory_fraction
from rlmods.training.evaluation import with_settings
from rlmods.types import Prompt, Response
from tests.rollout.models import gap, outcomes
from tests.support import ranks
from tests.support.mixtures import mixture

pytest.importorskip("vllm")
from vllm.config import CacheConfig

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

RAGGED = [
    Prompt(id=f"p{i}", text="".join(chr(97 + (5 * i + 3 * j) % 26) for j in range(n)))
    for i, n in enumerate([1, 9, 4, 40, 2, 17])
]
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def llama(*, tied: bool, seed: int = 0, **options: Any) -> Policy:
    """A random Llama whose distributions are neither uniform nor deterministic."""
    tokenizer = character_tokenizer()
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    options = {"max_position_embeddings": 64, **options}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer), tie_word_embeddings=tied, **SHAPE, **ids, **options
            )
        )
        for x in model.parameters():
            if x.ndim == 2:
                x.data.normal_(std=0.25)
    policy = Policy(model, tokenizer)
    # not that of the configuration, which ends no response
    policy.eos_ids = frozenset([30, 31, 32])
    return policy


POLICIES = {
    "tiny": lambda: Tiny()(),
    "tied": lambda: llama(tied=True),
    "untied": lambda: llama(tied=False),
}


@pytest.fixture(scope="module")
def tied() -> Policy:
    return llama(tied=True)


def synced(policy: Policy, **settings: Any) -> VLLM:
    rollout = VLLM(**{"max_tokens": 12, "seed": 7, "cache_gib": 0.25} | settings)
    rollout.sync(policy, iteration=0)
    return rollout


def sample(
    policy: Policy,
    prompts: Sequence[Prompt] = RAGGED,
    samples: int = 4,
    iteration: int = 0,
    **settings: Any,
) -> list[Response]:
    return synced(policy, **settings).generate(prompts, samples=samples, iteration=iteration)


@pytest.mark.parametrize("free_gib", [3, 40, 79])
def test_vllm_accepts_the_memory_that_it_is_given(
    free_gib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By vLLM's own check before it loads a model on a GPU, which its default does not pass beside
    a trainer."""
    from vllm.v1.worker.utils import request_memory

    free, total = free_gib * 2**30, 80 * 2**30
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
    snapshot: Any = SimpleNamespace(free_memory=free, total_memory=total, device_="cuda:0")
    fraction = memory_fraction()
    assert request_memory(snapshot, CacheConfig(gpu_memory_utilization=fraction)) <= free
    if free_gib < 79:
        with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
            request_memory(snapshot, CacheConfig())


def test_vllm_can_sleep_as_it_is_asked() -> None:
    """Its CPU build cannot, so that only the calls are checked here."""
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    signature(LLM.sleep).bind(None, level=1)
    signature(LLM.wake_up).bind(None)
    assert "enable_sleep_mode" in signature(EngineArgs).parameters


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("name", POLICIES)
def test_logprobs_are_those_of_the_trainer(name: str, temperature: float) -> None:
    policy = POLICIES[name]()
    responses = sample(policy, temperature=temperature)
    assert gap(policy, responses, temperature) < 1e-4
    assert [(r.prompt, r.meta["sample"]) for r in responses] == [
        (p, i) for p in RAGGED for i in range(4)
    ]
    assert [r.prompt_tokens for r in responses[::4]] == [policy.encode(p) for p in RAGGED]
    assert len({tuple(r.tokens) for r in responses}) > 12


@pytest.mark.parametrize("is_tied", [True, False])
def test_sync_delivers_every_weight(is_tied: bool) -> None:
    policy = llama(tied=is_tied)
    before = sample(policy)
    for name, x in policy.model.named_parameters():
        with torch.no_grad():
            x.add_(0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
        after = sample(policy)
        assert gap(policy, after) < 1e-4, name
    assert outcomes(after) != outcomes(before)


def test_sync_drops_cached_keys_and_values() -> None:
    """The CPU build caches prompts in blocks of 128 tokens."""
    policy = llama(tied=True, max_position_embeddings=512)
    prompts = [Prompt(id="long", text="abc" * 100)]
    assert gap(policy, sample(policy, prompts)) < 1e-4
    with torch.no_grad():
        policy.model.model.layers[0].self_attn.k_proj.weight.mul_(-2)
    assert gap(policy, sample(policy, prompts)) < 1e-4


class Params4bit(torch.nn.Parameter):
    """Has the class name of a parameter of bitsandbytes, and weights in full."""


@pytest.mark.parametrize("is_quantized", [False, True])
def test_adapters_are_merged(is_quantized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = LoRA(rank=4)(llama(tied=True))
    if is_quantized:
        # vLLM joins q, k and v, and stops reading where it has as many weights as they have
        monkeypatch.setattr(
            "peft.utils.integrations.dequantize_bnb_weight", lambda weight, state: weight.data
        )
        for name, module in policy.model.named_modules():
            if name.endswith(".base_layer"):
                module.weight = Params4bit(module.weight.data, requires_grad=False)
    before = sample(policy)
    with torch.no_grad():
        for x in policy.trainable_tensors().values():
            x.add_(0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    after = sample(policy)
    assert gap(policy, after) < 1e-4
    assert outcomes(after) != outcomes(before)


def test_samples_depend_on_seed_iteration_and_occurrence(tied: Policy) -> None:
    first = outcomes(sample(tied))
    assert outcomes(sample(tied)) == first
    assert outcomes(sample(tied, RAGGED[2:3])) == first[8:12]
    assert outcomes(sample(tied, seed=8)) != first
    assert outcomes(sample(tied, iteration=1)) != first
    twice = outcomes(sample(tied, [RAGGED[1], RAGGED[1]]))
    assert twice[:4] == first[4:8]
    assert twice[4:] != first[4:8]


def test_samples_follow_the_distribution(tied: Policy) -> None:
    responses = sample(tied, RAGGED[1:2], samples=256, max_tokens=1)
    counts = torch.bincount(torch.tensor([r.tokens[0] for r in responses]), minlength=102)
    p = tied.next_logits(torch.tensor([tied.encode(RAGGED[1])])).softmax(-1)[0].detach()
    expected = p * 256
    common = expected >= 5
    assert int(common.sum()) > 3
    chi2 = float(((counts - expected) ** 2 / expected)[common].sum())
    assert chi2 < int(common.sum()) + 6 * (2 * int(common.sum())) ** 0.5


def test_greedy_is_that_of_the_local_sampler(tied: Policy) -> None:
    local = Local(max_tokens=12, temperature=0.0)
    local.sync(tied, iteration=0)
    expected = local.generate(RAGGED, samples=1, iteration=0)
    found = sample(tied, samples=1, temperature=0.0)
    assert outcomes(found) == outcomes(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.text == b.text
        torch.testing.assert_close(
            torch.tensor(a.behavior_logprobs), torch.tensor(b.behavior_logprobs), atol=1e-4, rtol=0
        )


def test_the_token_that_ends_a_response_is_kept(tied: Policy) -> None:
    responses = sample(tied, samples=16)
    ended = [r for r in responses if r.finish == "stop"]
    assert 10 < len(ended) < len(responses) - 10
    assert {r.tokens[-1] for r in ended} == set(tied.eos_ids)
    assert all(
        r.tokens[-1] not in tied.eos_ids and len(r.tokens) == 12
        for r in responses
        if r.finish == "length"
    )
    assert not any(i in tied.eos_ids for r in responses for i in r.tokens[:-1])
    assert all(r.text == tied.decode(r.tokens[:-1]) for r in ended)


def test_responses_fit_the_context(tied: Policy) -> None:
    long = Prompt(id="long", text="a" * 60)
    tied.eos_ids, eos = frozenset([1]), tied.eos_ids
    try:
        responses = sample(tied, [long, RAGGED[0]], samples=8)
    finally:
        tied.eos_ids = eos
    assert max(len(r.tokens) for r in responses[:8]) == 4
    assert max(len(r.tokens) for r in responses[8:]) == 12
    with pytest.raises(
        UserError, match="64 tokens leave no room for a response in the model's context of 64"
    ):
        sample(tied, [Prompt(id="full", text="a" * 64)])


def test_stop_strings_end_a_response(tied: Policy) -> None:
    tied.eos_ids, eos = frozenset([1]), tied.eos_ids
    try:
        free = sample(tied, samples=32)
        text = next(r.text[3:5] for r in free if len(r.text) == 12)
        stopped = sample(tied, samples=32, stop=[text])
    finally:
        tied.eos_ids = eos
    assert (
        sum(text in r.text for r in free)
        == sum(r.text.endswith(text) and r.finish == "stop" for r in stopped)
        > 0
    )
    for a, b in zip(free, stopped, strict=True):
        assert a.tokens[: len(b.tokens)] == b.tokens
        assert len(a.behavior_logprobs[: len(b.tokens)]) == len(b.behavior_logprobs)


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.7}])
def test_truncated_support_and_logprobs(tied: Policy, settings: dict[str, Any]) -> None:
    responses = sample(tied, RAGGED[1:2], samples=200, max_tokens=1, **settings)
    p = tied.next_logits(torch.tensor([tied.encode(RAGGED[1])])).softmax(-1)[0].detach()
    order = p.argsort(descending=True)
    size = settings.get("top_k") or int((p[order].cumsum(0) < settings["top_p"]).sum()) + 1
    kept = {int(i): float(p[i] / p[order[:size]].sum()) for i in order[:size]}
    for r in responses:
        assert r.behavior_logprobs[0] == pytest.approx(
            torch.tensor(kept[r.tokens[0]]).log().item(), abs=1e-4
        )


def test_training_is_not_disturbed(tied: Policy) -> None:
    """Random state, threads, precision context and the train or eval mode stay as they were;
    validation's copy has its own settings."""
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    tied.train()
    rollout = synced(tied)
    first = outcomes(rollout.generate(RAGGED, samples=2, iteration=0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        greedy = with_settings(rollout, temperature=0.0)
        greedy.sync(tied, iteration=0)
        responses = greedy.generate(RAGGED, samples=1, iteration=0)
    rollout.sync(tied, iteration=0)
    assert outcomes(rollout.generate(RAGGED, samples=2, iteration=0)) == first
    assert tied.training
    tied.eval()
    assert gap(tied, responses) < 1e-4
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert "vllm" not in str(torch.set_num_threads.__module__)  # the CPU build replaces it


def test_experts_are_refused_without_a_gpu() -> None:
    """If vLLM's CPU build loads new experts now, remove the check."""
    with pytest.raises(
        UserError,
        match="vLLM's CPU build cannot load new experts into Qwen3MoeForCausalLM: type "
        "rollout=local",
    ):
        VLLM().check_policy(mixture("qwen3"))


def sharded(rank: int) -> None:
    policy, whole = llama(tied=True), llama(tied=True)
    sharding.shard(policy, torch.distributed.init_device_mesh("cpu", (2,)))
    rollout = VLLM(max_tokens=12, cache_gib=0.125)
    for iteration in range(2):
        rollout.sync(policy, iteration=iteration)
        responses = rollout.generate(RAGGED[rank::2], samples=4, iteration=iteration)
        assert [r.prompt for r in responses] == [p for p in RAGGED[rank::2] for _ in range(4)]
        assert gap(whole, responses) < 1e-4
    assert all_gather(rank) == [0, 1]


def test_ranks_sample_with_the_weights_of_all_shards() -> None:
    ranks.spawn(sharded)
