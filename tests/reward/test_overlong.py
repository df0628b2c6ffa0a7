import json
from pathlib import Path

import pytest

from rlmods.reward import Overlong
from rlmods.reward.overlong import overlong_penalty
from tests.reward.samples import response

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "rl_math.json"


def test_is_zero_then_a_ramp_then_minus_one() -> None:
    assert list(Overlong(8, 4)([response(tokens=n) for n in range(11)])) == [
        0,
        0,
        0,
        0,
        0,
        -0.25,
        -0.5,
        -0.75,
        -1,
        -1,
        -1,
    ]


def test_cache_length_defaults_to_a_fifth_and_may_be_zero() -> None:
    assert Overlong(100).cache == 20
    assert list(Overlong(4, 0)([response(tokens=n) for n in (4, 5)])) == [0.0, -1.0]


def test_matches_golden_values() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden numbers at {GOLDEN}")
    for case in json.loads(GOLDEN.read_text())["soft_overlong"]:
        assert overlong_penalty(case["length"], case["L_max"], case["L_cache"]) == pytest.approx(
            case["reward"], abs=1e-12
        )
