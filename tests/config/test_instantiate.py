"""Numbers in a configuration are finite, except the limits that infinity switches off."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_object
from omegaconf import OmegaConf

from rlmods.algo import Batch
from rlmods.config.instantiate import instantiate, parse_settings
from rlmods.errors import UserError
from rlmods.ratio import Clipped
from rlmods.settings.bounds import INFINITE
from rlmods.training.settings import PolicyGradientSettings

CONF = Path(__file__).parents[2] / "conf"


def numbers(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each number."""
    children: Any = ()
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path
    for key, value in children:
        yield from numbers(value, (*path, key))


def settings() -> Iterator[tuple[dict[str, Any], str, tuple[Any, ...]]]:
    """Yield each numeric setting of each option: values of the option, group, and path."""
    for file in sorted(CONF.rglob("*.yaml")):
        option = yaml.safe_load(file.read_text())
        if not isinstance(option, dict) or "_target_" not in option:
            continue
        package, _, _ = option["_target_"].partition(".")
        if find_spec(package) is not None:
            for path in numbers(option):
                if "${" not in str(option[path[0]]):
                    yield option, file.parent.name, path


def refused(option: dict[str, Any], group: str, path: tuple[Any, ...], value: float) -> bool:
    """Return whether the setting with this value is refused by its name."""
    plain = {key: x for key, x in option.items() if "${" not in str(x)}
    config = OmegaConf.create(plain)
    OmegaConf.update(config, ".".join(path), value, merge=False)
    name = ".".join((group, *path))
    try:
        instantiate(config, group, partial=True)
    except UserError as error:
        return (
            re.match(rf"{name}={value}: must be (a (finite|whole) number|one of )", str(error))
            is not None
        )
    return False


def is_limit(option: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """Return whether the class of the option declares the setting as a limit."""
    fields = getattr(get_object(option["_target_"]), "__dataclass_fields__", {})
    if path[-1] not in fields:
        return False
    kind = fields[path[-1]].type
    return (
        "Limit" in kind if isinstance(kind, str) else INFINITE in getattr(kind, "__metadata__", ())
    )


def test_no_numeric_setting_of_an_option_is_nan_or_without_bound() -> None:
    found = 0
    limits = 0
    for option, group, path in settings():
        found += 1
        assert refused(option, group, path, float("nan")), (group, path)
        assert refused(option, group, path, float("-inf")), (group, path)
        limits += is_limit(option, path)
        assert refused(option, group, path, float("inf")) != is_limit(option, path), (group, path)
    assert found > 150
    assert limits > 5


@pytest.mark.parametrize(
    ("kind", "group", "values"),
    [
        (Batch, "batch", {"max_norm": float("nan")}),
        (PolicyGradientSettings, "algo", {"entropy_coefficient": float("inf")}),
        (PolicyGradientSettings, "algo", {"replay_fraction": float("inf")}),
        (PolicyGradientSettings, "algo", {"clip_reward": float("inf")}),
    ],
)
def test_settings_of_a_run(kind: Any, group: str, values: dict[str, float]) -> None:
    [[name, value]] = values.items()
    with pytest.raises(
        UserError, match=rf"^{group}\.{name}={value}: must be a finite number( or null)?$"
    ):
        parse_settings(OmegaConf.create(values), group, kind)


def test_a_limit_may_be_switched_off() -> None:
    batch = parse_settings(OmegaConf.create({"max_norm": float("inf")}), "batch", Batch)
    assert batch.max_norm == float("inf")
    node = OmegaConf.create({"_target_": "rlmods.ratio.Clipped", "high": float("inf")})
    assert instantiate(node, "ratio") == Clipped(high=float("inf"))


def test_an_option_may_be_a_partial_function() -> None:
    node = {"_target_": "rlmods.ratio.Clipped", "_partial_": True, "high": 0.3}
    made = instantiate(OmegaConf.create(node), "ratio")
    assert made(low=0.1) == Clipped(low=0.1, high=0.3)


def test_numbers_in_lists_are_finite() -> None:
    node = {"_target_": "torch.optim.AdamW", "betas": [0.9, float("nan")]}
    with pytest.raises(UserError, match=r"^optimizer\.betas=nan: must be a finite number$"):
        instantiate(OmegaConf.create(node), "optimizer", partial=True)
