"""Sampling with vLLM servers, which may be on other machines."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlmods.distributed.collectives import all_gather, is_first_rank
from rlmods.distributed.sharding import FullState, device_of
from rlmods.errors import UserError, in_one_line
from rlmods.judge.chat import Endpoint, NoReplyError
from rlmods.needs import RolloutNeeds
from rlmods.policy.adapted import ADAPTER_WEIGHTS, AdaptedPolicy
from rlmods.policy.base import Policy
from rlmods.rollout.base import Context, Continuation, Progress, TokenRollout
from rlmods.rollout.broadcast import Broadcast, chunks
from rlmods.rollout.external import (
    Completion,
    Request,
    Temperature,
    Versions,
    extend,
    full_weights,
    shared,
)
from rlmods.rollout.nccl import library
from rlmods.rollout.turns import Threads
from rlmods.settings.bounds import Count, NonNegative, NonNegativeInt, Positive


@dataclass
class VLLMServer(TokenRollout):
    """Samples with vLLM servers, each started by `python -m rlmods.serve policy=... port=...`
    before training.

    Prompts are distributed among the servers as these become free; prompts and responses are sent
    as token ids. `sync` sends the weights, in files or by NCCL, and names their version, which each
    response repeats. A request that fails is repeated, then the server is left out until the next
    sync and its prompts go to the others. Responses depend on what those of `rollout=vllm` do.

    Raises: UserError for a field that is missing; while training, if no server is
    left, a server rejects a request, or one has other weights than it was given."""

    temperature: Temperature = 1.0
    """Temperature of the samples; 0: greedy."""
    urls: Sequence[str] = ()
    """Addresses of the servers: [http://HOST:PORT, ...]."""
    transfer: Literal["files", "nccl"] = "files"
    """How the weights are sent. files: in files in `folder`; nccl: from the GPU of rank 0 to the
    GPUs of the servers, which were started with `transfer=nccl`."""
    folder: str | None = None
    """Folder for the weights with transfer=files, which the servers read: on a shared file system
    if they are on other machines. null: a temporary folder, in memory where the system has one."""
    key_variable: str | None = "VLLM_API_KEY"
    """Environment variable that holds the servers' API key. No key is sent if it is not set."""
    timeout_s: Positive = 600.0
    """Time limit of a request for the responses to one prompt, and of loading weights. With
    transfer=nccl: of joining, and of receiving each chunk."""
    retries: NonNegativeInt = 2
    """Number of further tries of a failed request on the same server."""
    backoff_s: NonNegative = 1.0
    """Pause before the first further try; it doubles with each."""
    concurrency: Count = 64
    """Number of prompts in flight on each server."""
    ahead: Literal[0, 1] = 0
    """1: sample the next batch of prompts while this one is graded and trained on, with weights
    that are then one iteration old; 0: sample each batch when it is needed."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the weights that are sent, but for an adapter that is sent alone: type the data
    type of the servers, which halves the bytes of a policy in float32. null: the policy's own."""
    adapter_only: bool = False
    """With adapter=lora: send the adapter alone. The servers have the base, which they were started
    with, and add the adapter while they sample: start them with `lora_rank=RANK`. false: send the
    merged weights."""

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(ahead=self.ahead == 1)

    def __post_init__(self) -> None:
        self.urls = (self.urls,) if isinstance(self.urls, str) else tuple(dict.fromkeys(self.urls))
        if not self.urls or not all(
            isinstance(url, str) and url.startswith(("http://", "https://")) for url in self.urls
        ):
            raise UserError(
                "rollout=vllm_server needs addresses of servers: type "
                "'rollout.urls=[http://HOST:PORT]'"
            )
        if self.adapter_only and self.transfer == "nccl":
            raise UserError(
                "rollout.adapter_only=true sends an adapter, which vLLM reads from a file: type "
                "rollout.transfer=files"
            )
        super().__post_init__()

    def check_policy(self, policy: Policy) -> None:
        """Check that there is an adapter if it alone is to be sent, and NCCL if it is to be used.

        Raises:
            UserError: there is none.
        """
        if self.transfer == "nccl":
            library()
        if self.adapter_only and not isinstance(policy, AdaptedPolicy):
            raise UserError(
                "rollout.adapter_only=true sends an adapter, and the policy has none: type "
                "adapter=lora or rollout.adapter_only=false"
            )

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Send the policy's weights to every server. Every rank calls this; the first one sends."""
        super().sync(policy, iteration=iteration)
        self._servers.load(policy, iteration)

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite, or the servers fail.
        """
        return extend(self, self._servers, contexts, iteration=iteration)

    @property
    def _servers(self) -> Servers:
        limits = (self.timeout_s, self.retries, self.backoff_s, self.concurrency)
        sent = (self.transfer, self.folder, self.dtype, self.adapter_only)
        key = ("vllm_server", self.urls, self.key_variable, *sent, *limits)
        return shared(key, lambda: Servers(replace(self)))


FILE_BYTES = 1 << 30
"""Size from which on weights continue in another file, so that the first rank does not hold all of
them at once."""
UNSYNCED = "default"
"""Version that a server reports before it receives weights."""
POLL_S = 0.1
"""Time between two reports of progress, at which a run can also be interrupted."""
MEMORY = Path("/dev/shm")
"""File system in memory, where the system has one."""
PREFIX = "rlmods-weights-"
MAX_AGE_S = 3600.0
"""Age of a folder in memory from which on its process was killed: no transfer takes as long."""
INFO_S = 10.0
"""Time limit of a request for a server's version. A server whose workers hang does not answer."""
REPEATABLE = (
    *("/weight_info", "/get_world_size", "/pause", "/resume"),
    *("/reset_prefix_cache", "/update_weight_version"),
)
"""Requests of a transfer by NCCL that may be received twice."""
T = TypeVar("T")
Call = tuple[str, Mapping[str, object], Callable[[Endpoint, bytes], None]]
"""Path of a request for new weights, its body, and the check of its reply."""


class Servers:
    """vLLM servers with the same weights (`rlmods.rollout.external.Engine`)."""

    def __init__(self, settings: VLLMServer) -> None:
        self.settings = settings
        self.version = ""
        self._versions = Versions()
        self._available: tuple[str, ...] = ()
        """Servers with the current weights."""
        self._broadcast = Broadcast(self._request, settings.timeout_s)

    def load(self, policy: Policy, iteration: int) -> None:
        """Send the weights to every server that does not have them. Every rank calls this."""
        is_changed = self._versions.update(policy, iteration)
        ranks = all_gather((is_changed, self._available, self._versions.name))
        targets = list(self.settings.urls)
        if not any(changed for changed, _, _ in ranks):
            held = set.intersection(*(set(available) for _, available, _ in ranks))
            targets = [url for url in targets if url not in held]
        if not targets:
            return
        self.version = ranks[0][2]
        send = self._send_by_nccl if self.settings.transfer == "nccl" else self._send_in_files
        problems = all_gather(send(policy, targets))[0]
        self._available = tuple(url for url in self.settings.urls if url not in problems)
        if not self._available:
            self._versions.forget()
            texts = dict.fromkeys(problems.values())
            raise UserError(f"rollout: no server has the weights: {'; '.join(texts)}")
        if is_first_rank():
            for text in problems.values():
                warnings.warn(f"rollout: {text}: left out until the next iteration", stacklevel=2)

    def complete(self, requests: Sequence[Request], progress: Progress) -> list[list[Completion]]:
        """Servers get prompts as they become free. A prompt whose request fails goes to another
        one, and a server whose tries of a prompt all failed gets no more."""
        todo = list(range(len(requests)))
        free = list(self._available) * self.settings.concurrency
        stops = {url: threading.Event() for url in self._available}
        running: dict[Future[list[Completion]], tuple[str, int]] = {}
        done: dict[int, list[Completion]] = {}
        problems: dict[str, str] = {}
        # Daemons: Python does not wait for their requests when the run is interrupted.
        with Threads(len(free)) as threads:
            try:
                while len(done) < len(requests):
                    while free and todo:
                        url = free.pop(0)
                        index = todo.pop(0)
                        future = threads.submit(self._respond, url, requests[index], stops[url])
                        running[future] = (url, index)
                    progress(0, 0)
                    for future in wait(running, POLL_S, FIRST_COMPLETED).done:
                        url, index = running.pop(future)
                        try:
                            rows = future.result()
                        except NoReplyError as error:
                            stops[url].set()
                            problems[url] = f"{url}: {error}"
                            todo.append(index)
                        else:
                            done[index] = rows
                            progress(len(rows), sum(len(x.tokens) for x in rows))
                            free.append(url)
                    free = [url for url in free if url not in problems]
                    if len(problems) == len(stops):
                        raise UserError(
                            f"rollout: no server is left for {len(requests) - len(done)} "
                            f"prompts: {'; '.join(problems.values())}"
                        )
            finally:
                for stop in stops.values():
                    stop.set()
        for problem in problems.values():
            warnings.warn(
                f"rollout: {problem}: its prompts went to the others, and it is left out "
                "until the next iteration",
                stacklevel=2,
            )
        self._available = tuple(url for url in self._available if url not in problems)
        return [done[i] for i in range(len(requests))]

    def _respond(self, url: str, request: Request, stop: threading.Event) -> list[Completion]:
        tokens, settings = request
        body: dict[str, object] = {"token_ids": tokens, "sampling_params": settings}
        if self.settings.adapter_only:
            body["model"] = self.version
        endpoint = self._endpoint(url, "/inference/v1/generate")
        try:
            return self._ask(endpoint, body, _completions, stop)
        except UserError as error:
            cause = error.__cause__
            if isinstance(cause, NoReplyError) and cause.status == 404 and "model" in body:
                reason = "it was started again and has no adapter yet"
                raise NoReplyError(reason, final=True) from error
            raise

    def _endpoint(self, url: str, path: str) -> Endpoint:
        settings = self.settings
        return Endpoint(
            url,
            settings.key_variable,
            settings.timeout_s,
            settings.retries,
            settings.backoff_s,
            path,
            group="rollout",
        )

    def _ask(
        self,
        endpoint: Endpoint,
        body: Mapping[str, object] | None,
        read: Callable[[Endpoint, bytes], T],
        stop: threading.Event,
    ) -> T:
        """Return what `read` makes of the reply. Failed requests are repeated.

        Raises:
            NoReplyError: all tries failed, or the last before `stop`.
            UserError: the server rejects the request, or its reply cannot be read.
        """
        for attempt in count():
            try:
                return read(endpoint, _post(endpoint, body))
            except NoReplyError as error:
                deadline = time.monotonic() + self.settings.timeout_s
                if not endpoint.wait(error, attempt, deadline, stop) or stop.is_set():
                    raise
        raise AssertionError("unreachable")

    def _request(self, url: str, path: str, body: Mapping[str, object] | None) -> Any:
        """As `_ask`. A request without a body is a GET request."""
        endpoint = self._endpoint(url, path)
        if path not in REPEATABLE:
            endpoint = replace(endpoint, retries=0)
        if path == "/weight_info":
            endpoint = replace(endpoint, timeout_s=min(INFO_S, endpoint.timeout_s))
        return self._ask(endpoint, body, Endpoint.parse, threading.Event())

    def _send_by_nccl(self, policy: Policy, urls: Sequence[str]) -> dict[str, str]:
        """Send the weights to these servers from the first rank. Returns the problem of each server
        that does not have them. Every rank takes part: it gathers sharded weights."""
        device = device_of(policy.model)
        dtype = getattr(torch, self.settings.dtype or "", None)
        targets = urls if is_first_rank() else []
        parts = chunks(full_weights(policy), dtype, device)
        return self._broadcast.send(parts, targets, self.version, device)

    def _send_in_files(self, policy: Policy, urls: Sequence[str]) -> dict[str, str]:
        """Write the weights to a new folder, and make these servers load them. Returns the problem
        of each server that did not. Every rank takes part, also after an error of the first one: it
        gathers sharded weights."""
        folder = None
        problem = ""
        sent = policy.parameters()
        dtype = getattr(torch, self.settings.dtype or "", None)
        files = _model_files(policy, dtype)
        adapter = None
        if self.settings.adapter_only and isinstance(policy, AdaptedPolicy):
            adapter = policy.config
            sent = iter(policy.trainable_tensors().values())
            files = _adapter_files(policy)
        itemsize = None if dtype is None or adapter is not None else dtype.itemsize
        size = sum(x.numel() * (itemsize or x.itemsize) for x in sent)
        for name, part in files:
            if problem or not is_first_rank():
                continue
            try:
                folder = folder or create_folder(self.settings.folder, size)
                if adapter is not None:
                    adapter.save_pretrained(folder)
                save_file(part, folder / name)
            except (OSError, SafetensorError) as error:
                problem = (
                    f"the weights cannot be written ({in_one_line(error, 160)}): type "
                    "rollout.folder=FOLDER with room for them"
                )
        try:
            if problem or folder is None:
                return dict.fromkeys(urls, problem) if problem else {}
            with ThreadPoolExecutor(len(urls)) as threads:
                found = list(threads.map(partial(self._load, str(folder)), urls))
            return {url: text for url, text in zip(urls, found, strict=True) if text}
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _load(self, folder: str, url: str) -> str:
        """Make a server load the weights in a folder. Returns the problem, or ""."""
        reload = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        transfer: Call = ("/collective_rpc", reload, _check_success)
        if self.settings.adapter_only:
            # A new name each time: vLLM reads an adapter that is replaced in place again from its
            # folder, with each request. It keeps the last one in memory.
            adapter = {"lora_name": self.version, "lora_path": folder}
            transfer = ("/v1/load_lora_adapter", adapter, _check_loaded)
        calls: list[Call] = [
            transfer,
            ("/reset_prefix_cache", {}, _check_success),
            ("/update_weight_version", {"new_version": self.version}, _check_success),
        ]
        try:
            for path, body, check in calls:
                try:
                    self._ask(self._endpoint(url, path), body, check, threading.Event())
                except UserError as error:
                    # A repeated call, as the reply to the first was lost.
                    if "has already been loaded" not in str(error.__cause__):
                        raise
        except UserError as error:
            return str(error)
        except NoReplyError as error:
            return f"{url}: {error}"
        return ""


def _post(endpoint: Endpoint, body: Mapping[str, object] | None) -> bytes:
    """Return the reply to a request: a GET request if there is no body.

    Raises:
        NoReplyError: there is none, which may be temporary.
        UserError: the server rejects the request, and would again.
    """
    try:
        return endpoint.send(None if body is None else dict(body))
    except NoReplyError as error:
        if not error.final:
            raise
        reason = f"HTTP {error.status}" if error.status else str(error)
        raise UserError(
            f"rollout: {endpoint.url}: {reason}: start it with python -m rlmods.serve, and export "
            f"{endpoint.key_variable}=KEY if it has a key"
        ) from error


def _completions(endpoint: Endpoint, content: bytes) -> list[Completion]:
    """Return the responses of a reply, in their order.

    Raises:
        NoReplyError: the server has no weights yet, or the reply is not JSON.
        UserError: the reply is not one to this request.
    """
    reply = endpoint.parse(content)
    try:
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        completions = list(map(_completion, choices))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"rollout: {endpoint.url}: its reply lacks tokens, log-probabilities or versions: "
            "start it with python -m rlmods.serve"
        ) from error
    if any(UNSYNCED in completion.versions for completion in completions):
        raise NoReplyError("it was started again and has no weights yet", final=True)
    return completions


