"""Sampling with vLLM servers, which may be on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlmods.errors import UserError, check_bounds
from rlmods.needs import RolloutNeeds
from rlmods.policy.base import Policy
from rlmods.rollout.base import TokenRollout
from rlmods.rollout.encoding import Context, Continuation
from rlmods.rollout.external import check_temperature, extend, shared
from rlmods.rollout.servers import Servers


@dataclass
class VLLMServer(TokenRollout):
    """Samples with vLLM servers, each started by `python -m rlmods.serve policy=... port=...`
    before training.

    Prompts are distributed among the servers as these become free; prompts and responses are sent
    as token ids. `sync` writes the weights to files, from which every server loads them, and names
    their version, which each response repeats. A request that fails is repeated, then the server is
    left out until the next sync and its prompts go to the others. Responses depend on what those of
    `rollout=vllm` do.

    Raises: UserError for a field that is missing or out of range; while training, if no server is
    left, a server rejects a request, or one has other weights than it was given."""

    urls: Sequence[str] = ()
    """Addresses of the servers: [http://HOST:PORT, ...]."""
    folder: str | None = None
    """Folder for the weights, which the servers read: on a shared file system if they are on other
    machines. null: a temporary folder, in memory where the system has one."""
    key_variable: str | None = "VLLM_API_KEY"
    """Environment variable that holds the servers' API key. No key is sent if it is not set."""
    timeout_s: float = 600.0
    """Time limit of a request for the responses to one prompt, and of loading weights."""
    retries: int = 2
    """Number of further tries of a failed request on the same server."""
    backoff_s: float = 1.0
    """Pause before the first further try; it doubles with each."""
    concurrency: int = 64
    """Number of prompts in flight on each server."""
    ahead: int = 0
    """1: sample the next batch of prompts while this one is graded and trained on, with weights
    that are then one iteration old; 0: sample each batch when it is needed."""

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(ahead=self.ahead == 1)

    def __post_init__(self) -> None:
        self.urls = tuple((self.urls,) if isinstance(self.urls, str) else self.urls)
        if not self.urls or not all(
            isinstance(url, str) and url.startswith(("http://", "https://")) for url in self.urls
        ):
            raise UserError(
                "rollout=vllm_server needs addresses of servers: type "
                "'rollout.urls=[http://HOST:PORT]'"
            )
        if len(set(self.urls)) < len(self.urls):
            raise UserError("rollout.urls names a server twice: type each address once")
        super().__post_init__()
        check_temperature(self.temperature)
        rules = {
            "timeout_s": (self.timeout_s > 0, "above 0"),
            "retries": (self.retries >= 0, "0 or more"),
            "backoff_s": (self.backoff_s >= 0, "0 or more"),
            "concurrency": (self.concurrency >= 1, "at least 1"),
            "ahead": (self.ahead in (0, 1), "0 or 1"),
        }
        check_bounds(self, "rollout", rules)

    def sync(self, policy: Policy, *, iteration: int) -> None:
        """Send the policy's weights to every server. Every rank calls this; the first one sends."""
        super().sync(policy, iteration=iteration)
        self._servers.load(policy, iteration)

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite, or the servers fail.
        """
        policy = self.synced
        return extend(self, self._servers, policy, contexts, iteration=iteration)

    @property
    def _servers(self) -> Servers:
        limits = (self.key_variable, self.timeout_s, self.retries, self.backoff_s, self.concurrency)
        return shared(
            ("vllm_server", self.urls, self.folder, limits),
            lambda: Servers(self.urls, self.folder, *limits),
        )
