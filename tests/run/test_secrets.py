"""The form of settings that is written to files."""

import pytest
from omegaconf import OmegaConf

from rlmods.run.name import member_name
from rlmods.run.secrets import clean, clean_urls, saved_form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://user:pw@host:8000/v1", "http://host:8000/v1"),
        ("http://token@host", "http://host"),
        ("http://host/v1?api_key=pw#x", "http://host/v1"),
        ("http://user:p/w@host/v1", "http://host/v1"),
        ("http://user:p?w#@host/v1", "http://host/v1"),
        ("http://us@er:p@w@host/v1", "http://host/v1"),
        ("judge.url='https://u:p@host/v1?key=pw'", "judge.url='https://host/v1'"),
        ("rollout.urls=[http://a:p@h1,http://b:p@h2?k=1]", "rollout.urls=[http://h1,http://h2]"),
        ("a http://u:p@h/x?k=1 and b", "a http://h/x and b"),
        ("http://host/pkg@1.2", "http://host/pkg@1.2"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("postgresql+psycopg://u:p@db/x", "postgresql+psycopg://db/x"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("${scheme}://u:p@h/x", "${scheme}://h/x"),
        ("1 + 1? a@b.c", "1 + 1? a@b.c"),
    ],
)
def test_urls_lose_users_and_queries(text: str, expected: str) -> None:
    assert clean_urls(text) == expected
    assert clean_urls(expected) == expected


def test_environment_stays_unresolved_and_the_rest_is_resolved(monkeypatch) -> None:
    monkeypatch.setenv("SECRET", "pw")
    config = OmegaConf.create(
        {
            "plain": "${number}",
            "number": 3,
            "key": "${oc.env:SECRET}",
            "refers": "${key}",
            "decoded": "${oc.decode:${oc.env:SECRET}}",
            "default": "${oc.env:ABSENT,fallback}",
            "absent": "${oc.env:ABSENT}",
            "url": "http://u:${oc.env:SECRET}@host/v1?k=${key}",
            "list": ["a-${key}", {"deep": "${key}"}, "http://u:pw@host"],
            "group": {"key": "${oc.env:SECRET}", "size": "${number}"},
            "copy": "${group}",
            "nothing": None,
            "empty": {},
        }
    )
    form = saved_form(config)
    assert form == {
        "plain": 3,
        "number": 3,
        "key": "${oc.env:SECRET}",
        "refers": "${key}",
        "decoded": "${oc.decode:${oc.env:SECRET}}",
        "default": "${oc.env:ABSENT,fallback}",
        "absent": "${oc.env:ABSENT}",
        "url": "http://host/v1",
        "list": ["a-${key}", {"deep": "${key}"}, "http://host"],
        "group": {"key": "${oc.env:SECRET}", "size": 3},
        "copy": {"key": "${oc.env:SECRET}", "size": 3},
        "nothing": None,
        "empty": {},
    }
    assert OmegaConf.create(form)["list"][1].deep == "pw", "resolves again"


def test_messages_show_names_instead_of_values_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("PLANTED", "hunter2")
    monkeypatch.setenv("SHORT", "1")
    config = OmegaConf.create({"a": "${oc.env:PLANTED}", "b": "${oc.env:SHORT}"})
    assert (config.a, config.b) == ("hunter2", "1")
    message = "http://u:p@host/hunter2 failed 1 time"
    assert clean(message) == "http://host/${oc.env:PLANTED} failed 1 time"
    assert member_name(["judge.model=hunter2", "judge.url=http://u:p@host"]).startswith(
        "judge.model=--oc.env-PLANTED-,judge.url=http---host-"
    )