def _completion(choice: Any) -> Completion:
    values = [position["logprob"] for position in choice["logprobs"]["content"]]
    return Completion(
        tokens=[int(i) for i in choice["token_ids"]],
        logprobs=[math.nan if x is None else float(x) for x in values],
        finish=choice["finish_reason"],
        versions=tuple(str(span["version"]) for span in choice["weight_versions"]),
    )


def _check_loaded(endpoint: Endpoint, content: bytes) -> None:
    if not content.startswith(b"Success"):
        text = content.decode(errors="replace")
        raise NoReplyError(f"it did not load the adapter: {in_one_line(text, 160)}")


def _check_success(endpoint: Endpoint, content: bytes) -> None:
    reply = endpoint.parse(content)
    if isinstance(reply, dict) and reply.get("success") is False:
        raise NoReplyError("it did not drop the cached keys and values of the previous weights")


def _adapter_files(policy: AdaptedPolicy) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the name and the tensors of the adapter's file, on the CPU of the first rank."""
    tensors = policy.adapter_file(FullState(policy.model))
    yield ADAPTER_WEIGHTS, tensors


def _model_files(
    policy: Policy, dtype: torch.dtype | None
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the names and the tensors of files of about `FILE_BYTES`, on the CPU of the first rank,
    floating-point ones in this data type (None: as they are)."""
    part: dict[str, Tensor] = {}
    size = 0
    num_files = 0
    is_first = is_first_rank()
    for name, x in full_weights(policy):
        if not is_first:
            continue
        if dtype is not None and x.is_floating_point():
            x = x.to(dtype)  # on the GPU, before the copy
        if size and size + x.nbytes > FILE_BYTES:
            yield f"model-{num_files:05d}.safetensors", part
            part = {}
            size = 0
            num_files += 1
        part[name] = x.to("cpu", copy=True).contiguous()  # a file cannot hold tied weights
        size += x.nbytes
    yield f"model-{num_files:05d}.safetensors", part


def create_folder(parent: str | None, size: int) -> Path:
    """Create a folder for `size` bytes: in `parent`, by default in memory if there is room, else in
    the system's temporary folder. What killed processes left in memory is removed first.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(parent or gettempdir())
    if parent is None and os.access(MEMORY, os.W_OK):
        for path in MEMORY.glob(f"{PREFIX}*"):
            if time.time() - path.lstat().st_mtime > MAX_AGE_S:
                shutil.rmtree(path, ignore_errors=True)
        if shutil.disk_usage(MEMORY).free > 1.1 * size:
            place = MEMORY
    place.mkdir(parents=True, exist_ok=True)
    path = Path(mkdtemp(prefix=PREFIX, dir=place))
    path.chmod(0o755)
    return path
