from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rlmods.judge.chat import Endpoint, _seconds


class TestRetryAfter:
    @pytest.mark.parametrize(("header", "seconds"), [(None, None), ("3", 3.0), ("0.5", 0.5), ("soon", None), ("", None)])
    def test_a_number(self, header, seconds):
        assert _seconds(header) == seconds

    def test_a_date(self):
        then = datetime.now(UTC) + timedelta(seconds=30)
        assert 25 < _seconds(format_datetime(then, usegmt=True)) <= 31
        assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") < 0


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "http://h/v1/chat/completions", "http://h/v1/chat/completions/"])
def test_address(url):
    assert Endpoint(url, None, 1.0).address == "http://h/v1/chat/completions"
