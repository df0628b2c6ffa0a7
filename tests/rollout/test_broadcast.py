"""`rollout.transfer=nccl` with stand-ins of servers and of NCCL: which requests are sent in which
order, what is packed, and what happens when servers fail or are started again."""

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.distributed import sharding
from rlmods.errors import UserError
from rlmods.policy import Policy
from rlmods.rollout import VLLMServer, broadcast, external, nccl, vllm_server
from rlmods.rollout.broadcast import Chunk, chunks
from rlmods.rollout.nccl import NCCLError
from rlmods.types import Prompt
from tests.rollout import gloo, stand_in
from tests.rollout.receiver import WAIT_S, Network
from tests.rollout.stand_in import Change, StandIn
from tests.support import ranks, tiny_setup

PROMPTS = [Prompt(id=f"p{i}", text=str(7 * i) * (i + 1)) for i in range(9)]
CPU = torch.device("cpu")
CLEAR = ["/start_weight_update", "/finish_weight_update"]
JOIN = ["/get_world_size", "/init_weight_transfer_engine"]
INFO = ["/weight_info", "/pause"]
BEGIN = ["/update_weight_version", "/start_weight_update"]
END = ["/finish_weight_update", "/reset_prefix_cache", "/update_weight_version", "/resume"]


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups within this process, and small chunks."""
    monkeypatch.setattr(external, "_engines", {})
    monkeypatch.setattr(Network, "links", {})
    monkeypatch.setattr(broadcast, "DEVICE", "cpu")
    monkeypatch.setattr(broadcast, "unique_id", Network.unique_id)
    monkeypatch.setattr(broadcast, "NCCLGroup", Network.Group)
    monkeypatch.setattr(broadcast, "CHUNK_BYTES", 20_000)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_setup.policy()


@contextmanager
def servers(*changes: Change | None) -> Iterator[list[StandIn]]:
    """Run stand-ins. None waits for a trainer any more when the test ends."""
    with stand_in.servers(*changes) as found:
        receivers = [server.receiver for server in found]
        try:
            yield found
        finally:
            for receiver in receivers:
                receiver.release.set()


def rollout(found: list[StandIn], **settings: Any) -> VLLMServer:
    urls = [server.url for server in found]
    once = {"backoff_s": 0.0, "retries": 0, "timeout_s": 20.0}
    defaults = {"urls": urls, "transfer": "nccl", "max_tokens": 6, **once}
    return VLLMServer(**defaults | settings)


def requests(server: StandIn) -> list[str]:
    """Return the paths of the requests since the last call, updates of one transfer as one."""
    paths: list[str] = []
    for path in server.log.paths:
        if path != "/update_weights" or paths[-1:] != [path]:
            paths.append(path)
    server.log.paths[:] = [""] * len(server.log.paths)  # the stand-in reads them by number
    return [path for path in paths if path]


def assert_has(server: StandIn, policy: Policy, dtype: torch.dtype = torch.float32) -> None:
    received = server.receiver.weights
    expected = dict(policy.weights())
    assert list(received) == list(expected)
    for name, x in received.items():
        assert torch.equal(x, expected[name].to(dtype))
    assert not server.receiver.is_corrupt


class TestChunks:
    def made(self, *weights: Tensor, dtype: torch.dtype | None = None) -> list[Chunk]:
        named = [(f"w{i}", x) for i, x in enumerate(weights)]
        return list(chunks(named, dtype, CPU))

    def test_end_before_they_are_too_large(self) -> None:
        sizes = [3_000, 2_000, 1, 9_000, 100, 4_900, 1]
        found = self.made(*map(torch.ones, sizes))
        names = [chunk.info["names"] for chunk in found]
        assert names == [["w0", "w1"], ["w2"], ["w3"], ["w4", "w5"], ["w6"]]
        for chunk in found:
            assert chunk.packed.nbytes <= broadcast.CHUNK_BYTES or len(chunk.info["names"]) == 1

    def test_hold_the_bytes_of_each_weight_in_turn(self) -> None:
        x = torch.arange(6.0).view(2, 3)
        scalar = torch.tensor(7.0)
        [chunk] = self.made(x.t(), scalar)
        assert chunk.info == {
            "names": ["w0", "w1"],
            "dtype_names": ["float32", "float32"],
            "shapes": [[3, 2], []],
        }
        assert chunk.packed.dtype == torch.uint8
        assert chunk.packed.view(torch.float32).tolist() == [0, 3, 1, 4, 2, 5, 7]

    def test_hold_one_weight_without_a_copy(self) -> None:
        x = torch.ones(3)
        [chunk] = self.made(x)
        assert chunk.packed.data_ptr() == x.data_ptr()

    def test_are_complete_before_other_streams_read_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpu = torch.device("cuda", 1)
        calls: list[Any] = []
        join = torch.cat

        def joined(rows: list[Tensor]) -> Tensor:
            calls.append("cat")
            return join(rows)

        def current_stream(device: torch.device) -> Any:
            calls.append(device)
            return SimpleNamespace(synchronize=lambda: calls.append("synchronize"))

        monkeypatch.setattr(Tensor, "to", lambda x, device: x)
        monkeypatch.setattr(torch, "cat", joined)
        monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        list(chunks([("w0", torch.ones(1)), ("w1", torch.ones(1))], None, gpu))
        assert calls == ["cat", gpu, "synchronize"]

    def test_have_one_data_type(self) -> None:
        """Three bytes of bfloat16 pairs before a float32 would begin it at no multiple of 4."""
        odd = torch.ones(3, dtype=torch.bfloat16)
        found = self.made(odd, torch.ones(2), torch.ones(2), odd)
        assert [chunk.info["dtype_names"] for chunk in found] == [
            ["bfloat16"],
            ["float32", "float32"],
            ["bfloat16"],
        ]

    def test_floating_point_weights_have_the_data_type_that_is_asked_for(self) -> None:
        counts = torch.tensor([5])
        found = self.made(torch.ones(3), counts, dtype=torch.bfloat16)
        assert [chunk.info["dtype_names"] for chunk in found] == [["bfloat16"], ["int64"]]


class TestTransfer:
    def test_the_requests_are_those_of_vllm_in_their_order(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[1].receiver.num_workers = 3
            part = rollout(found)
            part.sync(policy, iteration=0)
            for server in found:
                join = [*INFO, "/shutdown_weight_transfer_engine", *BEGIN, *JOIN]
                assert requests(server) == [*join, "/update_weights", *END]
                assert len(server.receiver.updates) > 3
                assert_has(server, policy)
                assert server.version == part._servers.version
                assert (server.num_loads, server.num_resets) == (0, 1)
            for server, size in zip(found, (2, 4), strict=True):
                init = dict(server.receiver.init)
                init.pop("nccl_unique_id_b64")
                assert init == {
                    "rank_offset": 1,
                    "world_size": size,
                    "packed": True,
                    "packed_buffer_size_bytes": broadcast.UNSPLIT_BYTES,
                    "packed_num_buffers": 1,
                }
                assert server.receiver.link.size == size
            assert len(Network.links) == 2

    def test_a_chunk_is_freed_before_the_next_one(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack = broadcast._pack
        made: list[weakref.ref[Tensor]] = []

        def packs(part: dict[str, Tensor], device: torch.device) -> Chunk:
            deadline = time.monotonic() + 10
            while any(packed() is not None for packed in made):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            chunk = pack(part, device)
            assert not part
            made.append(weakref.ref(chunk.packed))
            return chunk

        monkeypatch.setattr(broadcast, "_pack", packs)
        with servers(None) as found:
            rollout(found).sync(policy, iteration=0)
        assert len(made) > 3

    def test_servers_join_once(self) -> None:
        policy = tiny_setup.policy()
        with servers(None, None) as found:
            part = rollout(found, dtype="bfloat16")
            part.sync(policy, iteration=0)
            list(map(requests, found))
            for iteration in (1, 2):
                with torch.no_grad():
                    policy.model.model.norm.weight.add_(1)
                part.sync(policy, iteration=iteration)
                for server in found:
                    assert requests(server) == [*INFO, *BEGIN, "/update_weights", *END]
                    assert_has(server, policy, torch.bfloat16)
                    assert server.receiver.num_joins == 1
            part.sync(policy, iteration=2)
            assert requests(found[0]) == []


class TestFailures:
    @pytest.mark.parametrize("number", [0, 2])
    def test_a_server_that_dies_during_the_transfer_is_left_out(
        self, number: int, policy: Policy
    ) -> None:
        with servers(None, None) as found:
            found[1].receiver.dies_at = number
            part = rollout(found)
            with pytest.warns(UserWarning, match="HTTP 500.*died.*: left out until the next"):
                part.sync(policy, iteration=0)
            assert_has(found[0], policy)
            assert found[1].receiver.num_updates == number + 1
            assert sum(link.aborted.is_set() for link in Network.links.values()) == 1
            part.generate(PROMPTS, samples=3, iteration=0)
            assert found[0].prompts
            assert not found[1].prompts
            list(map(requests, found))

            # It is started again, and joins while the other one has the weights.
            found[1].restart()
            part.sync(policy, iteration=0)
            assert requests(found[0]) == []
            join = [*INFO, "/shutdown_weight_transfer_engine", *BEGIN, *JOIN]
            assert requests(found[1]) == [*join, "/update_weights", *END]
            assert_has(found[1], policy)
            part.generate(PROMPTS, samples=3, iteration=0)

    def test_a_transfer_that_failed_is_ended_before_the_next_one(self, policy: Policy) -> None:
        """Otherwise layers would count weights of both."""
        with servers(None, None) as found:
            found[1].receiver.dies_at = 2
            part = rollout(found)
            with pytest.warns(UserWarning, match="left out until the next iteration"):
                part.sync(policy, iteration=0)
            found[1].is_down = found[1].receiver.has_died = False
            assert found[1].version == broadcast.INCOMPLETE
            list(map(requests, found))
            part.sync(policy, iteration=1)
            join = [*INFO, *CLEAR, "/shutdown_weight_transfer_engine", *BEGIN, *JOIN]
            assert requests(found[1]) == [*join, "/update_weights", *END]
            assert requests(found[0]) == [*INFO, *BEGIN, "/update_weights", *END]
            for server in found:
                assert_has(server, policy)

    @pytest.mark.parametrize(("is_active", "num_stale"), [(True, 0), (False, 2)])
    def test_the_next_trainer_ends_a_transfer(
        self, is_active: bool, num_stale: int, policy: Policy
    ) -> None:
        """Replies are errors as if one of several workers had ended it."""
        with servers(None) as [server]:
            server.version = broadcast.INCOMPLETE
            server.receiver.is_active = is_active
            server.receiver.num_stale = num_stale
            server.receiver.counts["lm_head.weight"] = 1
            rollout([server]).sync(policy, iteration=0)
            assert_has(server, policy)

    @pytest.mark.parametrize("path", vllm_server.REPEATABLE)
    def test_requests_that_do_no_harm_are_repeated(self, path: str, policy: Policy) -> None:
        with servers(None) as [server]:
            server.fails_once = path
            rollout([server], retries=1).sync(policy, iteration=0)
            assert_has(server, policy)

    @pytest.mark.parametrize("path", [JOIN[1], BEGIN[1], "/update_weights", END[0]])
    def test_other_requests_are_sent_once(self, path: str, policy: Policy) -> None:
        with servers(None) as [server]:
            server.fails_once = path
            with pytest.raises(UserError, match="HTTP 503"):
                rollout([server], retries=1).sync(policy, iteration=0)
            assert server.log.paths.count(path) == 1

    def test_a_server_that_was_started_again_joins_at_once(self, policy: Policy) -> None:
        with servers(None, None) as found:
            part = rollout(found)
            part.sync(policy, iteration=0)
            found[1].restart()
            part.sync(policy, iteration=1)
            for server in found:
                assert server.receiver.num_joins == 1
                assert_has(server, policy)
            assert len(Network.links) == 3
            assert sum(link.aborted.is_set() for link in Network.links.values()) == 1
            part.generate(PROMPTS, samples=3, iteration=1)

    def test_a_server_that_another_trainer_took_joins_at_once(self, policy: Policy) -> None:
        with servers(None) as [server]:
            part = rollout([server])
            other = rollout([server], timeout_s=300.0)
            part.sync(policy, iteration=0)
            other.sync(policy, iteration=0)
            part.sync(policy, iteration=1)
            assert server.receiver.num_joins == 3
            assert_has(server, policy)

    def test_a_server_that_does_not_receive_is_left_out(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[1].receiver.hangs_at = 1
            part = rollout(found, timeout_s=5.0)
            late = r"(did not receive within rollout\.timeout_s|timed out): start it again"
            with pytest.warns(UserWarning, match=late):
                part.sync(policy, iteration=0)
            assert_has(found[0], policy)

    def test_a_server_that_hangs_does_not_delay_the_others(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vllm_server, "INFO_S", 5.0)
        begun = time.monotonic()
        with servers(None, None) as found:
            part = rollout(found, timeout_s=60.0)
            with found[1].lock, pytest.warns(UserWarning, match="timed out: start it again: left"):
                part.sync(policy, iteration=0)
            assert_has(found[0], policy)
        assert time.monotonic() - begun < 50

    def test_weights_that_a_server_cannot_load_are_its_error(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[1].receiver.fails_at = 1
            part = rollout(found)
            with pytest.warns(UserWarning, match="HTTP 500.*cannot load"):
                part.sync(policy, iteration=0)
            assert_has(found[0], policy)

    def test_files_and_nccl_share_no_state(self, policy: Policy) -> None:
        with servers(None) as [server]:
            rollout([server], transfer="files").sync(policy, iteration=0)
            assert server.num_loads == 1
            rollout([server]).sync(policy, iteration=0)
            assert_has(server, policy)

    def test_a_call_that_fails_is_an_error_of_its_server(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(group: Network.Group, x: Tensor) -> None:
            raise NCCLError("ncclBroadcast: unhandled cuda error")

        monkeypatch.setattr(Network.Group, "broadcast", fails)
        with (
            servers(None) as found,
            pytest.raises(UserError, match=r"no server has the weights: .*unhandled cuda error$"),
        ):
            rollout(found).sync(policy, iteration=0)

    def test_a_server_that_keeps_cached_keys_and_values_is_left_out(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[0].keeps_cache = True
            part = rollout(found)
            with pytest.warns(UserWarning, match="did not drop the cached keys and values"):
                part.sync(policy, iteration=0)
            part.generate(PROMPTS, samples=3, iteration=0)
            assert [len(server.prompts) for server in found] == [0, len(PROMPTS)]
            assert found[0].version == broadcast.INCOMPLETE

    def test_workers_that_do_not_join_are_left_out(self, policy: Policy) -> None:
        with servers(None, None) as found:
            found[1].receiver.joins = False
            part = rollout(found, timeout_s=5.0)
            with pytest.warns(UserWarning, match=r"did not join within .*: start it again"):
                part.sync(policy, iteration=0)
            assert_has(found[0], policy)

            # A join that succeeds later is undone.
            [late] = [link for link in Network.links.values() if not link.is_joined.is_set()]
            late.is_joined.set()
            assert late.aborted.wait(WAIT_S)

    def test_without_servers_the_run_ends_with_one_line(self, policy: Policy) -> None:
        with servers(None, None) as found:
            for server in found:
                server.receiver.is_configured = False
            pattern = (
                r"^rollout: no server has the weights: (http://[\d.:]+: HTTP 500, .*not configured.*"
                r": start it with python -m rlmods\.serve transfer=nccl(; )?){2}$"
            )
            for _ in range(2):
                with pytest.raises(UserError, match=pattern):
                    rollout(found).sync(policy, iteration=0)
                assert not any(server.receiver.is_paused for server in found)
            assert not Network.links
            for server in found:
                server.restart()
            part = rollout(found)
            part.sync(policy, iteration=0)
            for server in found:
                assert_has(server, policy)

    @pytest.mark.parametrize(("status", "advice"), [(404, "rlmods.serve"), (401, "VLLM_API_KEY")])
    def test_a_rejection_says_what_to_do(
        self, status: int, advice: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with servers(None) as [server]:
            monkeypatch.setattr(StandIn, "__call__", lambda self, body, number: (status, b"{}"))
            with pytest.raises(UserError, match=advice):
                rollout([server]).sync(policy, iteration=0)

    def test_other_replies_are_an_error(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with servers(None) as [server]:
            monkeypatch.setattr(StandIn, "__call__", lambda self, body, number: (200, b"[]"))
            with pytest.raises(UserError, match="its reply to /weight_info lacks weight_version"):
                rollout([server]).sync(policy, iteration=0)

    def test_a_policy_without_a_gpu_is_refused(
        self, policy: Policy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        with servers(None) as [server]:
            with pytest.raises(UserError, match=r"is on cpu: type rollout\.transfer=files$"):
                rollout([server]).sync(policy, iteration=0)
            assert not server.log.paths

    def test_an_adapter_alone_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"type rollout\.transfer=files"):
            VLLMServer(urls="http://127.0.0.1:1", adapter_only=True, transfer="nccl")


def test_a_torch_without_nccl_is_refused_before_training(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl.library.cache_clear()
    monkeypatch.setattr(nccl, "LIBRARY", "libnccl-of-nobody.so.2")
    part = VLLMServer(urls="http://127.0.0.1:1", transfer="nccl")
    with pytest.raises(UserError, match=r"type rollout\.transfer=files$"):
        part.check_policy(policy)


def two_ranks(rank: int, url: str) -> None:
    """Sharded weights are gathered by both ranks and sent by the first one."""
    gloo.replace_nccl()
    vars(broadcast)["CHUNK_BYTES"] = 20_000
    external._engines.clear()
    policy = tiny_setup.policy()
    part = VLLMServer(urls=[url], transfer="nccl", max_tokens=6, backoff_s=0.0)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    sharding.shard(policy, mesh)
    for iteration in range(2):
        part.sync(policy, iteration=iteration)
        part.generate(PROMPTS[rank::2], samples=3, iteration=iteration)


@pytest.mark.slow
def test_sharded_weights_are_sent_once_in_full(policy: Policy) -> None:
    with servers(None) as [server]:
        server.receiver.connect = gloo.GlooCommunicator
        ranks.spawn(partial(two_ranks, url=server.url))
        assert server.receiver.num_joins == 1
        assert server.num_resets == 2
        assert len(server.receiver.updates) > 6
        assert_has(server, policy)
        assert len(server.prompts) == 2 * len(PROMPTS)
