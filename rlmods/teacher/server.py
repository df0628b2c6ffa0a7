"""A model behind an OpenAI-compatible server as the teacher."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from rlmods.errors import UserError
from rlmods.judge.chat import Endpoint, NoReplyError, as_user_error
from rlmods.policy import Policy
from rlmods.policy.files import NO_CODE
from rlmods.policy.hf import check_vocabulary
from rlmods.policy.text import TokenizerMixin
from rlmods.run.hub import check_hub
from rlmods.settings.bounds import Count, NonNegative, NonNegativeInt, Positive, bounded
from rlmods.teacher.demonstration import Demonstrated

Row = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of a response to it."""


@dataclass(frozen=True, kw_only=True)
@bounded("teacher")
class Server(Demonstrated):
    """A model behind the completions endpoint of an OpenAI-compatible server that returns
    log-probabilities of the tokens of its prompt.

    One request per response sends the ids of prompt and response, so that nothing is tokenized
    again, and reads the log-probabilities of the response's ids. Their temperature is 1. A
    request that fails is repeated after a pause that doubles with each try.

    Raises: UserError for a field that is missing or out of range; when the policy is loaded, if the
    tokenizer does not exist or has another vocabulary; while training, if the server rejects a
    request, all tries fail, or a reply lacks log-probabilities."""

    url: str | None = None
    """Address of the server: http://HOST/v1."""
    model: str | None = None
    """Model name on the server."""
    tokenizer: str | None = None
    """Hub name or directory of the model's tokenizer, which must have the policy's vocabulary;
    null: `model`."""
    api: Literal["prompt_logprobs", "echo"] = "prompt_logprobs"
    """Request field: `prompt_logprobs` (vLLM), whose reply names the ids and is checked, or `echo`
    with `logprobs` (other servers)."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the API key. No key is sent if it is not set."""
    timeout_s: Positive = 120.0
    """Time limit of a request, from connecting to the last byte of the reply."""
    deadline_s: Positive = 600.0
    """Time limit of a response, with all tries of its request and the pauses between them."""
    retries: NonNegativeInt = 4
    """Number of further tries of a failed request."""
    backoff_s: NonNegative = 1.0
    """Pause before the first further try; it doubles with each."""
    concurrency: Count = 16
    """Number of requests in flight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url or not self.model:
            raise UserError(
                "teacher=server needs an address and a model: type "
                "teacher.url=http://HOST/v1 teacher.model=NAME"
            )

    def __call__(self, policy: Policy) -> None:
        """Check the tokenizer. There is no network in this process."""
        from transformers import AutoTokenizer

        class Model(TokenizerMixin):
            pass

        source = self.tokenizer or str(self.model)
        model = Model()
        check_hub(source)
        try:
            model.tokenizer = AutoTokenizer.from_pretrained(source, **NO_CODE)
        except (OSError, ValueError) as error:
            advice = "type teacher.tokenizer=HUB_NAME_OR_DIRECTORY"
            raise UserError(
                f"teacher: the tokenizer {source!r} cannot be loaded, to compare its "
                f"vocabulary with the policy's: {advice}"
            ) from error
        check_vocabulary(model, policy, "teacher")

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Return the log-probability of each response token of each row."""
        stop = threading.Event()
        with ThreadPoolExecutor(self.concurrency) as threads:
            try:
                return list(threads.map(lambda row: self._request(row, stop), rows))
            finally:
                stop.set()  # after an error no thread waits for the end of its pause

    def _request(self, row: Row, stop: threading.Event) -> list[float]:
        prompt, response = row
        asked = {"echo": True, "logprobs": 1} if self.api == "echo" else {"prompt_logprobs": 1}
        body = {
            "model": self.model,
            "prompt": [*prompt, *response],
            "max_tokens": 1,
            "temperature": 1.0,
            **asked,
        }
        deadline = time.monotonic() + self.deadline_s
        for attempt in range(self.retries + 1):
            if stop.is_set():
                break
            try:
                return self._read(self._endpoint.post(body, deadline), row)
            except NoReplyError as error:
                if not self._endpoint.wait(error, attempt, deadline, stop):
                    stop.set()
                    raise as_user_error(
                        self._endpoint, error, attempt, "check the server"
                    ) from error
            except UserError:
                stop.set()
                raise
        raise UserError(
            f"teacher.url={self.url}: stopped, because another request failed: check the server"
        )

    def _read(self, reply: Any, row: Row) -> list[float]:
        """Return the log-probabilities of the response's tokens in a reply.

        Raises:
            UserError: the server did not return them, or not for these tokens.
        """
        prompt, response = row
        start = len(prompt)
        end = start + len(response)
        try:
            choice = reply["choices"][0]
            if self.api == "echo":
                found = choice["logprobs"]["token_logprobs"][start:end]
            else:
                entries = choice.get("prompt_logprobs") or reply["prompt_logprobs"]
                found = [
                    entry[str(i)]["logprob"]
                    for entry, i in zip(entries[start:end], response, strict=True)
                ]
            values = list(map(float, found))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            other = "echo" if self.api == "prompt_logprobs" else "prompt_logprobs"
            raise UserError(
                f"teacher.url={self.url}: the reply has no log-probabilities of the given "
                f"tokens: type teacher.api={other}, or another server"
            ) from error
        if len(values) != len(response) or not all(isfinite(x) and x <= 1e-3 for x in values):
            raise UserError(
                f"teacher.url={self.url}: the reply has {len(values)} log-probabilities for "
                f"{len(response)} tokens, or invalid ones"
            )
        return values

    @cached_property
    def _endpoint(self) -> Endpoint:
        limits = (self.timeout_s, self.retries, self.backoff_s)
        return Endpoint(
            str(self.url), self.key_variable, *limits, path="/completions", group="teacher"
        )
