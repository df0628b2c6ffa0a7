"""`rollout=vllm_server` with stand-ins of servers: what is sent, what is checked, and what happens
when servers fail."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlmods.adapter import LoRA
from rlmods.distributed import sharding
from rlmods.distributed.collectives import all_gather
from rlmods.environment import Agent
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.policy.adapted import AdaptedPolicy
from rlmods.rollout import MultiTurn, VLLMServer, external, vllm_server as servers_module
from rlmods.types import Prompt, Response
from tests.rollout.stand_in import Change, StandIn, choice, servers
from tests.support import ahead_ranks, ranks, tiny_setup

PROMPTS = [Prompt(id=f"p{i}", text=str(7 * i) * (i + 1)) for i in range(9)]


@pytest.fixture(autouse=True)
def new_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "_engines", {})


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_setup.policy()


def after(event: threading.Event) -> Change:
    """Let a server answer after the event only, so that others get prompts too."""

    def change(server: StandIn, body: Any, reply: Any) -> Any:
        assert event.wait(60)
        return reply

    return change


def rollout(found: list[StandIn], **settings: Any) -> VLLMServer:
    return VLLMServer(
        **{"urls": [x.url for x in found], "max_tokens": 6, "backoff_s": 0.0, "concurrency": 2}
        | settings
    )


def sample(found: list[StandIn], policy: Policy, **settings: Any) -> list[Response]:
    part = rollout(found, **settings)
    part.sync(policy, iteration=0)
    return part.generate(PROMPTS, samples=3, iteration=0)


def complete(responses: list[Response], policy: Policy) -> bool:
    """Whether every prompt has its responses, in order, with the ids that a server returned for
    it."""
    order = [(r.prompt.id, r.meta["sample"]) for r in responses] == [
        (p.id, i) for p in PROMPTS for i in range(3)
    ]
    return order and all(r.prompt_tokens == policy.encode(r.prompt) for r in responses)


def outcomes(responses: list[Response]) -> list[Any]:
    return [
        (r.prompt.id, r.meta["sample"], r.tokens, r.behavior_logprobs, r.finish) for r in responses
    ]


class TestRequests:
    def test_prompts_are_distributed_and_responses_in_order(self, policy: Policy) -> None:
        with servers(None, None) as found:
            responses = sample(found, policy)
            assert complete(responses, policy)
            assert sorted(found[0].prompts + found[1].prompts) == sorted(
                policy.encode(p) for p in PROMPTS
            )
            seeds = dict(
                zip(
                    map(tuple, found[0].prompts + found[1].prompts),
                    found[0].settings + found[1].settings,
                    strict=True,
                )
            )
            for r in responses:
                expected = choice(
                    {"sampling_params": seeds[tuple(r.prompt_tokens)]}, r.meta["sample"], ""
                )
                assert r.tokens == expected["token_ids"]
        with servers(None) as found:
            assert outcomes(sample(found, policy)) == outcomes(responses)

    def test_sessions_of_programs_continue_their_ids(self, policy: Policy) -> None:
        environment = Agent(agent="tests.support.agents:chooses", max_tokens=100)
        sampled = []
        for count in (1, 2):
            with servers(*[None] * count) as found:
                part = MultiTurn(rollout(found), environment)
                part.sync(policy, iteration=0)
                responses = part.generate(PROMPTS, samples=3, iteration=0)
                assert complete(responses, policy)
                sent = [tuple(ids) for server in found for ids in server.prompts]
                stops = [x["stop"] for server in found for x in server.settings]
            sampled.append(outcomes(responses))
            for r in responses:
                last = r.turns[-1]
                assert tuple(r.tokens[r.cuts[-1] : last.start]) in sent
            assert stops.count(["0", "1", "2", "3", "4"]) == len(responses)
            assert len({tuple(r.tokens) for r in responses}) == len(responses)
        assert sampled[0] == sampled[1]

    def test_everything_that_changes_sampling_is_sent(self, policy: Policy) -> None:
        with servers(None) as found:
            sample(found, policy, temperature=0.7, top_p=0.9, top_k=3, stop=["</answer>"])
            expected = {
                "n": 3,
                "max_tokens": 6,
                "temperature": 0.7,
                "top_p": 0.9,
                "top_k": 3,
                "stop": ["</answer>"],
                "logprobs": 0,
            }
            expected |= {
                "repetition_penalty": 1.0,
                "min_p": 0.0,
                "ignore_eos": True,
                "stop_token_ids": sorted(policy.eos_ids),
            }
            assert all(expected.items() <= settings.items() for settings in found[0].settings)
            seeds = {settings["seed"] for settings in found[0].settings}
            assert len(seeds) == len(PROMPTS)

    def test_a_failed_request_is_repeated(self, policy: Policy) -> None:
        failures = [503, 500, 503]
        with servers(lambda server, body, reply: failures.pop() if failures else reply) as found:
            assert complete(sample(found, policy, retries=3), policy)

    def test_a_killed_server_loses_nothing(self, policy: Policy) -> None:
        failed = threading.Event()

        def dies(server: StandIn, body: Any, reply: Any) -> Any:
            if len(server.prompts) == 2:
                server.is_down = True
                failed.set()
            return 503 if server.is_down else reply

        with servers(after(failed), dies) as found:
            part = rollout(found)
            part.sync(policy, iteration=0)
            with pytest.warns(
                UserWarning,
                match="HTTP 503.*: its prompts went to the others, and it is left out until the "
                "next iteration",
            ):
                responses = part.generate(PROMPTS, samples=3, iteration=0)
            assert complete(responses, policy)
            assert sorted(found[0].prompts + found[1].prompts) == sorted(
                policy.encode(p) for p in PROMPTS
            )
            expected, num_requests = outcomes(responses), len(found[1].log.bodies)
            part.generate(PROMPTS, samples=3, iteration=0)
            assert len(found[1].log.bodies) == num_requests
            found[1].is_down, found[1].change = False, None
            found[1].prompts.clear()
            part.sync(policy, iteration=0)
            assert (found[0].num_loads, found[1].num_loads) == (1, 2)
            assert outcomes(part.generate(PROMPTS, samples=3, iteration=0)) == expected
            assert found[1].prompts

    def test_without_servers_the_run_ends_with_one_line(self, policy: Policy) -> None:
        with servers(*2 * [lambda server, body, reply: 503]) as found:
            pattern = (
                r"^rollout: no server is left for 9 prompts: (http://[\d.:]+: HTTP 503, '{}'(; "
                r")?){2}$"
            )
            with pytest.raises(UserError, match=pattern):
                sample(found, policy, retries=1)

    @pytest.mark.parametrize(
        ("status", "advice"),
        [
            (401, r"export VLLM_API_KEY=KEY"),
            (403, "start it with python -m rlmods.serve"),
            (404, "start it with python -m rlmods.serve"),
        ],
    )
    def test_a_rejection_says_what_to_do(self, status: int, advice: str, policy: Policy) -> None:
        with (
            servers(lambda server, body, reply: status) as found,
            pytest.raises(UserError, match=advice),
        ):
            sample(found, policy)

    def test_an_interruption_is_not_delayed(self, policy: Policy) -> None:
        def stop(*progress: int) -> None:
            raise KeyboardInterrupt

        with servers(None) as found:
            part = rollout(found)
            part.sync(policy, iteration=0)
            part.on_tokens = stop
            with pytest.raises(KeyboardInterrupt):
                part.generate(PROMPTS, samples=3, iteration=0)


def with_version(version: Any) -> Any:
    def change(server: StandIn, body: Any, reply: Any) -> Any:
        for x in reply["choices"]:
            x["weight_versions"][0]["version"] = version
        return reply

    return change


def with_first(**fields: Any) -> Any:
    def change(server: StandIn, body: Any, reply: Any) -> Any:
        reply["choices"][0] |= fields
        return reply

    return change


class TestReplies:
    def test_other_weights_are_an_error(self, policy: Policy) -> None:
        with (
            servers(with_version("other")) as found,
            pytest.raises(UserError, match=r"weights other instead of .*another process changed"),
        ):
            sample(found, policy)

    def test_a_server_that_was_started_again_is_left_out(self, policy: Policy) -> None:
        asked, restarted = threading.Event(), with_version("default")

        def change(server: StandIn, body: Any, reply: Any) -> Any:
            asked.set()
            return restarted(server, body, reply)

        with (
            servers(after(asked), change) as found,
            pytest.warns(UserWarning, match="started again and has no weights yet"),
        ):
            assert complete(sample(found, policy), policy)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"logprobs": {"content": [{"logprob": None}]}, "token_ids": [30]},
                "the policy's logits are not finite, training has diverged",
            ),
            ({"token_ids": []}, "with 0 tokens"),
            (
                {"token_ids": [30] * 7, "logprobs": {"content": [{"logprob": -1.0}] * 7}},
                "with 7 tokens up to 30, 7 log-probabilities",
            ),
            (
                {"token_ids": [30] * 4, "logprobs": {"content": [{"logprob": -1.0}] * 2}},
                "with 4 tokens up to 30, 2 log-probabilities",
            ),
            (
                {"finish_reason": "abort"},
                "finish reason abort: start it with this policy, or see its log",
            ),
            (
                {"token_ids": [10**9], "logprobs": {"content": [{"logprob": -1.0}]}},
                "with 1 tokens up to 1000000000, 1 log-probabilities",
            ),
            ({"token_ids": [1e400]}, "its reply lacks tokens, log-probabilities or versions"),
            (
                {"logprobs": None},
                "its reply lacks tokens, log-probabilities or versions: start it with python "
                "-m rlmods.serve",
            ),
        ],
        ids=[
            "nan",
            "empty",
            "too long",
            "other length",
            "aborted",
            "large id",
            "infinite id",
            "no logprobs",
        ],
    )
    def test_an_invalid_response_is_an_error(
        self, fields: dict[str, Any], message: str, policy: Policy
    ) -> None:
        with (
            servers(with_first(**fields)) as found,
            pytest.raises(UserError, match=message) as error,
        ):
            sample(found, policy)
        assert "\n" not in str(error.value)


class TestWeights:
    def test_are_complete_and_named_as_in_transformers(
        self, policy: Policy, tmp_path: Path
    ) -> None:
        with servers(None, None) as found:
            sample(found, policy, folder=str(tmp_path))
            state = policy.model.state_dict()
            for server in found:
                assert (
                    server.weights.keys()
                    == state.keys()
                    >= {"lm_head.weight", "model.embed_tokens.weight"}
                )
                assert all(torch.equal(x, state[name]) for name, x in server.weights.items())
                assert (server.num_loads, server.num_resets) == (1, 1)
        assert list(tmp_path.iterdir()) == []

    def test_of_an_adapter_are_merged(self) -> None:
        adapted = LoRA(rank=2)(tiny_setup.policy())
        with torch.no_grad():
            for x in adapted.trainable_tensors().values():
                x.add_(0.1)
        with servers(None) as found:
            sample(found, adapted)
            expected = dict(adapted.weights())
            assert found[0].weights.keys() == expected.keys()
            assert all(torch.equal(x, expected[name]) for name, x in found[0].weights.items())

    @pytest.mark.parametrize("adapted", [False, True])
    def test_have_the_data_type_that_is_asked_for(self, policy: Policy, adapted: bool) -> None:
        sent = LoRA(rank=2)(tiny_setup.policy()) if adapted else policy
        with servers(None) as found:
            sample(found, sent, dtype="bfloat16")
            for name, x in sent.weights():
                assert torch.equal(found[0].weights[name], x.bfloat16())

    def test_are_in_several_files_if_they_are_large(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(servers_module, "FILE_BYTES", 20_000)
        assert len(list(servers_module._model_files(policy, None))) > 3
        with servers(None) as found:
            sample(found, policy)
            assert found[0].weights.keys() == policy.model.state_dict().keys()

    def test_are_sent_when_they_change(self) -> None:
        policy = tiny_setup.policy()
        with servers(None) as found:
            part, [server] = rollout(found), found
            for iteration, num_loads in ((0, 1), (0, 1), (1, 2)):
                part.sync(policy, iteration=iteration)
                assert server.num_loads == num_loads
            with torch.no_grad():
                policy.model.model.norm.weight.add_(1)
            part.sync(policy, iteration=1)
            assert server.num_loads == 3
            assert torch.equal(server.weights["model.norm.weight"], policy.model.model.norm.weight)
            part.sync(tiny_setup.policy(), iteration=1)
            assert server.num_loads == 4

    def test_a_server_that_does_not_load_them_is_left_out(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[1].is_down = True
            part = rollout(found, retries=1)
            with pytest.warns(UserWarning, match="HTTP 503.*: left out until the next iteration"):
                part.sync(policy, iteration=0)
            assert complete(part.generate(PROMPTS, samples=3, iteration=0), policy)
            found[0].is_down = True
            with pytest.raises(
                UserError, match=r"^rollout: no server has the weights: .*HTTP 503.*HTTP 503"
            ):
                part.sync(policy, iteration=1)
            found[0].is_down = found[1].is_down = False
            part.sync(policy, iteration=1)
            assert complete(part.generate(PROMPTS, samples=3, iteration=1), policy)
            assert (found[0].num_loads, found[1].num_loads) == (2, 1)

    def test_a_server_that_keeps_cached_keys_and_values_is_left_out(self, policy: Policy) -> None:
        """They are those of the previous weights."""
        with servers(None, None) as found:
            found[0].keeps_cache = True
            with pytest.warns(
                UserWarning, match="did not drop the cached keys and values of the previous weights"
            ):
                sample(found, policy)
            assert [len(server.prompts) for server in found] == [0, len(PROMPTS)]

    def test_a_folder_without_room_is_an_error(
        self, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError("No space left on device")

        monkeypatch.setattr(servers_module, "save_file", full)
        with (
            servers(None) as found,
            pytest.raises(
                UserError,
                match=r"no server has the weights: .* \(No space left on device\): type rollout\.folder=",
            ),
        ):
            sample(found, policy, folder=str(tmp_path))
        assert list(tmp_path.iterdir()) == []
        assert found[0].num_loads == 0


class TestAdapterOnly:
    """`rollout.adapter_only=true`"""

    @pytest.fixture
    def adapted(self) -> AdaptedPolicy:
        policy = LoRA(rank=2)(tiny_setup.policy())
        with torch.no_grad():
            for x in policy.trainable_tensors().values():
                x.add_(0.1)
        return policy

    def test_the_adapter_is_sent_as_peft_writes_it(
        self, adapted: AdaptedPolicy, tmp_path: Path
    ) -> None:
        with servers(None, None) as found:
            responses = sample(found, adapted, adapter_only=True, folder=str(tmp_path / "sent"))
            assert complete(responses, adapted)
            adapted.export(tmp_path / "exported")
            saved = load_file(tmp_path / "exported" / "adapter" / "adapter_model.safetensors")
            for server in found:
                assert server.adapter.keys() == saved.keys()
                assert all(torch.equal(x, saved[name]) for name, x in server.adapter.items())
                assert (server.adapter_config["r"], server.adapter_config["peft_type"]) == (
                    2,
                    "LORA",
                )
                assert (server.num_adapters, server.num_loads, server.num_resets) == (1, 0, 1)
        assert list((tmp_path / "sent").iterdir()) == []

    def test_it_is_sent_when_it_changes(self, adapted: AdaptedPolicy) -> None:
        with servers(None) as found:
            part = rollout(found, adapter_only=True)
            for iteration, num_adapters in ((0, 1), (0, 1), (1, 2)):
                part.sync(adapted, iteration=iteration)
                assert found[0].num_adapters == num_adapters
            before = dict(found[0].adapter)
            with torch.no_grad():
                for x in adapted.trainable_tensors().values():
                    x.add_(1.0)
            part.sync(adapted, iteration=1)
            changes = [x - before[name] for name, x in found[0].adapter.items()]
            assert all(torch.allclose(x, torch.ones_like(x)) for x in changes)

    def test_a_server_that_does_not_take_it_is_left_out(self, adapted: AdaptedPolicy) -> None:
        with servers(None, None) as found:
            found[0].adapter_reply = (200, b"something else")
            part = rollout(found, adapter_only=True)
            with pytest.warns(UserWarning, match="did not load the adapter: something else"):
                part.sync(adapted, iteration=0)
            assert complete(part.generate(PROMPTS, samples=3, iteration=0), adapted)
            assert [len(server.prompts) for server in found] == [0, len(PROMPTS)]

    def test_a_server_without_adapters_ends_the_run(self, adapted: AdaptedPolicy) -> None:
        with servers(None) as found:
            found[0].adapter_reply = (404, b"{}")
            with pytest.raises(UserError, match=r"HTTP 404: start it with python -m rlmods\.serve"):
                rollout(found, adapter_only=True).sync(adapted, iteration=0)

    def test_a_server_that_was_started_again_is_left_out(self, adapted: AdaptedPolicy) -> None:
        with servers(None, lambda *_: 404) as found:
            part = rollout(found, adapter_only=True)
            part.sync(adapted, iteration=0)
            with pytest.warns(UserWarning, match="started again and has no adapter yet"):
                assert complete(part.generate(PROMPTS, samples=3, iteration=0), adapted)

    def test_a_repeated_load_is_no_error(self, adapted: AdaptedPolicy) -> None:
        with servers(None) as found:
            found[0].adapter_reply = (400, b'{"message": "adapter has already been loaded."}')
            rollout(found, adapter_only=True).sync(adapted, iteration=0)
            assert found[0].num_resets == 1

    def test_a_policy_without_an_adapter_is_refused(self, policy: Policy) -> None:
        part = VLLMServer(urls="http://127.0.0.1:1", adapter_only=True)
        with pytest.raises(UserError, match=r"adapter=lora or rollout\.adapter_only=false"):
            part.check_policy(policy)


def two_ranks(rank: int, urls: list[str]) -> None:
    """Sharded weights are gathered by all ranks and sent by the first one, and both sample."""
    external._engines.clear()
    policy = tiny_setup.policy()
    part = VLLMServer(urls=urls, max_tokens=6, backoff_s=0.0)
    sharding.shard(policy, torch.distributed.init_device_mesh("cpu", (2,)))
    for iteration in range(2):
        part.sync(policy, iteration=iteration)
        responses = part.generate(PROMPTS[rank::2], samples=3, iteration=iteration)
        versions = all_gather(part._servers.version)
        assert versions[0] == versions[1]
        assert [r.prompt.id for r in responses] == [
            p.id for p in PROMPTS[rank::2] for _ in range(3)
        ]


class OnRank:
    """`two_ranks` with its addresses, in a form that another process can load."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __call__(self, rank: int) -> None:
        two_ranks(rank, self.urls)


