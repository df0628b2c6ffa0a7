from typing import Any

import pytest

from rlmods.errors import UserError
from rlmods.needs import AdvantageNeeds, KLNeeds, RewardNeeds, needs_of


class Plugin:
    """A part that imports nothing of the package."""


class Declared(Plugin):
    needs = RewardNeeds(answer=True, columns=("tests",))


class Grouped(Plugin):
    needs = RewardNeeds(group=True, gives_steps=True, gives_outcomes=False)


class Misdeclared(Plugin):
    needs = "group"


def test_a_part_without_declarations_has_the_defaults() -> None:
    assert needs_of(Plugin(), AdvantageNeeds) == AdvantageNeeds()
    assert needs_of(None, KLNeeds).reference


@pytest.mark.parametrize(
    ("part", "kind"), [(Misdeclared(), AdvantageNeeds), (Declared(), AdvantageNeeds)]
)
def test_declarations_of_another_type_are_an_error(part: Any, kind: Any) -> None:
    name = type(part).__name__
    with pytest.raises(UserError, match=rf"^{name}\.needs is .*: write needs = AdvantageNeeds\("):
        needs_of(part, kind)


def test_a_reward_has_the_needs_of_its_members_but_their_columns() -> None:
    assert RewardNeeds.combine([Declared(), Plugin()]) == RewardNeeds(answer=True)
    assert RewardNeeds.combine([Grouped()]) == Grouped.needs
    assert RewardNeeds.combine([Grouped(), Declared()]) == RewardNeeds(
        answer=True, group=True, gives_steps=True
    )
