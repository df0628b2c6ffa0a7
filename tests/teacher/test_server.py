"""A server that returns log-probabilities of given tokens: what is asked, what is read, and what is
refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.teacher import Server
from tests.judge.server import serve
from tests.support.tiny_setup import other_vocabulary, policy

ROWS = [([5, 6, 7], [8, 9]), ([5], [10, 11, 12])]


def logprob(position: int, token: int) -> float:
    return -(position + token / 100)


def vllm(body: dict[str, Any], number: int) -> Any:
    """Reply of vLLM: by position the chosen id and the likeliest one, None at the first."""
    ids = body["prompt"]
    entries = [
        None,
        *(
            {str(x): {"logprob": logprob(i, x), "rank": 3}, "1": {"logprob": -0.1}}
            for i, x in enumerate(ids[1:], 1)
        ),
    ]
    return 200, json.dumps({"choices": [{"text": "x", "prompt_logprobs": entries}]}).encode()


def echo(body: dict[str, Any], number: int) -> Any:
    """Reply of a completions endpoint with echo: prompt and one generated token."""
    values = [None, *(logprob(i, x) for i, x in enumerate(body["prompt"][1:], 1)), -0.5]
    return 200, json.dumps({"choices": [{"logprobs": {"token_logprobs": values}}]}).encode()


EXPECTED = [[logprob(len(p) + i, x) for i, x in enumerate(r)] for p, r in ROWS]


def server(url: str = "http://h/v1", **options: Any) -> Server:
    return Server(**{"url": url, "model": "m", "backoff_s": 0.0} | options)


class TestRequest:
    @pytest.mark.parametrize(("api", "script"), [("prompt_logprobs", vllm), ("echo", echo)])
    def test_ids_are_sent_and_their_logprobs_read(self, api: str, script: Any) -> None:
        with serve(script) as log:
            assert server(log.url, api=api).logprobs(ROWS) == EXPECTED
        assert set(log.paths) == {"/v1/completions"}
        assert sorted(body["prompt"] for body in log.bodies) == sorted([*p, *r] for p, r in ROWS)
        asked = (
            {"prompt_logprobs": 1} if api == "prompt_logprobs" else {"echo": True, "logprobs": 1}
        )
        for body in log.bodies:
            assert {k: body[k] for k in body if k != "prompt"} == {
                "model": "m",
                "max_tokens": 1,
                "temperature": 1.0,
                **asked,
            }

    def test_failures_are_repeated(self) -> None:
        with serve(
            lambda body, number: (503, b"busy") if number < 2 else vllm(body, number)
        ) as log:
            assert server(log.url, concurrency=1).logprobs(ROWS) == EXPECTED
        assert len(log.bodies) == 4

    def test_after_all_tries_the_run_stops(self) -> None:
        with (
            serve(lambda body, number: (503, b"busy")) as log,
            pytest.raises(UserError, match=r"teacher\.url=.*HTTP 503.*after 3 tries"),
        ):
            server(log.url, retries=2, concurrency=1).logprobs(ROWS[:1])

    def test_a_rejected_request_stops_at_once(self) -> None:
        with (
            serve(lambda body, number: (404, b"{}")) as log,
            pytest.raises(UserError, match=r"type teacher\.url=http://HOST/v1 teacher\.model"),
        ):
            server(log.url, concurrency=1).logprobs(ROWS)
        assert len(log.bodies) == 1


class TestReply:
    @pytest.mark.parametrize(
        "reply",
        [
            {"choices": [{"text": "x"}]},
            {"choices": [{"prompt_logprobs": [None, {"1": {"logprob": -1.0}}]}]},
            {"choices": [{"prompt_logprobs": [None] * 5}]},
            {
                "choices": [
                    {"prompt_logprobs": [None, *({"99": {"logprob": -1.0}} for _ in range(4))]}
                ]
            },
            {"choices": []},
            [],
        ],
        ids=["none", "too few", "empty", "other tokens", "no choice", "no object"],
    )
    def test_without_the_logprobs_of_these_tokens(self, reply: Any) -> None:
        script = lambda body, number: (200, json.dumps(reply).encode())  # noqa: E731
        with (
            serve(script) as log,
            pytest.raises(
                UserError, match=r"no log-probabilities of the given tokens: type teacher\.api=echo"
            ),
        ):
            server(log.url).logprobs(ROWS[:1])

    @pytest.mark.parametrize(
        "values",
        [[None, -1.0, -1.0, 0.5, -1.0], [None, -1.0, -1.0, -1.0], [None, -1, -1, float("nan"), -1]],
    )
    def test_invalid_or_too_few_values(self, values: list[Any]) -> None:
        """llama.cpp returns a value for the generated token only."""
        script = lambda body, number: (  # noqa: E731
            200,
            json.dumps({"choices": [{"logprobs": {"token_logprobs": values}}]}).encode(),
        )
        with (
            serve(script) as log,
            pytest.raises(UserError, match=r"log-probabilities for 2 tokens, or invalid ones"),
        ):
            server(log.url, api="echo").logprobs(ROWS[:1])


class TestTokenizer:
    def test_equal_vocabularies(self, tmp_path: Path) -> None:
        student = policy()
        student.tokenizer.save_pretrained(tmp_path)
        assert server(tokenizer=str(tmp_path))(student) is None

    def test_another_vocabulary_is_refused(self, tmp_path: Path) -> None:
        other_vocabulary().tokenizer.save_pretrained(tmp_path)
        with pytest.raises(
            UserError, match="teacher: the model has another vocabulary than the policy"
        ):
            server(tokenizer=str(tmp_path))(policy())

    def test_one_that_does_not_exist(self) -> None:
        with pytest.raises(UserError, match=r"type teacher\.tokenizer=HUB_NAME_OR_DIRECTORY"):
            server(tokenizer="./nowhere")(policy())


@pytest.mark.parametrize("bad", [{"url": None}, {"model": None}])
def test_needs_an_address_and_a_model(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"type teacher\.url=http://HOST/v1 teacher\.model=NAME"):
        server(**{"url": "http://h/v1"} | bad)