@pytest.mark.slow
def test_sharded_weights_are_sent_once_in_full(policy: Policy) -> None:
    with servers(None) as found:
        ranks.spawn(OnRank([found[0].url]))
        assert found[0].num_loads == 2
        state = policy.model.state_dict()
        assert found[0].weights.keys() == state.keys()
        assert all(torch.equal(x, state[name]) for name, x in found[0].weights.items())
        assert len(found[0].prompts) == 2 * len(PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True], ids=["a turn", "several turns"])
def test_two_ranks_that_sample_ahead_are_one(turns: bool, tmp_path: Path) -> None:
    with servers(None) as [server]:
        one = ahead_ranks.trained(server.url, turns=turns)
        prompts = sorted(server.prompts)
        server.prompts.clear()
        ranks.run(
            "tests.support.ahead_ranks",
            [str(tmp_path / "out.pt"), server.url, *(["turns"] if turns else [])],
        )
        assert sorted(server.prompts) == prompts
    two = torch.load(tmp_path / "out.pt", weights_only=True)
    before = tiny_setup.learner().state_dict()
    assert (
        max(float((weight - before[name]).abs().max()) for name, weight in one["weights"].items())
        > 1e-4
    )
    torch.testing.assert_close(two["weights"], one["weights"], rtol=0, atol=1e-6)
    for mine, theirs in zip(one["rows"], two["rows"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-4, abs=2e-6)
    assert [row["train/staleness_max"] for row in two["rows"]] == [0, 1, 1]
    assert all((row.get("train/turns", 1) > 1) == turns for row in two["rows"])


@pytest.mark.parametrize("urls", [[], ["localhost:8000"]])
def test_addresses_are_checked(urls: list[str]) -> None:
    with pytest.raises(UserError, match=r"type 'rollout\.urls=\[http://HOST:PORT\]'"):
        VLLMServer(urls=urls)


@pytest.fixture(autouse=True)
def no_files_are_left() -> Iterator[None]:
    """Weights in memory would stay there."""
    memory = Path("/dev/shm")
    before = set(memory.glob("rlmods-weights-*")) if memory.is_dir() else set()
    yield
    assert not memory.is_dir() or set(memory.glob("rlmods-weights-*")) <= before
