"""`rollout=vllm` with a stand-in of vLLM: how the engine is started, what it is given, and what is
checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.protocols import RunSize
from rlmods.rollout import VLLM, external, vllm as vllm_rollout
from rlmods.rollout.base import Context, encode_prompt
from rlmods.rollout.external import sampling_settings
from rlmods.training.evaluation import with_settings
from rlmods.types import Prompt, Response
from tests.rollout.stand_in import choice
from tests.support import tiny_setup
from tests.support.mixtures import mixture

GIB = 2**30
PROMPTS = [Prompt(id=f"p{i}", text=str(7 * i) * (i + 1)) for i in range(5)]


class StandIn:
    """`vllm.LLM` and its engine. Responses end two at a time, in reverse order."""

    made: list[StandIn]

    def __init__(self, **options: Any) -> None:
        self.options, self.made = options, [*type(self).made, self]
        type(self).made.append(self)
        self.config = AutoConfig.from_pretrained(options["model"])
        self.tokenizer = AutoTokenizer.from_pretrained(options["model"])
        self.version, self.num_loads, self.num_resets = "default", 0, 0
        self.weights: dict[str, Tensor] = {}
        self.waiting: dict[str, tuple[list[int], Any]] = {}
        self.llm_engine = self
        self.is_asleep = False
        self.num_sleeps = 0
        torch.rand(3)  # vLLM sets the seed of the global generator
        torch.set_num_threads = lambda n: None  # type: ignore[assignment]

    def collective_rpc(self, method: str, kwargs: Any) -> None:
        assert method == "reload_weights"
        assert not self.is_asleep
        self.weights, self.num_loads = (
            {name: x.clone() for name, x in kwargs["weights_iterator"]},
            self.num_loads + 1,
        )

    def sleep(self, level: int) -> None:
        assert level == 1
        assert self.options["enable_sleep_mode"]
        assert not self.is_asleep
        assert not self.waiting
        self.is_asleep = True
        self.num_sleeps += 1

    def wake_up(self) -> None:
        assert self.is_asleep
        self.is_asleep = False

    def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True

    def update_weight_version(self, version: str) -> None:
        self.version = version

    def add_request(self, name: str, prompt: Any, settings: Any) -> None:
        assert not torch.is_autocast_enabled("cpu")
        assert not self.is_asleep
        self.waiting[name] = (prompt["prompt_token_ids"], vars(settings))

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.waiting.pop(name, None)

    def step(self) -> list[Any]:
        torch.rand(1)
        outputs = []
        for name in [*self.waiting][:-3:-1]:
            _, settings = self.waiting.pop(name)
            rows = [
                choice({"sampling_params": settings}, i, self.version) for i in range(settings["n"])
            ]
            outputs.append(
                SimpleNamespace(request_id=name, finished=True, outputs=[self.row(x) for x in rows])
            )
        return [SimpleNamespace(request_id="x", finished=False, outputs=[]), *outputs]

    def row(self, x: Any) -> Any:
        logprobs = [
            {entry["token_id"]: SimpleNamespace(logprob=entry["logprob"])}
            for entry in x["logprobs"]["content"]
        ]
        spans = [SimpleNamespace(**span) for span in x["weight_versions"]]
        return SimpleNamespace(
            token_ids=x["token_ids"],
            logprobs=logprobs,
            finish_reason=x["finish_reason"],
            weight_versions=spans,
        )


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the stand-in in place of vLLM."""
    module: Any = ModuleType("vllm")
    module.LLM = type("LLM", (StandIn,), {"made": []})
    module.SamplingParams = SimpleNamespace
    module.ModelRegistry = SimpleNamespace(get_supported_archs=lambda: {"LlamaForCausalLM"})
    inputs: Any = ModuleType("vllm.inputs")
    inputs.tokens_input = lambda ids: {"prompt_token_ids": ids}
    kinds: Any = ModuleType("vllm.sampling_params")
    kinds.RequestOutputKind = SimpleNamespace(FINAL_ONLY=2)
    for name, x in {"vllm": module, "vllm.inputs": inputs, "vllm.sampling_params": kinds}.items():
        monkeypatch.setitem(sys.modules, name, x)
    for name in (
        "VLLM_LOGGING_LEVEL",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
    ):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(torch, "set_num_threads", torch.set_num_threads)
    monkeypatch.setattr(external, "_engines", {})
    return module


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_setup.policy()


def outcomes(responses: list[Response]) -> list[Any]:
    return [
        (r.prompt.id, r.meta, r.tokens, r.behavior_logprobs, r.finish, r.text) for r in responses
    ]


def synced(policy: Policy, **settings: Any) -> VLLM:
    rollout = VLLM(**{"max_tokens": 6} | settings)
    rollout.sync(policy, iteration=0)
    return rollout


