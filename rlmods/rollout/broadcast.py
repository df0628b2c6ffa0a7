"""Transfer of weights to vLLM servers by NCCL: `rollout.transfer=nccl`.

The requests and the order of collective calls are those of `NCCLWeightTransferEngine` in vLLM
(`vllm/distributed/weight_transfer/nccl_engine.py`).
"""

import base64
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlmods.distributed.collectives import is_first_rank
from rlmods.errors import UserError
from rlmods.judge.chat import NoReplyError
from rlmods.rollout.nccl import NCCLError, NCCLGroup, unique_id
from rlmods.rollout.turns import Threads

DEVICE = "cuda"
"""Type of device that NCCL sends from."""
CHUNK_BYTES = 1 << 28
"""Size of a chunk. A larger tensor is a chunk of its own."""
UNSPLIT_BYTES = 1 << 50
"""Size from which on a worker expects the weights of a request in several broadcasts: never."""
INCOMPLETE = "incomplete"
"""Version of a server while it receives weights. A failed transfer leaves it. The next trainer sees
it, and ends that transfer before it begins its own."""
Ask = Callable[[str, str, Mapping[str, object] | None], Any]
"""Returns the parsed reply to one request: address of the server, path, and body (None: a GET
request). Raises NoReplyError or UserError."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Weights of one data type, which are sent at once."""

    info: dict[str, list[Any]]
    """Their names, data types and shapes: `NCCLWeightTransferUpdateInfo` of vLLM."""
    packed: Tensor
    """Their bytes [N], one weight after the other."""


def chunks(
    weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None, device: torch.device
) -> Iterator[Chunk]:
    """Yield the weights in chunks on this device, on the first rank. Every rank iterates.

    Args:
        dtype: data type of floating-point weights; None: as they are.
    """
    part: dict[str, Tensor] = {}
    size = 0
    for name, x in weights:
        if not is_first_rank():
            continue
        if dtype is not None and x.is_floating_point():
            x = x.to(dtype)
        # A worker views the bytes as the data type, which must begin at a multiple of its size.
        is_other = any(y.dtype != x.dtype for y in part.values())
        if part and (is_other or size + x.nbytes > CHUNK_BYTES):
            yield _pack(part, device)
            size = 0
        part[name] = x
        size += x.nbytes
    if part:
        yield _pack(part, device)


def _pack(part: dict[str, Tensor], device: torch.device) -> Chunk:
    """Return the chunk of these weights, and free them."""
    rows = [x.to(device).contiguous().view(-1).view(torch.uint8) for x in part.values()]
    packed = rows[0] if len(rows) == 1 else torch.cat(rows)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # groups send from their own streams
    info: dict[str, list[Any]] = {
        "names": list(part),
        "dtype_names": [str(x.dtype).removeprefix("torch.") for x in part.values()],
        "shapes": [list(x.shape) for x in part.values()],
    }
    part.clear()
    return Chunk(info, packed)


