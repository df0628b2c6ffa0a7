"""What becomes of routers."""

import pytest

from rlmods.router import Routing
from rlmods.types import UserError
from tests.policy.mixtures import mixture
from tests.policy.test_base import policy


@pytest.mark.parametrize("wrong", [{"replay": 1}, {"every": 0}, {"every": 1.5}, {"every": True}, {"aux_coefficient": -1.0}])
def test_values_out_of_range_name_their_key(wrong):
    [key] = wrong
    with pytest.raises(ValueError, match=rf"router\.{key}="):
        Routing(**wrong)


@pytest.mark.parametrize("asked", [{"replay": True}, {"every": None}, {"every": 2}, {"aux_coefficient": 0.1}])
def test_a_dense_policy_is_refused(asked):
    Routing()(policy())
    with pytest.raises(UserError, match=r"LlamaForCausalLM has no routers .*: type router=free") as error:
        Routing(**asked)(policy())
    assert "\n" not in str(error.value)


def test_frozen_routers_and_nothing_else():
    made = mixture()
    Routing(every=None)(made)
    frozen = [name for name, p in made.named_parameters() if not p.requires_grad]
    assert frozen == [f"model.model.layers.{i}.mlp.gate.weight" for i in range(3)]
    for other in (Routing(), Routing(every=3), Routing(replay=True)):
        other(free := mixture())
        assert all(p.requires_grad for p in free.parameters())


def test_steps_of_every_third_iteration():
    assert [not Routing(every=3).rests(i) for i in range(7)] == [False, False, True, False, False, True, False]
    assert not any(Routing().rests(i) for i in range(3))
    assert all(Routing(every=None).rests(i) for i in range(3))
