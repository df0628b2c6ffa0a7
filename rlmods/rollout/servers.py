"""vLLM servers with the same weights: distribution of prompts, failures, and transfer of
weights."""

from __future__ import annotations

import math
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlmods.distributed.collectives import all_gather, is_first_rank
from rlmods.errors import UserError
from rlmods.judge.chat import Endpoint, NoReplyError
from rlmods.policy.base import Policy
from rlmods.rollout.external import Completion, Progress, Request, Versions, full_weights
from rlmods.rollout.weight_folder import WeightFolder

FILE_BYTES = 1 << 30
"""Size from which on weights continue in another file, so that the first rank does not hold all of
them at once."""
UNSYNCED = "default"
"""Version that a server reports before it receives weights."""
POLL_S = 0.1
"""Time between two reports of progress, at which a run can also be interrupted."""

IDLE_S = 1.0
"""Time after which a thread without a prompt looks whether it should end."""


class Servers:
    """vLLM servers with the same weights (`rlmods.rollout.external.Engine`)."""

    def __init__(
        self,
        urls: Sequence[str],
        folder: str | None,
        key_variable: str | None,
        timeout_s: float,
        retries: int,
        backoff_s: float,
        concurrency: int,
    ) -> None:
        self.urls, self.folder, self.concurrency, self.timeout_s = (
            tuple(urls),
            folder,
            concurrency,
            timeout_s,
        )
        self.version = ""
        self._versions = Versions()
        self._available: tuple[str, ...] = ()
        """Servers with the current weights."""
        self._endpoint = partial(
            Endpoint,
            key_variable=key_variable,
            timeout_s=timeout_s,
            retries=retries,
            backoff_s=backoff_s,
            group="rollout",
        )

    def load(self, policy: Policy, iteration: int) -> None:
        ranks = all_gather(
            (self._versions.update(policy, iteration), self._available, self._versions.name)
        )
        (*_, version), changed = ranks[0], any(changed for changed, *_ in ranks)
        held = (
            []
            if changed
            else [url for url in self.urls if all(url in available for _, available, _ in ranks)]
        )
        if len(held) == len(self.urls):
            return
        targets = [url for url in self.urls if url not in held]
        folder, problem = self._write(policy)
        problems = dict.fromkeys(targets, problem) if problem else {}
        if folder is not None:
            try:
                if not problem:
                    with ThreadPoolExecutor(len(targets)) as threads:
                        found = threads.map(partial(self._load, folder.path, version), targets)
                        problems = {
                            url: text for url, text in zip(targets, found, strict=True) if text
                        }
            finally:
                folder.remove()
        problems, self.version = all_gather(problems)[0], version
        self._available = tuple(url for url in self.urls if url not in problems)
        if not self._available:
            self._versions.forget()
            raise UserError(
                f"rollout: no server has the weights: {'; '.join(dict.fromkeys(problems.values()))}"
            )
        if is_first_rank():
            for text in problems.values():
                warnings.warn(f"rollout: {text}: left out until the next iteration", stacklevel=2)

    def complete(self, requests: Sequence[Request], progress: Progress) -> list[list[Completion]]:
        """Each server takes prompts from one queue. A prompt whose request fails goes back into it,
        and a server whose tries of a prompt all failed takes no more."""
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(requests)):
            todo.put(i)
        replies: queue.SimpleQueue[_Reply] = queue.SimpleQueue()
        stops = {url: threading.Event() for url in self._available}
        done: dict[int, list[Completion]] = {}
        problems: dict[str, str] = {}
        for url, stop in stops.items():
            for _ in range(min(self.concurrency, len(requests))):
                # Daemons: Python does not wait for their requests when the run is interrupted.
                threading.Thread(
                    target=self._work, args=(url, requests, todo, replies, stop), daemon=True
                ).start()
        try:
            while len(done) < len(requests):
                progress(0, 0)
                try:
                    reply = replies.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                if isinstance(reply.result, Exception):
                    raise reply.result
                if isinstance(reply.result, str):
                    stops[reply.url].set()
                    problems[reply.url] = reply.result
                    if len(problems) == len(stops):
                        raise UserError(
                            f"rollout: no server is left for {len(requests) - len(done)} "
                            f"prompts: {'; '.join(problems.values())}"
                        )
                    todo.put(reply.index)
                else:
                    done[reply.index] = reply.result
                    progress(len(reply.result), sum(len(x.tokens) for x in reply.result))
        finally:
            for stop in stops.values():
                stop.set()
        for url, problem in problems.items():
            warnings.warn(
                f"rollout: {problem}: its prompts went to the others, and it is left out "
                "until the next iteration",
                stacklevel=2,
            )
            self._available = tuple(x for x in self._available if x != url)
        return [done[i] for i in range(len(requests))]

    def _work(
        self,
        url: str,
        requests: Sequence[Request],
        todo: queue.SimpleQueue[int],
        replies: queue.SimpleQueue[_Reply],
        stop: threading.Event,
    ) -> None:
        """Complete prompts of the queue on one server until `stop` is set."""
        endpoint = self._endpoint(url, path="/inference/v1/generate")
        while not stop.is_set():
            try:
                index = todo.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            result: list[Completion] | str | Exception
            try:
                result = self._request(endpoint, requests[index], stop)
            except NoReplyError as error:
                result = f"{url}: {error}"
            except Exception as error:  # the main thread raises it
                result = error
            replies.put(_Reply(url, index, result))

    def _request(
        self, endpoint: Endpoint, request: Request, stop: threading.Event
    ) -> list[Completion]:
        body = {"token_ids": list(request.tokens), "sampling_params": request.settings}
        for attempt in range(endpoint.retries + 1):
            try:
                choices = sorted(
                    _post(endpoint, body)["choices"], key=lambda choice: choice["index"]
                )
                completions = [_completion(choice) for choice in choices]
                if any(UNSYNCED in x.versions for x in completions):
                    raise NoReplyError("it was started again and has no weights yet", final=True)
                return completions
            except NoReplyError as error:
                if (
                    not endpoint.wait(error, attempt, time.monotonic() + self.timeout_s, stop)
                    or stop.is_set()
                ):
                    raise
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                advice = "start it with python -m rlmods.serve"
                raise UserError(
                    f"rollout: {endpoint.url}: its reply lacks tokens, log-probabilities or "
                    f"versions: {advice}"
                ) from error
        raise AssertionError("unreachable")

    # Weights

    def _write(self, policy: Policy) -> tuple[WeightFolder | None, str]:
        """Write the weights to a new folder. Returns it, None on other ranks than the first, and
        the problem if it is incomplete. Every rank takes part, also after an error of the first
        one: it gathers sharded weights."""
        folder, problem = None, ""
        if is_first_rank():
            try:
                folder = WeightFolder.create(
                    self.folder, sum(x.nbytes for x in policy.parameters())
                )
            except OSError as error:
                problem = (
                    f"{error.filename} cannot be written ({error.strerror}): type "
                    "rollout.folder=FOLDER"
                )
        for i, part in enumerate(_parts(policy)):
            if folder is not None and not problem:
                try:
                    save_file(part, folder.path / f"model-{i:05d}.safetensors")
                except (OSError, SafetensorError) as error:
                    reason = " ".join(str(error).split())[:160]
                    problem = (
                        f"{folder.path} cannot be written ({reason}): type rollout.folder=FOLDER "
                        "with room for the weights"
                    )
        return folder, problem

    def _load(self, folder: Path, version: str, url: str) -> str | None:
        """Make a server load the weights in a folder. Returns the problem if it does not, None if
        it does."""
        calls: tuple[tuple[str, dict[str, Any]], ...] = (
            (
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
            ),
            ("/reset_prefix_cache", {}),
            ("/update_weight_version", {"new_version": version}),
        )
        stop = threading.Event()
        for path, body in calls:
            endpoint = self._endpoint(url, path=path)
            for attempt in range(endpoint.retries + 1):
                try:
                    reply = _post(endpoint, body)
                    if isinstance(reply, dict) and reply.get("success") is False:
                        raise NoReplyError(
                            "it did not drop the cached keys and values of the previous weights"
                        )
                    break
                except (NoReplyError, UserError) as error:
                    if isinstance(error, UserError):
                        return str(error)
                    if not endpoint.wait(error, attempt, time.monotonic() + self.timeout_s, stop):
                        return f"{url}: {error}"
        return None


