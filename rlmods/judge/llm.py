"""Language model judge behind an HTTP endpoint (RLAIF)."""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from rlmods.errors import UserError
from rlmods.judge.chat import Endpoint, NoReplyError, as_user_error
from rlmods.judge.question import (
    RATING_FIELDS,
    RATING_TEMPLATE,
    TEMPLATE,
    format_question,
    read_rating,
    read_verdict,
    shown_text,
    template_fields,
)
from rlmods.judge.scores import Pair
from rlmods.needs import JudgeNeeds
from rlmods.protocols import Candidate
from rlmods.run.files import JsonlWriter, read_rows
from rlmods.settings.bounds import Count, NonNegative, NonNegativeInt, Positive, bounded
from rlmods.types import Prompt, Response


@dataclass
class Losses:
    """Lost questions of a judge."""

    in_a_row: int = -1
    """Number of questions that were lost since the last reply; -1 before the first reply."""
    skip_rejected: bool = False
    """Leave questions that the server rejects, such as too long ones, out of `in_a_row`, and do not
    raise if the first is one."""
    questions: dict[str, NoReplyError] = field(default_factory=dict)
    """Lost questions of the last call."""


@dataclass(frozen=True)
@bounded("judge")
class LLM:
    """Judge that asks a model behind an OpenAI-compatible endpoint which response is better (RLAIF,
    arXiv 2309.00267).

    With `swap` each pair is asked in both orders: the result is the verdict if both agree, a tie if
    they disagree (so that a judge with position bias yields only ties), None if either is missing.
    Equal texts are a tie without a request. After the text of a truncated response the question
    says that it is cut off.

    The verdict is the last word of the reply's last line: A, B or TIE. A reply without one is
    requested again. So is a request that fails (time limits, connection errors, HTTP 429 and 5xx, a
    reply that is not a chat completion), after a pause that doubles with each try.
    Each question has `retries` + 1 tries within `deadline_s`; after them its verdict is None, and
    counted.

    Raises: UserError for a field that is missing or out of range; while judging, if the first
    question is lost, which is the case at once if the server rejects the key, address or model, and
    if `2 * concurrency` questions in a row are lost."""

    url: str | None = None
    """Address of the endpoint: http://HOST/v1."""
    model: str | None = None
    """Model name on the server."""
    key_variable: str | None = "OPENAI_API_KEY"
    """Environment variable that holds the API key. No key is sent if it is not set."""
    template: str | None = None
    """Prompt template, with {prompt}, {first}, {second} and, optionally, {answer}, the gold answer
    ("" without one), and {nonce}, a number for tags that the texts cannot forge; literal braces are
    written twice. null: `rlmods.judge.question.TEMPLATE`, without the answer."""
    temperature: NonNegative | None = 0.0
    """Sampling temperature of the judge. null: the server's default."""
    max_tokens: Count | None = 512
    """Maximum number of tokens of a reply. null: the server's default."""
    swap: bool = True
    """Ask in both orders."""
    timeout_s: Positive = 60.0
    """Time limit of each step of a request: to connect, and to wait for the reply or more of it."""
    deadline_s: Positive = 300.0
    """Time limit of a question, with all its tries and the pauses between them."""
    retries: NonNegativeInt = 4
    """Tries after the first."""
    backoff_s: NonNegative = 1.0
    """Pause before the second try, times a random factor from 0.5 to 1; doubled with each try. A
    longer Retry-After takes precedence."""
    concurrency: Count = 8
    """Concurrent requests."""
    cache: str | None = None
    """JSON Lines file to which each reply is appended on arrival; questions it already contains are
    answered from it. null: no cache."""
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Running totals: `requests`, `retries` among them, replies `without_verdict`, `cached`
    questions, pairs whose verdict depends on the order (`swayed`), and lost questions: `timeouts`,
    and `errors` of other kinds."""
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    losses: Losses = field(default_factory=Losses, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.url is None or not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"judge.url={self.url}: judge=llm needs the address of an endpoint: type "
                "judge.url=http://HOST/v1"
            )
        if self.model is None:
            raise UserError(
                "judge=llm needs the name of a model that the server knows: type judge.model=NAME"
            )
        template_fields(self.template or TEMPLATE)

    @property
    def needs(self) -> JudgeNeeds:
        answer = "answer" in template_fields(self.template or TEMPLATE)
        return JudgeNeeds(answer=answer, responses=True)

    def __call__(self, prompt: Prompt, first: Candidate, second: Candidate) -> float | None:
        return self.compare([(prompt, first, second)])[0]

    def compare(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return one verdict per pair. Questions are asked concurrently, each distinct question
        once."""
        questions = list(map(self._questions, pairs))
        verdicts = self._ask_all(chain.from_iterable(questions), read_verdict)
        return [self._combine_orders(list(map(verdicts.__getitem__, both))) for both in questions]

    def lost(self, pairs: Sequence[Pair]) -> NoReplyError | None:
        """Return why a question of these pairs was lost in the last call of `compare`, None if none
        was; first of all a rejection."""
        lost = self.losses.questions
        questions = chain.from_iterable(map(self._questions, pairs))
        errors = [lost[question] for question in questions if question in lost]
        return max(errors, key=lambda error: error.rejected, default=None)

    def _questions(self, pair: Pair) -> list[str]:
        """Return the questions about a pair: in both orders with `swap`, none about equal texts."""
        prompt, *candidates = pair
        first, second = map(shown_text, candidates)
        if first == second:
            return []
        template = self.template or TEMPLATE
        questions = [format_question(template, prompt, first=first, second=second)]
        if self.swap:
            questions.append(format_question(template, prompt, first=second, second=first))
        return questions

    def rating_fields(self, template: str | None = None) -> set[str]:
        """Return the fields in a rating template, by default `RATING_TEMPLATE`.

        Raises:
            UserError: an unknown field, or none for the response.
        """
        return template_fields(template or RATING_TEMPLATE, RATING_FIELDS, ("response",))

    def rate(
        self, responses: Sequence[Response], template: str | None = None
    ) -> list[float | None]:
        """Return the rating of each response by itself, 0 to 1; None if no try yields a rating."""
        template = template or RATING_TEMPLATE
        questions = []
        for response in responses:
            text = shown_text(response)
            questions.append(format_question(template, response.prompt, response=text))
        ratings = self._ask_all(questions, read_rating)
        return list(map(ratings.__getitem__, questions))

    def _ask_all(
        self, questions: Iterable[str], parse: Callable[[str], float | None]
    ) -> dict[str, float | None]:
        """Return the parsed reply by question. Questions are asked concurrently, each distinct
        question once."""
        distinct = list(dict.fromkeys(questions))
        stop = threading.Event()
        self._verdicts  # noqa: B018 - read the cache before the threads start
        ask = partial(self._ask, parse, stop)
        self.losses.questions.clear()
        with ThreadPoolExecutor(self.concurrency) as threads:
            try:
                return dict(zip(distinct, threads.map(ask, distinct), strict=True))
            finally:
                stop.set()  # after Ctrl-C no thread waits for the end of its pause

    def _combine_orders(self, verdicts: Sequence[float | None]) -> float | None:
        """Combine the verdicts in the given and in the swapped order. An empty sequence, which
        stands for equal texts, is a tie."""
        first, *swapped = verdicts or [0.5]
        if first is None or None in swapped:
            return None
        if swapped in ([], [1 - first]):
            return first
        self._count("swayed")
        return 0.5

    def _ask(
        self, parse: Callable[[str], float | None], stop: threading.Event, question: str
    ) -> float | None:
        """Ask one question until `parse` returns a value; None if no try does."""
        body = self._body(question)
        deadline = time.monotonic() + self.deadline_s
        key = hashlib.sha256(json.dumps([self.url, body]).encode()).hexdigest()
        if key in self._verdicts:
            self._count("cached")
            return self._verdicts[key]
        for attempt in range(self.retries + 1):
            if stop.is_set():
                break
            self._count("requests", *(["retries"] if attempt else []))
            try:
                reply = self._endpoint.complete(body, deadline)
            except NoReplyError as error:
                if self._endpoint.wait(error, attempt, deadline, stop):
                    continue
                self._lose(question, error, attempt, stop)
                break
            self.losses.in_a_row = 0
            verdict = parse(reply)
            if self._cache_file is not None:
                row = {"key": key, "question": question, "reply": reply, "verdict": verdict}
                self._cache_file.append(row)
            if verdict is not None:
                self._verdicts[key] = verdict
                return verdict
            self._count("without_verdict")
        return None

    def _lose(
        self, question: str, error: NoReplyError, attempt: int, stop: threading.Event
    ) -> None:
        """Count a lost question.

        Raises:
            UserError: it is the first, or one of too many. `stop` is set, so that the other threads
            stop too.
        """
        self._count(error.kind)
        with self._lock:
            self.losses.questions[question] = error
            if error.rejected and self.losses.skip_rejected:
                return
            if self.losses.in_a_row >= 0:
                self.losses.in_a_row += 1
                if self.losses.in_a_row < 2 * self.concurrency:
                    return
        stop.set()
        cache = "judge.cache=FILE keeps the replies"
        if self.cache:
            cache = f"replies so far are kept in {self.cache}"
        advice = f"check the server, or type judge.retries=10; {cache}"
        raise as_user_error(self._endpoint, error, attempt, advice) from error

    def _body(self, question: str) -> dict[str, Any]:
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        options = {name: value for name, value in optional.items() if value is not None}
        return {"model": self.model, "messages": [{"role": "user", "content": question}], **options}

    def _count(self, *names: str) -> None:
        with self._lock:
            self.counts.update(names)

    @cached_property
    def _endpoint(self) -> Endpoint:
        limits = (self.timeout_s, self.retries, self.backoff_s)
        return Endpoint(str(self.url), self.key_variable, *limits, group="judge")

    @cached_property
    def _cache_file(self) -> JsonlWriter | None:
        return None if self.cache is None else JsonlWriter(Path(self.cache).expanduser())

    @cached_property
    def _verdicts(self) -> dict[str, float]:
        """Verdicts by question key, at first those of the cache.

        Raises:
            UserError: a row was not written by a judge.
        """
        rows = [] if self._cache_file is None else read_rows(self._cache_file.path)
        verdicts = {}
        try:
            for row in rows:
                if row["verdict"] is not None:
                    verdicts[row["key"]] = float(row["verdict"])
            return verdicts
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"judge.cache={self.cache} is not the cache of a judge: delete it, or type another "
                "file"
            ) from error
