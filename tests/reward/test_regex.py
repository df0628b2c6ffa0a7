import time

import pytest
from omegaconf import OmegaConf

from rlmods.config.instantiate import instantiate
from rlmods.errors import UserError
from rlmods.reward import Regex
from tests.reward.samples import response


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
