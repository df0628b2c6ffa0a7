"""Without a network, a name on the Hub is refused at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from rlmods.run import hub


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The Hub is online in the settings, and cannot be reached."""
    made: list[str] = []

    def head(url: str, timeout: float) -> None:
        made.append(url)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub._check_connection.cache_clear()
    yield made
    hub._check_connection.cache_clear()


class TestCheckHub:
    def test_asks_once_and_then_uses_the_cache(self, requests: list[str]) -> None:
        hub.check_hub("nosuch/model")
        hub.check_hub("nosuch/other")
        assert requests == [constants.ENDPOINT]
        assert constants.HF_HUB_OFFLINE
        assert os.environ["HF_HUB_OFFLINE"] == "1"

    def test_a_name_is_printed_once(
        self, requests: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        hub.check_hub("nosuch/printed")
        hub.check_hub("nosuch/printed")
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == "loading nosuch/printed from the Hugging Face Hub or its cache\n"

    def test_local_files_need_no_hub(self, requests: list[str], tmp_path: Path) -> None:
        hub.check_hub(tmp_path)
        assert requests == []
        assert not constants.HF_HUB_OFFLINE

    def test_a_hub_that_answers_is_used(
        self, requests: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "huggingface_hub.get_session", lambda: SimpleNamespace(head=lambda url, timeout: 404)
        )
        hub.check_hub("nosuch/model")
        assert not constants.HF_HUB_OFFLINE
