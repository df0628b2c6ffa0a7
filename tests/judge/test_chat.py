"""The client of OpenAI-compatible servers, against a server on loopback."""

import math
import os
import sys
import threading
import time

import pytest

from rlmods.judge.chat import Endpoint, NoReplyError, _seconds
from tests.judge.server import completion, in_turn, serve

GOOD = completion("A")
BODY = {"model": "m"}
REPLIES = {
    "500": ((500, b"oops"), "HTTP 500, 'oops'"),
    "503": ((503, b""), "HTTP 503"),
    "429": ((429, b"slow down"), "HTTP 429"),
    "204": ((204, b""), "HTTP 204"),
    "HTML": ((200, b"<html>" + b"y" * 400), f"not JSON: '<html>{'y' * 194}'"),
    "no UTF-8": ((200, b'{"choices": "\xff\xfe"}'), "not JSON"),
    "half a JSON": ((200, GOOD[:-3]), "not JSON"),
    "deep lists": ((200, b"[" * 100_000), "not JSON"),
    "null": ((200, b"null"), "not a chat completion: 'None'"),
    "no choices": ((200, b'{"error": "busy"}'), "not a chat completion: \"{'error': 'busy'}\""),
    "empty choices": ((200, b'{"choices": []}'), "not a chat completion"),
    "a list": ((200, b"[]"), "not a chat completion"),
    "content that is a list": (
        (200, b'{"choices": [{"message": {"content": ["A"]}}]}'),
        "not a chat completion",
    ),
    "a connection that drops": ((200, GOOD, {"Content-Length": "999"}), "closed connection"),
    "a chunk of no size": ((200, GOOD, {"Transfer-Encoding": "chunked"}), "closed connection"),
    "gzip that is none": ((200, GOOD, {"Content-Encoding": "gzip"}), "header check"),
}
"""Replies that may be better at the next try, and what is said about them."""
FINAL = {
    401: ("$MY_KEY is not accepted", "export MY_KEY=KEY", "type judge.key_variable=NAME"),
    403: ("$MY_KEY is not accepted",),
    404: ("no model 'm'", "type judge.url=http://HOST/v1 judge.model=NAME"),
    400: ("the settings of judge, such as model, max_tokens or temperature",),
    422: ("the settings of judge",),
}
"""Statuses that a retry does not change, and what is said about them."""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def endpoint(url="http://127.0.0.1:9/v1", **settings):
    return Endpoint(url, "MY_KEY", **{"timeout_s": 20.0, **settings})


def error_of(made, deadline=math.inf):
    with pytest.raises(NoReplyError) as error:
        made.complete(BODY, deadline)
    assert str(error.value).isprintable()
    assert "sk-very" not in str(error.value)
    return error.value


@pytest.mark.parametrize("end", ["", "/", "/chat/completions", "/chat/completions/"])
def test_address_is_completed_to_chat_completions(end):
    assert endpoint(f"http://h/v1{end}").address == "http://h/v1/chat/completions"


def test_compressed_replies_are_not_asked_for():
    with serve(in_turn("A")) as server:
        assert endpoint(server.url).complete(BODY) == "A"
    assert server.headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize("end", ["", "/", "/chat/completions"])
def test_address_keeps_the_query(end):
    url = f"http://h/v1{end}?api-version=2024"
    assert endpoint(url).address == "http://h/v1/chat/completions?api-version=2024"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ((200, completion("A")), "A"),
        ((200, completion(None)), ""),
        ((200, completion("A", "length")), "A\n[cut off at max_tokens]"),
        ((200, b"\xef\xbb\xbf" + GOOD), "A"),
    ],
)
def test_the_text_of_the_first_choice_is_returned(reply, text):
    with serve(in_turn(reply)) as server:
        assert endpoint(server.url).complete(BODY) == text
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert server.bodies == [BODY]