def test_responses_are_in_the_order_of_the_prompts(policy: Policy) -> None:
    calls: list[tuple[int, int, int]] = []
    rollout = synced(policy)
    rollout.on_tokens = lambda *progress: calls.append(progress)
    responses = rollout.generate(PROMPTS, samples=3, iteration=4)
    assert [(r.prompt, r.meta) for r in responses] == [
        (p, {"sample": i, "iteration": 4}) for p in PROMPTS for i in range(3)
    ]
    for p, rows in zip(PROMPTS, zip(*3 * [iter(responses)], strict=True), strict=True):
        encoded = encode_prompt(policy, p, 0, 6)
        context = Context(encoded, encoded.tokens, range(3), encoded.limit)
        settings = sampling_settings(rollout, context, 4)
        for i, r in enumerate(rows):
            expected = choice({"sampling_params": settings}, i, "")
            assert r.prompt_tokens == policy.encode(p)
            assert r.tokens == expected["token_ids"]
            assert r.behavior_logprobs == [x["logprob"] for x in expected["logprobs"]["content"]]
            assert r.finish == expected["finish_reason"]
    assert [done for done, *_ in calls] == [6, 12, 15]
    assert calls[-1] == (15, 15, sum(len(r.tokens) for r in responses))


def test_seeds_differ_by_everything_that_samples_depend_on(policy: Policy) -> None:
    def seed(
        run: int = 0, prompt: str = "p", time: int = 0, before: int = 0, iteration: int = 0
    ) -> int:
        rollout = VLLM(seed=run)
        rollout.synced = policy
        made = Prompt(id=prompt, text="1", time=time)
        for _ in range(before + 1):
            occurrence = rollout.next_occurrence(made)
        encoded = encode_prompt(policy, made, occurrence, 6)
        context = Context(encoded, encoded.tokens, range(1), encoded.limit)
        return int(sampling_settings(rollout, context, iteration)["seed"])

    others = [{"run": 1}, {"prompt": "q"}, {"time": 1}, {"before": 1}, {"iteration": 1}]
    settings = [{}, *others, {"run": 1, "iteration": 1}]
    seeds = [seed(**x) for x in settings]
    assert len(set(seeds)) == len(seeds)
    assert seed() == seeds[0]
    assert all(0 <= x < 2**63 - 2**32 for x in seeds)