@dataclass(frozen=True, slots=True)
class _Reply:
    """Result of one prompt on one server: its responses, a problem of the server, or an error that
    ends the run."""

    url: str
    index: int
    result: list[Completion] | str | Exception


def _post(endpoint: Endpoint, body: dict[str, Any]) -> Any:
    """Return the reply to a request.

    Raises:
        NoReplyError: there is none, which may be temporary.
        UserError: the server rejects the request, and would again.
    """
    try:
        return endpoint.post(body)
    except NoReplyError as error:
        if not error.final:
            raise
        advice = {
            401: f"its key is not accepted: export {endpoint.key_variable}=KEY",
            403: f"it does not serve {endpoint.path}: start it with python -m rlmods.serve",
            404: f"it does not serve {endpoint.path}: start it with python -m rlmods.serve",
        }.get(
            error.status or 0,
            str(error).replace("rollout.url=http://HOST/v1", "'rollout.urls=[http://HOST:PORT]'"),
        )
        raise UserError(f"rollout: {endpoint.url}: {advice}") from error


def _completion(choice: Any) -> Completion:
    values = [position["logprob"] for position in choice["logprobs"]["content"]]
    return Completion(
        tokens=[int(i) for i in choice["token_ids"]],
        logprobs=[math.nan if x is None else float(x) for x in values],
        finish=choice["finish_reason"],
        versions=tuple(str(span["version"]) for span in choice["weight_versions"]),
    )


def _parts(policy: Policy) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in parts of about `FILE_BYTES`, on the CPU of the first rank."""
    part, size, first = dict[str, Tensor](), 0, is_first_rank()
    for name, x in full_weights(policy):
        if not first:
            continue
        if size and size + x.nbytes > FILE_BYTES:
            yield part
            part, size = {}, 0
        # a copy, as a file cannot hold tied weights
        part[name], size = x.to("cpu", copy=True).contiguous(), size + x.nbytes
    yield part
