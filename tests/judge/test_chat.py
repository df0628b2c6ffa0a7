from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rlmods.judge.chat import Endpoint, NoReplyError, _parse_retry_after


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "seconds"), [(None, None), ("3", 3.0), ("0.5", 0.5), ("soon", None), ("", None)]
    )
    def test_parses_a_number(self, header, seconds):
        assert _parse_retry_after(header) == seconds

    def test_parses_a_date(self):
        date = datetime.now(UTC) + timedelta(seconds=30)
        assert 25 < _parse_retry_after(format_datetime(date, usegmt=True)) <= 31
        assert _parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") < 0


@pytest.mark.parametrize(
    "url",
    [
        "http://h/v1",
        "http://h/v1/",
        "http://h/v1/chat/completions",
        "http://h/v1/chat/completions/",
    ],
)
def test_address_is_completed_to_chat_completions(url):
    assert Endpoint(url, None, 1.0).address == "http://h/v1/chat/completions"


@pytest.mark.parametrize(
    ("variable", "proxy", "words"),
    [
        (
            "ALL_PROXY",
            "socks5://user:secret@127.0.0.1:9",
            "pip install 'httpx2[socks]', or type unset ALL_PROXY",
        ),
        ("HTTP_PROXY", "ftp://user:secret@127.0.0.1", "unset HTTP_PROXY"),
        ("https_proxy", "http://[::", "unset https_proxy"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_a_final_error(variable, proxy, words, monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(NoReplyError) as error:
        Endpoint("http://127.0.0.1:9/v1", None, 1.0).complete({})
    assert error.value.final
    assert str(error.value).endswith(words)
    assert "secret" not in str(error.value)
