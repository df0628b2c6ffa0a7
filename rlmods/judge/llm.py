"""A language model as a judge (RLAIF)."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

from rlmods.judge.chat import Endpoint, NoReplyError
from rlmods.judge.question import RATING, TEMPLATE, ask, ask_rating, names, read_rating, read_verdict
from rlmods.judge.scored import Pair
from rlmods.run.jsonl import JsonlWriter, read_rows
from rlmods.types import Prompt, UserError

LONGEST_PAUSE_S = 600.0
"""Between two tries, whatever the server asks for."""


@dataclass(frozen=True)
class LLM:
    """Asks a model behind an OpenAI-compatible endpoint which response is better (RLAIF, arXiv 2309.00267).

    With `swap` each pair is asked in both orders: the verdict where both agree, a tie where they do not (all that a judge with a bias for
    a position comes to), None where either has none. Equal texts are a tie, unasked.

    The verdict is the last word of the reply's last line: A, B or TIE. A reply without one is asked for again. So is one that does not come
    (timeouts, connections, HTTP 429 and 5xx, what is no chat completion), after a pause that doubles. A question has `retries` + 1 tries
    in all; then no verdict is None, and no reply a UserError. A refusal of key, address, model or request is a UserError at once.

    Raises: UserError for a field that is missing or out of range.
    """

    url: str | None = None
    """Address of the endpoint: http://HOST/v1."""
    model: str | None = None
    """Name that the server knows the model by."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the key. Where it is not set, none is sent."""
    template: str | None = None
    """What is asked, with {prompt}, {first}, {second} and, if wanted, {answer}, the gold answer ("" without one); literal braces are
    written twice. null: `rlmods.judge.question.TEMPLATE`, which does not tell the answer."""
    temperature: float | None = 0.0
    """Of the judge's sampling. null: the server's."""
    max_tokens: int | None = 512
    """Tokens of a reply at most. null: the server's."""
    swap: bool = True
    """Ask in both orders."""
    timeout_s: float = 60.0
    """Without a sign of the server."""
    retries: int = 4
    """Tries after the first."""
    backoff_s: float = 1.0
    """Pause before the second try, less a random half of it; doubled with each. The server's Retry-After counts where it is longer."""
    concurrency: int = 8
    """Requests at once."""
    cache: str | None = None
    """JSON Lines file that each reply is added to as it comes, and that answers what was asked before. null: none."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Events so far: `requests`, `retries` among them, replies `without_verdict`, `cached` questions, `swayed` pairs (by their order)."""
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.url is None or not self.url.startswith(("http://", "https://")):
            raise UserError(f"judge.url={self.url}: judge=llm needs the address of an endpoint: judge.url=http://HOST/v1")
        if self.model is None:
            raise UserError("judge=llm needs the name of a model that the server knows: judge.model=NAME")
        rules = {
            "temperature": (self.temperature is None or self.temperature >= 0, "null, 0 or more"),
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "null or at least 1"),
            "timeout_s": (self.timeout_s > 0, "above 0"),
            "retries": (self.retries >= 0, "0 or more"),
            "backoff_s": (self.backoff_s >= 0, "0 or more"),
            "concurrency": (self.concurrency >= 1, "at least 1"),
        }
        for name, (valid, wanted) in rules.items():
            if not valid:
                raise UserError(f"judge.{name}={getattr(self, name)}: must be {wanted}")
        names(self.template or TEMPLATE)

    @property
    def needs_answer(self) -> bool:
        """Whether it is told the gold answer."""
        return "answer" in names(self.template or TEMPLATE)

    def __call__(self, prompt: Prompt, first: str, second: str) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """A verdict a pair. All questions are asked side by side, none of them twice."""
        orders = [[(p, a, b), (p, b, a)][: 1 + self.swap] if a != b else [] for p, a, b in pairs]
        questions = [[ask(self.template or TEMPLATE, *order) for order in both] for both in orders]
        found = self._found((question for both in questions for question in both), read_verdict)
        return [self._settled([found[question] for question in both]) for both in questions]

    def rate(self, rows: Sequence[tuple[Prompt, str]], template: str = RATING) -> list[float | None]:
        """How good each response is by itself, 0 to 1; None where no try brought a rating."""
        questions = [ask_rating(template, *row) for row in rows]
        found = self._found(questions, read_rating)
        return [found[question] for question in questions]

    def _found(self, questions: Iterable[str], read: Callable[[str], float | None]) -> dict[str, float | None]:
        """What is said to each question, asked side by side and none of them twice."""
        wanted, stop, replies = dict.fromkeys(questions), threading.Event(), self._replies
        with ThreadPoolExecutor(self.concurrency) as threads:
            try:
                return dict(zip(wanted, threads.map(partial(self._verdict, replies, stop, read), wanted), strict=True))
            finally:
                stop.set()  # after Ctrl-C nobody waits for a pause to end

    def _settled(self, verdicts: Sequence[float | None]) -> float | None:
        """One verdict out of those in the given and in the other order; without any, the texts are equal."""
        turned = [v if i == 0 or v is None else 1 - v for i, v in enumerate(verdicts)]
        if None in turned:
            return None
        if len(set(turned)) > 1:
            self._count("swayed")
        return turned[0] if len(set(turned)) == 1 else 0.5

    def _verdict(
        self, replies: dict[str, list[float | None]], stop: threading.Event, read: Callable[[str], float | None], question: str
    ) -> float | None:
        """What `read` makes of the reply, None where no try brought a verdict. `replies`: verdicts of those that came, by key."""
        body = self._body(question)
        key = hashlib.sha256(json.dumps([self.url, body]).encode()).hexdigest()
        known = replies.setdefault(key, [])
        tries = range(0) if known and known[-1] is not None else range(len(known), self.retries + 1)
        if not tries:
            self._count("cached")
        for attempt in tries:
            reply = None if stop.is_set() else self._reply(body, attempt, stop)
            if reply is None:
                continue
            known.append(read(reply))
            if self._journal is not None:
                self._journal.append({"key": key, "question": question, "reply": reply, "verdict": known[-1]})
            if known[-1] is not None:
                break
            self._count("without_verdict")
        return known[-1] if known else None

    def _reply(self, body: dict[str, Any], attempt: int, stop: threading.Event) -> str | None:
        """None, after a pause, where it did not come.

        Raises:
            UserError: nor did it at the last try, or it was refused. Then nobody asks any more.
        """
        self._count("requests", *(["retries"] if attempt else []))
        try:
            return self._endpoint.reply(body)
        except UserError:
            stop.set()
            raise
        except NoReplyError as error:
            if attempt == self.retries:
                stop.set()
                kept = f"what was said is kept in {self.cache}" if self.cache else "judge.cache=FILE keeps what was said"
                tries = f"after {attempt + 1} tries: look at the server, or type judge.retries=10; {kept}"
                raise UserError(f"judge.url={self.url}: {error} ({tries})") from error
            pause = self.backoff_s * 2**attempt * self._random.uniform(0.5, 1.0)
            stop.wait(min(max(pause, error.retry_after_s or 0.0), LONGEST_PAUSE_S))
            return None

    def _body(self, question: str) -> dict[str, Any]:
        limits = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        given = {name: value for name, value in limits.items() if value is not None}
        return {"model": self.model, "messages": [{"role": "user", "content": question}], **given}

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    @cached_property
    def _endpoint(self) -> Endpoint:
        return Endpoint(str(self.url), self.key_variable, self.timeout_s)

    @cached_property
    def _random(self) -> Random:
        """One of its own: pauses are nothing that a seed decides."""
        return Random()

    @cached_property
    def _journal(self) -> JsonlWriter | None:
        return None if self.cache is None else JsonlWriter(Path(self.cache).expanduser())

    @cached_property
    def _replies(self) -> dict[str, list[float | None]]:
        """Verdicts of all the replies to a question, by its key.

        Raises:
            UserError: the cache is another kind of file.
        """
        found: dict[str, list[float | None]] = {}
        for row in [] if self._journal is None else read_rows(self._journal.path):
            if not {"key", "verdict"} <= row.keys():
                raise UserError(f"judge.cache={self.cache}: not a judge's transcript, give another file")
            found.setdefault(row["key"], []).append(row["verdict"])
        return found
