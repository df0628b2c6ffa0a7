"""Dropout in training as an option of reward models and DPO; none in the reference, in validation
and in the exported model."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlmods.adapter import LoRA
from rlmods.algo import DPO, Batch, ProcessRewardModel, RewardModel
from rlmods.errors import UserError
from rlmods.policy.modes import context_length, eval_mode, set_dropout
from rlmods.preference import KTO, Sigmoid
from rlmods.ranking import BradleyTerry
from tests.support.models import PDROP, gpt2, policy as wrapped
from tests.support.tiny_setup import SPLITS, OneRank, fit, learner

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "reward model": (RewardModel, {"ranking": BradleyTerry(), "rollout": None, "reward": None}),
    "process reward model": (ProcessRewardModel, {"rollout": None, "reward": None}),
    "dpo": (DPO, {"preference": Sigmoid()}),
    "lora": (DPO, {"preference": Sigmoid(), "adapter": LoRA(rank=2)}),
    "kto": (DPO, {"preference": KTO()}),
}


def made(name: str, dropout: float, seed: int = 0, model: Any = None) -> Any:
    kind, parts = KINDS[name]
    own = wrapped(gpt2(**PDROP) if model is None else model)
    return learner(kind, policy=own, dropout=dropout, batch=Batch(prompts=4), seed=seed, **parts)


def trained(name: str, dropout: float, state: int = 0) -> torch.Tensor:
    """Return the weights after two iterations, which begin with this state of the global
    generator."""
    torch.manual_seed(0)  # the adapter is random
    module = made(name, dropout)
    torch.manual_seed(state)
    fit(module, 2)
    return torch.cat(
        [x.detach().flatten() for network in module.networks.values() for x in network.parameters()]
    )


@pytest.mark.parametrize("name", KINDS)
class TestTraining:
    def test_dropout_changes_training_and_depends_on_the_seed_alone(self, name: str) -> None:
        without, first = trained(name, 0.0), trained(name, 0.3)
        assert torch.equal(trained(name, 0.3, state=123), first), (
            "resuming starts with another state of the global generator"
        )
        assert not torch.equal(first, without)

    def test_scores_of_reference_and_validation_have_none(self, name: str) -> None:
        module = made(name, 0.5)
        module.trainer = OneRank()
        [network] = module.networks.values()
        rows = module.rows(SPLITS.train[:4])
        assert not network.training
        network.train(network.needs_train_mode)
        assert network.training
        if name in ("dpo", "lora", "kto"):
            assert torch.equal(
                module.score(rows, module.reference.policy),
                module.rows(SPLITS.train[:4]).ref_logprobs,
            )
            torch.testing.assert_close(
                module.score(rows, module.policy), rows.ref_logprobs, rtol=0, atol=1e-5
            )
            assert network.training
        tokens = rows.tokens.flatten(0, -2)
        forward = (
            (lambda: network(tokens))
            if name.endswith("model")
            else (lambda: network(tokens, torch.ones_like(tokens).bool()).logprobs)
        )
        if name.endswith("model"):
            network.model.score.weight.data.normal_()
        if name != "lora":  # in a new adapter B is 0, but the base has dropout
            assert not torch.equal(forward(), forward())
        with eval_mode(network):
            assert torch.equal(forward(), forward())


class TestSetDropout:
    def test_is_not_exported(self, tmp_path: Path) -> None:
        policy = wrapped(gpt2(**PDROP))
        assert not policy.needs_train_mode
        set_dropout(policy, 0.2)
        policy.export(tmp_path)
        written = json.loads((tmp_path / "config.json").read_text())
        assert {name: written[name] for name in PDROP} == PDROP
        assert policy.needs_train_mode

    def test_a_model_without_dropout_is_refused(self) -> None:
        policy = wrapped()
        policy.model = torch.nn.Linear(2, 2)
        with pytest.raises(
            UserError, match=r"algo.dropout=0.2: Linear has no dropout: type algo.dropout=0"
        ):
            set_dropout(policy, 0.2)

    def test_an_invalid_probability_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"algo.dropout=1.0: must be at least 0 and below 1"):
            made("dpo", 1.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "longrope", "original_max_position_embeddings": 64}, 64),
    ],
)
def test_rows_end_where_positions_would_depend_on_other_rows(
    settings: dict[str, Any], expected: int
) -> None:
    config = SimpleNamespace(max_position_embeddings=512, rope_parameters=settings)
    by_layer = SimpleNamespace(
        max_position_embeddings=512, rope_parameters={"full_attention": settings}
    )
    for text in (config, by_layer):
        composite = SimpleNamespace(get_text_config=lambda text=text: text)
        assert context_length(SimpleNamespace(config=composite)) == expected
