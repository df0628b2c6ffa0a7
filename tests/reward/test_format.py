"""Rewards for the form of a response."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.errors import UserError
from rlmods.reward import Format, Language, Regex
from tests.reward.samples import response


@pytest.mark.parametrize(
    ("style", "text", "score"),
    [
        ("think_answer", "<think>a</think><answer>5</answer>", 1.0),
        ("think_answer", "  <think>a\nb</think>\n\n<answer>\n5\n</answer>\n", 1.0),
        ("think_answer", "Well, <think>a</think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer>5</answer> so 5", 0.0),
        ("think_answer", "<think>a</think> so <answer>5</answer>", 0.0),
        ("think_answer", "<think> </think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer> </answer>", 0.0),
        ("think_answer", "<think>a</think><think>b</think><answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer>5</answer><answer>6</answer>", 0.0),
        ("think_answer", "<think>a<answer>5</answer></think>", 0.0),
        ("think_answer", "<answer>5</answer><think>a</think>", 0.0),
        ("think_answer", "<think>a", 0.0),
        ("answer", "so <answer>5</answer>.", 1.0),
        ("answer", "<answer>5</answer><answer>5</answer>", 0.0),
        ("answer", "<answer></answer>", 0.0),
        ("answer", "</answer>5<answer>", 0.0),
        ("answer", "<answer>5", 0.0),
        ("boxed", r"so \boxed{\frac{1}{2}}.", 1.0),
        ("boxed", r"\boxed{1} \boxed{2}", 0.0),
        ("boxed", r"\boxed{ }", 0.0),
        ("boxed", r"\boxed{1", 0.0),
        ("boxed", "5", 0.0),
        ("answer", "<think>so <answer>5</answer>", 0.0),
        ("answer", "<think>is it <answer>4</answer>?</think> no: <answer>5</answer>", 1.0),
        ("boxed", r"[THINK] so \boxed{5}", 0.0),
        ("boxed", r"<think>\boxed{4}?</think> no: \boxed{5}", 1.0),
    ],
)
def test_requires_each_part_once_and_not_empty(style: str, text: str, score: float) -> None:
    assert list(Format(style)([response(text)])) == [score]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "full", "text", "score"),
    [
        (r"\d+", False, "it is 5.", 1.0),
        (r"\d+", False, "it is five.", 0.0),
        (r"\d+", True, "it is 5.", 0.0),
        (r"\d+", True, "55", 1.0),
        (r"\d+", True, "55\n", 0.0),
        (r"a|ab", True, "ab", 1.0),
        (r"^b", False, "a\nb", 0.0),
        (r"(?m)^b", False, "a\nb", 1.0),
        (r"a.b", False, "a\nb", 0.0),
        (r"(?s)a.b", False, "a\nb", 1.0),
        (r"(?i)É", False, "é", 1.0),
        (r"\p{Han}", False, "five 五", 1.0),
        (r"<think>", False, "<think>a</think>b", 1.0),
        (r"a", False, "", 0.0),
        (r"a*", True, "", 1.0),
    ],
)
def test_is_1_if_the_pattern_matches(pattern: str, full: bool, text: str, score: float) -> None:
    result = Regex(pattern, full)([response(text)])
    assert result.values == [score]
    assert result.counts == {"timeouts": 0}


@pytest.mark.parametrize("full", [False, True])
def test_a_timeout_scores_0_and_is_counted(full: bool) -> None:
    start = time.monotonic()
    result = Regex(r"(a|aa)+b", full, timeout_s=0.2)(
        [response(text) for text in ("a" * 1_000_000, "ab", "b" * 1_000_000, "a" * 60)]
    )
    assert result.values == [0.0, 1.0, 0.0, 0.0]
    assert result.counts == {"timeouts": 2}
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("pattern", [None, ""])
def test_rejects_a_missing_pattern(pattern: str | None) -> None:
    with pytest.raises(UserError, match=r"reward=regex needs a pattern: type 'reward\.pattern="):
        Regex(pattern)


def test_rejects_invalid_settings() -> None:
    config = OmegaConf.create({"_target_": "rlmods.reward.Regex", "pattern": "(a"})
    with pytest.raises(
        UserError, match=r"Regex: pattern='\(a' is not a valid pattern \(.*position.*\): type "
    ):
        instantiate(config, "reward")


def score(text: str, script: str | Sequence[str] = "Latin") -> float | None:
    return Language(script)([response(text)])[0]


@pytest.mark.parametrize(
    ("text", "script", "value"),
    [
        ("Hello, world 12!", "Latin", 1.0),
        ("Привет", "Latin", 0.0),
        ("ab вг", "Latin", 0.5),
        ("a бвг", "Cyrillic", 0.75),
        ("straße, cafe\u0301, ﬁ", "Latin", 1.0),
        ("答案 is 5", "Latin", 0.5),
        ("答案は五です", "Han", 0.5),
        ("答案は五です", ["Han", "Hiragana"], 1.0),
        ("答案は五です ok", ["Han", "Hiragana"], 0.75),
        ("ラーメン", "Katakana", 1.0),
        ("𝑥 + µ is x", "Latin", 1.0),
        ("𝑥𝑦", "Latin", 1.0),
        ("a ५ ٣", "Latin", 1.0),
        ("πr", "Latin", 0.5),
        ("πr", ("Latin", "Greek"), 1.0),
        ("한국어", "hangul", 1.0),
        ("e\u0301", "Greek", 0.0),
        ("\ud800a", "Latin", 1.0),
        ("", "Latin", 1.0),
        ("12 + 3 = 15 😀 \u0301", "Latin", 1.0),
    ],
)
def test_is_the_fraction_of_letters_in_the_script(
    text: str, script: str | Sequence[str], value: float
) -> None:
    assert score(text, script) == value


@pytest.mark.parametrize("script", ["Klingon", ["Latin", "Elvish"], [], [5], "Latin-1"])
def test_rejects_unknown_scripts(script: Any) -> None:
    with pytest.raises(UserError, match=r"Language: script.*type reward\.script=Latin"):
        Language(script)
