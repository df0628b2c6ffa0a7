"""Router options: checks, freezing and update frequency."""

import pytest

from rlmods.errors import UserError
from rlmods.router import Routing
from tests.support.mixtures import mixture
from tests.support.models import policy


@pytest.mark.parametrize(
    "options",
    [
        {"replay": True},
        {"every": None},
        {"every": 2},
        {"aux_coefficient": 0.1},
        {"entropy_coefficient": 0.1},
    ],
)
def test_a_dense_policy_is_rejected(options):
    Routing()(policy())
    with pytest.raises(
        UserError, match=r"LlamaForCausalLM has no routers .*: type router=free"
    ) as error:
        Routing(**options)(policy())
    assert "\n" not in str(error.value)


def test_every_null_freezes_the_routers_only():
    frozen_policy = mixture()
    Routing(every=None)(frozen_policy)
    frozen = [name for name, p in frozen_policy.named_parameters() if not p.requires_grad]
    assert frozen == [f"model.model.layers.{i}.mlp.gate.weight" for i in range(3)]
    for other in (Routing(), Routing(every=3), Routing(replay=True)):
        other(trained_policy := mixture())
        assert all(p.requires_grad for p in trained_policy.parameters())


def test_routers_are_updated_every_n_iterations():
    assert [not Routing(every=3).is_frozen(i) for i in range(7)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert not any(Routing().is_frozen(i) for i in range(3))
    assert all(Routing(every=None).is_frozen(i) for i in range(3))
