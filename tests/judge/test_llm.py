"""Tests of the language model judge against a real HTTP server on loopback."""

import json
import threading
import time

import pytest

from rlmods.errors import UserError
from rlmods.judge import LLM, compare, rankings
from rlmods.judge.question import CUT_OFF
from rlmods.types import Prompt, Response
from tests.judge.server import TEMPLATE, completion, in_turn, longer, serve

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


def test_body_is_a_chat_completion_request(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-123\n")
    with serve(longer) as server:
        llm = judge(server.url, swap=False, temperature=0.5, max_tokens=7, key_variable="MY_KEY")
        llm(PROMPT, "a", "bb")
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["authorization"] == "Bearer sk-123"
    message = {"role": "user", "content": "?|a|bb"}
    [body] = server.bodies
    assert body == {"model": "m", "messages": [message], "temperature": 0.5, "max_tokens": 7}


class TestVerdicts:
    def test_match_the_replies(self):
        with serve(longer) as server:
            llm = judge(server.url)
            assert llm.compare(PAIRS) == EXPECTED
            assert [llm(p, b, a) for p, a, b in PAIRS] == [1 - v for v in EXPECTED]
            [(ranks, _)] = rankings(llm, [(PROMPT, ["a", "ccc", "bb", "dd"])])
            assert ranks == [2, 0, 1, 1]

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
            assert rankings(llm, [(PROMPT, ["x", "y"])]) == [([None, None], [None])]


class TestRetries:
    reply = (500, b"oops")

    def test_last_failure_is_a_one_line_error(self):
        with serve(in_turn(self.reply)) as server, pytest.raises(UserError) as error:
            judge(server.url, swap=False)(PROMPT, "x", "y")
        assert len(server.bodies) == 3
        advice = "after 3 tries: check the server, or type judge.retries=10; judge.cache=FILE keeps"
        assert str(error.value).startswith(f"judge.url={server.url}: HTTP 500, 'oops' ({advice}")

    def test_a_question_ends_at_its_deadline(self):
        release = threading.Event()
        limits = {"timeout_s": 0.2, "deadline_s": 0.5, "retries": 1000}
        with serve(lambda *_: release.wait(20) and "A") as server:
            start = time.monotonic()
            with pytest.raises(UserError, match=r"timed out \(after .* tries"):
                judge(server.url, swap=False, **limits)(PROMPT, "x", "y")
            assert time.monotonic() - start < 10
            release.set()


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


def test_a_rejected_request_ends_the_pauses_of_other_threads():
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


class TestCache:
    def test_a_second_run_sends_no_requests(self, tmp_path):
        path = tmp_path / "new" / "cache.jsonl"
        with serve(longer) as server:
            assert judge(server.url, cache=str(path)).compare(PAIRS) == EXPECTED
            again = judge(server.url, cache=str(path))
            assert again.compare(PAIRS) == EXPECTED
            assert again.counts == {"cached": 6}
            assert len(server.bodies) == len(rows(path)) == 6

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

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "other"},
            {"temperature": 1.0},
            {"template": "{first} {second}"},
        ],
    )
    def test_a_changed_request_is_sent(self, change, tmp_path):
        path = tmp_path / "cache.jsonl"
        with serve(in_turn("A")) as server:
            judge(server.url, swap=False, cache=str(path))(PROMPT, "x", "y")
            judge(server.url, swap=False, cache=str(path), **change)(PROMPT, "x", "y")
            assert len(server.bodies) == 2

    @pytest.mark.parametrize("row", ['{"prompt": "1+1="}', '{"key": "k", "verdict": "x"}'])
    def test_names_a_file_that_no_judge_wrote(self, row, tmp_path):
        (tmp_path / "data.jsonl").write_text(f'{{"key": "k", "verdict": null}}\n{row}\n')
        with pytest.raises(UserError, match=r"judge.cache=.* is not the cache of a judge"):
            judge("http://127.0.0.1:9", cache=str(tmp_path / "data.jsonl"))(PROMPT, "x", "y")


class TestFields:
    @pytest.mark.parametrize(
        ("fields", "word"),
        [
            ({"url": None}, "judge.url=http://HOST/v1"),
            ({"url": "localhost:8000"}, "judge.url=http://HOST/v1"),
            ({"model": None}, "judge.model=NAME"),
            ({"template": "{first}"}, "judge.template"),
        ],
    )
    def test_are_validated_on_construction(self, fields, word):
        with pytest.raises((UserError, ValueError), match=word):
            judge(**{"url": "http://127.0.0.1:9", **fields})

    def test_a_template_with_the_answer_needs_one(self):
        assert not LLM(url="http://h", model="m").needs.answer
        assert LLM(url="http://h", model="m", template="{first}{second}{answer}").needs.answer