class Broadcast:
    """Sends weights to servers from the first rank. The workers of each server are in a group of
    their own, so a server that fails does not stop the transfer to the others.

    A server joins when it gets weights for the first time, after it failed, and after it was
    started again, which its version tells."""

    def __init__(self, ask: Ask, timeout_s: float) -> None:
        self._ask = ask
        self._timeout_s = timeout_s
        """Time limit of joining, and of each chunk."""
        self._groups: dict[str, Future[NCCLGroup]] = {}
        self._version = ""
        """Version of the servers that have joined."""

    def send(
        self, parts: Iterable[Chunk], urls: Sequence[str], version: str, device: torch.device
    ) -> dict[str, str]:
        """Make these servers sample with new weights. Returns the problem of each that does not.

        Every rank iterates the chunks. Ranks other than the first have no servers. Raises UserError
        if the device is not a GPU.
        """
        if device.type != DEVICE:
            raise UserError(
                f"rollout.transfer=nccl sends weights from a GPU, and the policy is on {device}: "
                "type rollout.transfer=files"
            )
        problems: dict[str, str] = {}
        # A thread for each server, and two for calls in it that must run beside each other.
        with Threads(3 * len(urls)) as threads:
            each = partial(self._each, threads, urls, problems)
            each(partial(self._begin, threads, device))
            for chunk in parts:
                each(partial(self._send, threads, chunk))
                del chunk  # frees it before the next one is packed
            each(partial(self._finish, version))
        self._version = version
        return problems

    def _each(
        self,
        threads: Threads,
        urls: Sequence[str],
        problems: dict[str, str],
        step: Callable[[str], None],
    ) -> None:
        """Run a step at once for every server that has not failed."""
        futures = {url: threads.submit(step, url) for url in urls if url not in problems}
        for url, future in futures.items():
            try:
                future.result()
            except UserError as error:
                problems[url] = str(error)
            except (NoReplyError, NCCLError) as error:
                is_late = isinstance(error, NoReplyError) and error.kind == "timeouts"
                problems[url] = f"{url}: {error}{': start it again' * is_late}"
            if url in problems:
                self._leave(url)

    def _begin(self, threads: Threads, device: torch.device, url: str) -> None:
        version = self._read(url, "/weight_info", None, "weight_version")
        # Other clients must not sample with a part of the weights.
        self._ask(url, "/pause", {})
        is_member = url in self._groups and version == self._version
        if not is_member:
            self._leave(url)
            if version == INCOMPLETE:
                # Layers hold weights of a transfer that failed, and would count them with new ones.
                # Both requests may fail, if that update is active or a worker has ended it.
                for path in ("/start_weight_update", "/finish_weight_update"):
                    with suppress(NoReplyError):
                        self._ask(url, path, {})
            self._ask(url, "/shutdown_weight_transfer_engine", {})  # leaves an earlier group
        self._ask(url, "/update_weight_version", {"new_version": INCOMPLETE})
        try:
            self._ask(url, "/start_weight_update", {})
        except NoReplyError as error:
            with suppress(NoReplyError):
                self._ask(url, "/resume", {})
            advice = "start it with python -m rlmods.serve transfer=nccl"
            raise NoReplyError(f"{error}: {advice}") from error
        if not is_member:
            self._join(threads, device, url)

    def _join(self, threads: Threads, device: torch.device, url: str) -> None:
        size = 1 + self._read(url, "/get_world_size", None, "world_size")
        group_id = unique_id()
        info = {
            "nccl_unique_id_b64": base64.b64encode(group_id).decode(),
            "rank_offset": 1,
            "world_size": size,
            "packed": True,
            "packed_buffer_size_bytes": UNSPLIT_BYTES,
            "packed_num_buffers": 1,
        }
        # Each side waits for the other.
        reply = threads.submit(self._ask, url, "/init_weight_transfer_engine", {"init_info": info})
        joined = threads.submit(NCCLGroup, group_id, size, device)
        self._groups[url] = joined
        try:
            for call in as_completed((reply, joined), self._timeout_s):
                call.result()
        except TimeoutError as error:
            raise NoReplyError("it did not join within rollout.timeout_s", "timeouts") from error

    def _send(self, threads: Threads, chunk: Chunk, url: str) -> None:
        group = self._groups[url].result()
        deadline = time.monotonic() + self._timeout_s
        reply = threads.submit(self._ask, url, "/update_weights", {"update_info": chunk.info})
        begun = threads.submit(group.broadcast, chunk.packed)  # connects to the workers, and waits
        while not (begun.done() and group.is_done()):
            if reply.done():
                reply.result()  # raises if the server does not receive
            if time.monotonic() > deadline:
                raise NoReplyError("it did not receive within rollout.timeout_s", "timeouts")
            time.sleep(0.001)
        begun.result()
        reply.result()

    def _finish(self, version: str, url: str) -> None:
        self._ask(url, "/finish_weight_update", {})
        if not self._read(url, "/reset_prefix_cache", {}, "success"):
            raise NoReplyError("it did not drop the cached keys and values of the previous weights")
        self._ask(url, "/update_weight_version", {"new_version": version})
        self._ask(url, "/resume", {})

    def _read(self, url: str, path: str, body: Mapping[str, object] | None, name: str) -> Any:
        """Return a field of the reply to a request."""
        reply = self._ask(url, path, body)
        if not isinstance(reply, dict) or name not in reply:
            raise NoReplyError(f"its reply to {path} lacks {name}")
        return reply[name]

    def _leave(self, url: str) -> None:
        joined = self._groups.pop(url, None)
        if joined is not None:
            joined.add_done_callback(_abort)  # at once, or when a late join returns


def _abort(joined: Future[NCCLGroup]) -> None:
    if not joined.cancelled() and joined.exception() is None:
        joined.result().abort()