class TestNoReply:
    @pytest.mark.parametrize(("reply", "words"), REPLIES.values(), ids=list(REPLIES))
    def test_may_be_temporary(self, reply, words):
        with serve(in_turn(reply)) as server:
            error = error_of(endpoint(server.url))
        assert words in str(error)
        assert (error.kind, error.final, error.rejected) == ("errors", False, False)

    @pytest.mark.parametrize("status", FINAL)
    def test_may_be_final(self, status):
        content = f"no, sk-very-secret\n{'x' * 400}".encode()
        with serve(in_turn((status, content))) as server:
            error = error_of(endpoint(server.url))
        assert error.final
        assert error.status == status
        assert error.rejected == (status in (400, 422))
        assert all(word in str(error) for word in (f"HTTP {status}", "'no, ***", *FINAL[status]))
        assert len(str(error)) < 500

    @pytest.mark.parametrize("status", [301, 308])
    def test_redirects_are_not_followed(self, status):
        location = {"Location": "http://h/v1?key=sk-very-secret\x1b[2J"}
        with serve(in_turn((status, b"", location))) as server:
            error = error_of(endpoint(server.url))
        assert error.final
        assert "type judge.url='http://h/v1?key=***\\x1b[2J'" in str(error)

    def test_a_missing_key_is_named(self, monkeypatch):
        monkeypatch.delenv("MY_KEY")
        with serve(in_turn((401, b""))) as server:
            assert "$MY_KEY is not set" in str(error_of(endpoint(server.url)))
        assert "authorization" not in server.headers[0]

    def test_a_refused_connection(self):
        error = error_of(endpoint())
        assert "refused" in str(error)
        assert not error.final

    @pytest.mark.parametrize("late", [{"timeout_s": 0.2}, {}])
    def test_a_time_limit(self, late):
        release = threading.Event()
        with serve(lambda *_: release.wait(20) and "A") as server:
            deadline = math.inf if late else time.monotonic() + 0.2
            error = error_of(endpoint(server.url, **late), deadline)
            release.set()
        assert (str(error), error.kind, error.final) == ("timed out", "timeouts", False)

    @pytest.mark.parametrize(
        ("url", "variables", "words"),
        [
            ("http://[::", {}, "check judge.url=http://HOST/v1"),
            ("htp://h/v1", {}, "check judge.url=http://HOST/v1"),
            ("http://127.0.0.1:9", {"MY_KEY": "sk-very-“secret”"}, "the key in $MY_KEY"),
            ("http://h", {"ALL_PROXY": "socks5://u:sk-very@127.0.0.1:9"}, "SOCKS proxy"),
            ("http://h", {"HTTP_PROXY": "ftp://u:sk-very@127.0.0.1"}, "proxies of the environment"),
            ("http://h", {"https_proxy": "http://[::"}, "proxies of the environment"),
        ],
    )
    def test_wrong_settings_are_final(self, url, variables, words, monkeypatch):
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setitem(sys.modules, "socksio", None)
        error = error_of(endpoint(url))
        assert error.final
        assert words in str(error)


class TestPauses:
    @pytest.fixture
    def pauses(self, monkeypatch):
        found = []
        monkeypatch.setattr(
            threading.Event, "wait", lambda self, timeout=None: found.append(timeout)
        )
        return found

    def test_double_and_are_jittered(self, pauses):
        made = endpoint(retries=9, backoff_s=4.0)
        late, stop = NoReplyError("late"), threading.Event()
        waited = [made.wait(late, attempt, math.inf, stop) for attempt in range(10)]
        assert waited == [True] * 9 + [False]
        assert len(pauses) == 9
        for attempt, pause in enumerate(pauses):
            assert 0.5 * 4 * 2**attempt <= pause <= 4 * 2**attempt
        assert pauses[7] != pytest.approx(2 * pauses[6])

    @pytest.mark.parametrize(
        ("error", "attempt", "waits"),
        [
            (NoReplyError("late", retry_after_s=50.0), 0, True),
            (NoReplyError("late", retry_after_s=101.0), 0, False),
            (NoReplyError("late"), 9, False),
            (NoReplyError("no such model", final=True), 0, False),
        ],
    )
    def test_do_not_pass_the_deadline(self, error, attempt, waits, pauses):
        made, deadline = endpoint(retries=9), time.monotonic() + 100
        assert made.wait(error, attempt, deadline, threading.Event()) == waits
        assert pauses == [50.0] * waits

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            (None, 0.0),
            ("3", 3.0),
            ("0.5", 0.5),
            ("", 0.0),
            ("soon", 0.0),
            ("1e999", math.inf),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ],
    )
    def test_retry_after_is_a_number_of_seconds(self, header, seconds):
        assert _seconds(header) == seconds

    def test_retry_after_is_read(self):
        with serve(in_turn((429, b"", {"Retry-After": "0.5"}))) as server:
            assert error_of(endpoint(server.url)).retry_after_s == 0.5
