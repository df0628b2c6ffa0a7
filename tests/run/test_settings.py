"""Dotted keys of settings, and the parts of overrides."""

import pytest

from rlmods.run.settings import Override, leaves


def test_leaves() -> None:
    node = {"a": {"b": 1, "c": {}}, "d": [1, {"e": 2}], "f": None}
    flat = [("a.b", 1), ("a.c", {}), ("d", [1, {"e": 2}]), ("f", None)]
    assert list(leaves(node)) == flat
    deep = [("a.b", 1), ("a.c", {}), ("d.0", 1), ("d.1.e", 2), ("f", None)]
    assert list(leaves(node, lists=True)) == deep
    assert list(leaves({"a": 1}, "x")) == [("x.a", 1)]


@pytest.mark.parametrize(
    ("text", "name", "key", "value", "top"),
    [
        ("ratio=symmetric", "ratio", "ratio", "symmetric", "ratio"),
        ("++batch.prompts=8", "batch.prompts", "batch.prompts", "8", "batch"),
        ("+data@validation.data.hard=jsonl", "data", "validation.data.hard", "jsonl", "validation"),
        ("~callbacks.samples", "callbacks.samples", "callbacks.samples", None, "callbacks"),
        ("a.url=http://u@h?x=1", "a.url", "a.url", "http://u@h?x=1", "a"),
    ],
)
def test_overrides(text: str, name: str, key: str, value: str | None, top: str) -> None:
    override = Override.parse(text)
    assert (override.name, override.key, override.value) == (name, key, value)
    assert (override.top, override.text) == (top, text)
