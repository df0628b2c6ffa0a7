"""Sampling with vLLM servers, which may be on other machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlmods.errors import UserError, check_bounds
from rlmods.needs import RolloutNeeds
from rlmods.policy.base import Policy
from rlmods.rollout.encoding import Context, Continuation, check_settings
from rlmods.rollout.external import check_temperature, extend, generate, shared
from rlmods.rollout.servers import Servers
from rlmods.types import Prompt, Response


@dataclass
class VLLMServer:
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
    max_tokens: int = 16
    """Maximum number of tokens of a response, including EOS."""
    temperature: float = 1.0
    """Divides the logits. 0 is greedy; `behavior_logprobs` are then those of temperature 1 without
    truncation."""
    top_p: float = 1.0
    """Sample among the fewest tokens whose probability reaches this. 1: among all."""
    top_k: int = 0
    """Sample among this many most probable tokens. 0: among all."""
    stop: Sequence[str] = ()
    """A response ends with the token that completes one of these strings; the string is part of
    `tokens` and `text`."""
    seed: int = 0
    """Seed of the samples."""
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
    on_tokens: Callable[[int, int, int], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Called while sampling with the finished rows, all rows and the tokens of finished rows in
    this call of `generate`."""
    _policy: Policy | None = field(default=None, init=False, repr=False, compare=False)
    _occurrences: Counter[tuple[str, int]] = field(
        default_factory=Counter, init=False, repr=False, compare=False
    )

    @property
    def needs(self) -> RolloutNeeds:
        return RolloutNeeds(ahead=self.ahead == 1)

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
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
        check_settings(self)
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
        self._policy = policy
        self._occurrences.clear()
        self._servers.load(policy, iteration)

    def generate(
        self, prompts: Sequence[Prompt], *, samples: int, iteration: int
    ) -> list[Response]:
        """Return `samples` responses to each prompt, prompt-major.

        Raises:
            UserError: a prompt is empty or leaves no room for a response, the policy's logits are
            not finite, or the servers fail.
        """
        if (policy := self._policy) is None:
            raise RuntimeError("generate() before sync(): there is no policy to sample from")
        return generate(
            self,
            self._servers,
            policy,
            prompts,
            self._occurrences,
            samples=samples,
            iteration=iteration,
        )

    def extend(self, contexts: Sequence[Context], *, iteration: int) -> list[list[Continuation]]:
        """Return a continuation of each context for each of its samples.

        Raises:
            UserError: the policy's logits are not finite, or the servers fail.
        """
        if (policy := self._policy) is None:
            raise RuntimeError("extend() before sync(): there is no policy to sample from")
        return extend(self, self._servers, policy, contexts, iteration=iteration)

    @property
    def _servers(self) -> Servers:
        limits = (self.key_variable, self.timeout_s, self.retries, self.backoff_s, self.concurrency)
        return shared(
            ("vllm_server", self.urls, self.folder, limits),
            lambda: Servers(self.urls, self.folder, *limits),
        )