def test_the_engine_is_that_of_the_policy(policy: Policy, vllm: Any) -> None:
    synced(policy, dtype="bfloat16", cache_gib=0.5)
    [llm] = vllm.LLM.made
    assert llm.config.architectures == ["LlamaForCausalLM"]
    assert llm.config.hidden_size == policy.model.config.hidden_size
    assert llm.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    expected = {
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 256,
        "kv_cache_memory_bytes": 2**29,
    }
    expected |= {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
    assert expected.items() <= llm.options.items()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The second GPU of a machine, with 80 GiB, of which 20 are free."""
    made = SimpleNamespace(free=20 * GIB, total=80 * GIB)
    fakes = {
        "is_available": lambda: True,
        "current_device": lambda: 1,
        "empty_cache": lambda: None,
        "mem_get_info": lambda: (made.free, made.total),
        "get_rng_state_all": list,
        "set_rng_state_all": lambda states: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return made


def run_size(**changes: Any) -> RunSize:
    sizes = {"precision": "32-true", "num_rows": 8, "longest_row": 100, "reserved_bytes": 0.0}
    return RunSize(**sizes | changes)


class TestMemory:
    @pytest.mark.parametrize("free_gib", [3, 40, 79])
    def test_the_engine_asks_for_memory_that_is_free(
        self, policy: Policy, vllm: Any, gpu: Any, free_gib: int
    ) -> None:
        gpu.free = free_gib * GIB
        synced(policy, cache_gib=0.5)
        fraction = vllm.LLM.made[0].options["gpu_memory_utilization"]
        assert 0 < fraction * gpu.total < gpu.free

    def test_without_a_gpu_it_is_not_limited(self, policy: Policy, vllm: Any) -> None:
        synced(policy)
        assert "gpu_memory_utilization" not in vllm.LLM.made[0].options

    def test_the_cache_holds_all_rows(self, policy: Policy, gpu: Any) -> None:
        per_token = 2 * 4 * 2 * 32  # float32 keys and values of two layers with 32 features
        num_rows = 10**5
        rollout = VLLM()
        rollout.fit_run(policy, run_size(num_rows=num_rows))
        assert rollout.max_length == 100
        needed = num_rows * 100 * per_token / GIB
        assert rollout.cache_gib is not None
        assert needed < rollout.cache_gib < 1.2 * needed

    def test_the_cache_leaves_the_memory_of_an_update(self, policy: Policy, gpu: Any) -> None:
        sizes = []
        for reserved in (0, 10 * GIB):
            rollout = VLLM()
            rollout.fit_run(policy, run_size(num_rows=10**9, reserved_bytes=reserved))
            sizes.append(rollout.cache_gib)
        assert sizes == pytest.approx([10, 5], rel=1e-3)

    def test_the_longest_row_fits_in_any_case(self, policy: Policy, gpu: Any) -> None:
        rollout = VLLM()
        rollout.fit_run(policy, run_size(longest_row=10**6, reserved_bytes=30 * GIB))
        assert rollout.cache_gib is not None
        assert rollout.cache_gib * GIB > 10**6 * 2 * 4 * 2 * 32

    @pytest.mark.parametrize(
        ("precision", "typed", "expected"),
        [
            ("bf16-mixed", None, "bfloat16"),
            ("bf16-mixed", "float32", "float32"),
            ("16-mixed", None, "float16"),
            ("32-true", None, None),
        ],
    )
    def test_the_engine_computes_in_the_trainers_precision(
        self, policy: Policy, precision: str, typed: str | None, expected: str | None
    ) -> None:
        """Otherwise the two are different policies: bfloat16 rounds small updates away."""
        rollout = VLLM(dtype=typed)
        rollout.fit_run(policy, run_size(precision=precision))
        assert rollout.dtype == expected

    def test_what_is_typed_stays(self, policy: Policy, gpu: Any) -> None:
        rollout = VLLM(max_length=77, cache_gib=3.0)
        rollout.fit_run(policy, run_size())
        assert (rollout.max_length, rollout.cache_gib) == (77, 3.0)

    def test_validation_uses_the_same_engine(self, policy: Policy, vllm: Any) -> None:
        rollout = VLLM(max_tokens=6)
        rollout.fit_run(policy, run_size())
        rollout.sync(policy, iteration=0)
        with_settings(rollout, temperature=0.0).sync(policy, iteration=0)
        [llm] = vllm.LLM.made
        assert llm.options["max_model_len"] == 100


class TestSleep:
    """`StandIn` refuses weights and requests while it is asleep."""

    def test_between_rollouts(self, policy: Policy, vllm: Any, gpu: Any) -> None:
        rollout = synced(policy, sleep=True)
        [llm] = vllm.LLM.made
        assert llm.is_asleep
        first = rollout.generate(PROMPTS, samples=2, iteration=0)
        assert llm.is_asleep
        rollout.sync(policy, iteration=0)
        assert llm.is_asleep
        assert outcomes(rollout.generate(PROMPTS, samples=2, iteration=0)) == outcomes(first)
        rollout.sync(policy, iteration=1)
        rollout.generate(PROMPTS, samples=2, iteration=1)
        assert (llm.num_loads, llm.num_sleeps) == (2, 6)

    def test_once_after_all_turns(self, policy: Policy, vllm: Any, gpu: Any) -> None:
        rollout = synced(policy, sleep=True)
        validation = with_settings(rollout, temperature=0.0)
        validation.sync(policy, iteration=0)
        with rollout.sampling():
            rollout.generate(PROMPTS, samples=2, iteration=0)
            validation.generate(PROMPTS, samples=1, iteration=0)
            assert not vllm.LLM.made[0].is_asleep
        assert vllm.LLM.made[0].num_sleeps == 3

    def test_after_an_error(self, policy: Policy, vllm: Any, gpu: Any) -> None:
        rollout = synced(policy, sleep=True)
        with pytest.raises(UserError, match="leave no room"), rollout.sampling():
            rollout.generate([Prompt(id="p", text="1" * 300)], samples=1, iteration=0)
        assert vllm.LLM.made[0].is_asleep

    @pytest.mark.parametrize("sleep", [True, False])
    def test_the_engine_frees_memory_only_if_asked(
        self, policy: Policy, vllm: Any, gpu: Any, sleep: bool
    ) -> None:
        synced(policy, sleep=sleep).generate(PROMPTS, samples=1, iteration=0)
        [llm] = vllm.LLM.made
        assert llm.options["enable_sleep_mode"] == sleep
        assert llm.is_asleep == sleep

    def test_without_a_gpu_the_engine_stays_awake(self, policy: Policy, vllm: Any) -> None:
        synced(policy, sleep=True).generate(PROMPTS, samples=1, iteration=0)
        [llm] = vllm.LLM.made
        assert "enable_sleep_mode" not in llm.options
        assert llm.num_sleeps == 0


class TestLocalRank:
    """vLLM's external launcher reads LOCAL_RANK, and makes this GPU the current one."""

    @pytest.fixture(autouse=True)
    def ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_rollout, "_num_ranks", lambda: 8)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setenv("SLURM_LOCALID", "3")

    def test_is_the_index_of_the_trainers_gpu(self, gpu: Any) -> None:
        with vllm_rollout._isolated():
            assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("5", "1")
        assert "LOCAL_RANK" not in os.environ

    def test_is_slurms_without_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with vllm_rollout._isolated():
            assert os.environ["LOCAL_RANK"] == "3"
        monkeypatch.setenv("LOCAL_RANK", "2")  # torchrun within a job of SLURM
        with vllm_rollout._isolated():
            assert os.environ["LOCAL_RANK"] == "2"


