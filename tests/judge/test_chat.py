from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rlmods.judge.chat import Endpoint, _parse_retry_after


class TestRetryAfter:
    @pytest.mark.parametrize(("header", "seconds"), [(None, None), ("3", 3.0), ("0.5", 0.5), ("soon", None), ("", None)])
    def test_parses_a_number(self, header, seconds):
        assert _parse_retry_after(header) == seconds

    def test_parses_a_date(self):
        date = datetime.now(UTC) + timedelta(seconds=30)
        assert 25 < _parse_retry_after(format_datetime(date, usegmt=True)) <= 31
        assert _parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") < 0


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "http://h/v1/chat/completions", "http://h/v1/chat/completions/"])
def test_address_is_completed_to_chat_completions(url):
    assert Endpoint(url, None, 1.0).address == "http://h/v1/chat/completions"