def test_an_engine_that_does_not_start_is_an_error(policy: Policy, vllm: Any) -> None:
    def fail(**options: Any) -> None:
        raise ValueError("No memory for the KV cache.\nDecrease it.")

    vllm.LLM = fail
    with pytest.raises(
        UserError,
        match=r"does not start \(No memory for the KV cache. Decrease it.\): type another "
        r"rollout.cache_gib",
    ):
        synced(policy)


def test_every_weight_is_sent_when_it_changes(vllm: Any) -> None:
    policy = tiny_setup.policy()
    rollout = synced(policy)
    [llm] = vllm.LLM.made
    assert (
        llm.weights.keys()
        == policy.model.state_dict().keys()
        >= {"lm_head.weight", "model.embed_tokens.weight"}
    )
    greedy = with_settings(rollout, temperature=0.0)
    greedy.sync(policy, iteration=0)
    assert (llm.num_loads, llm.num_resets) == (1, 1)
    with torch.no_grad():
        policy.model.model.norm.weight.add_(1)
    version = llm.version
    rollout.sync(policy, iteration=0)
    assert (llm.num_loads, llm.num_resets) == (2, 2)
    assert llm.version != version
    assert all(torch.equal(x, llm.weights[name]) for name, x in policy.model.state_dict().items())
    rollout.sync(policy, iteration=1)
    assert llm.num_loads == 3
    assert len(vllm.LLM.made) == 1


@pytest.mark.parametrize("kind", ["qwen3", "mixtral"])
def test_weights_of_experts_have_the_names_of_a_checkpoint(kind: str, tmp_path: Path) -> None:
    policy = mixture(kind)
    policy.export(tmp_path)
    saved, sent = load_file(tmp_path / "model.safetensors"), dict(external.full_weights(policy))
    assert sent.keys() == saved.keys() != policy.model.state_dict().keys()
    assert all(torch.equal(x, saved[name]) for name, x in sent.items())


def test_a_failed_transfer_is_repeated(
    policy: Policy, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = synced(policy)
    [llm] = vllm.LLM.made
    with monkeypatch.context() as patch:
        patch.setattr(llm, "reset_prefix_cache", lambda: False)
        with pytest.raises(RuntimeError, match="did not drop the cached keys"):
            rollout.sync(policy, iteration=1)
    with pytest.raises(UserError, match="another process changed the engine's weights"):
        rollout.generate(PROMPTS, samples=1, iteration=1)
    rollout.sync(policy, iteration=1)
    assert llm.num_loads == 3


def test_training_is_not_disturbed(policy: Policy) -> None:
    state, threads = torch.random.get_rng_state(), torch.set_num_threads
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rollout = synced(policy)
        rollout.generate(PROMPTS, samples=2, iteration=0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.set_num_threads is threads


def test_an_interrupted_call_leaves_nothing_behind(policy: Policy, vllm: Any) -> None:
    def stop(*progress: int) -> None:
        raise KeyboardInterrupt

    rollout = synced(policy)
    expected = outcomes(rollout.generate(PROMPTS, samples=2, iteration=0))
    rollout.on_tokens = stop
    with pytest.raises(KeyboardInterrupt):
        rollout.generate(PROMPTS, samples=2, iteration=0)
    assert vllm.LLM.made[0].waiting == {}
    rollout.on_tokens = None
    rollout.sync(policy, iteration=0)
    assert outcomes(rollout.generate(PROMPTS, samples=2, iteration=0)) == expected


def test_what_is_missing_is_named(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    VLLM().check_policy(policy)
    monkeypatch.setattr(sys.modules["vllm"].ModelRegistry, "get_supported_archs", set)
    with pytest.raises(
        UserError, match="vLLM has no implementation of LlamaForCausalLM: type rollout=local"
    ):
        VLLM().check_policy(policy)
    sys.modules["vllm"].ModelRegistry.get_supported_archs = lambda: {"Qwen3MoeForCausalLM"}  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError,
        match="CPU build cannot load new experts into Qwen3MoeForCausalLM: type rollout=local",
    ):
        VLLM().check_policy(mixture("qwen3"))
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(
        UserError, match=r"^rollout=vllm: vLLM cannot be imported .*: pip install 'rlmods\[vllm\]'"
    ):
        VLLM().check_policy(policy)
