"""On-policy distillation: advantages by token against the teacher's own log-probabilities,
gradients, and that it learns."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from rlmods.advantage import ReinforcePP, Sum, TeacherLogRatio
from rlmods.algo import Batch, Distill
from rlmods.errors import UserError
from rlmods.kl import Penalty
from rlmods.ops import kl_divergence
from rlmods.policy.base import DivergenceFrom
from rlmods.ratio import Unclipped
from rlmods.rollout import Local as LocalRollout
from rlmods.teacher import Local, SelfTeacher, Server
from rlmods.types import Prompt, Response, Scores
from tests.judge.server import serve
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    collected,
    fit,
    flat_gradient,
    gradients,
    learner,
    perturb,
    policy,
    sampled,
    sharp,
)
from tests.teacher.test_server import vllm

TEACHER = Local(policy=partial(policy, seed=3))
SEES = {"demonstration": "answer", "template": "{demonstration} {prompt}"}


def distill(teacher: Any = TEACHER, **change: Any) -> Any:
    return attached(
        learner(
            Distill,
            **{"teacher": teacher, "advantage": TeacherLogRatio(), "ratio": Unclipped()} | change,
        )
    )


def weighted(weight: float, reward: Any = None) -> Sum:
    """The teacher's advantage with a weight, beside one of the reward."""
    terms = {"teacher": {"estimator": TeacherLogRatio(), "weight": weight}}
    return Sum(terms if reward is None else terms | {"reward": {"estimator": reward}})


def alone(model: Any, prompt: Prompt, response: Response, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of a response by transformers, one row without padding."""
    start = model.encode(prompt)
    ids = torch.tensor([[*start, *response.tokens]])
    logprobs = (model.model(ids).logits[0].float() / temperature).log_softmax(-1)
    return torch.stack(
        [logprobs[len(start) + i - 1, x] for i, x in enumerate(response.tokens)]
    ).detach()


class TestAdvantages:
    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    @pytest.mark.parametrize("sees", [{}, SEES], ids=["same prompt", "demonstration"])
    def test_are_differences_of_logprobs(self, sees: dict[str, str], temperature: float) -> None:
        part = Local(policy=partial(policy, seed=3), **sees)
        made = distill(
            part,
            rollout=LocalRollout(max_tokens=8, temperature=temperature),
            advantage=weighted(0.5),
        )
        batch, responses = sampled(made)
        model, gaps = policy(3), []
        assert len({len(r.tokens) for r in responses}) > 2
        for i, r in enumerate(responses):
            gap = alone(model, part.prompt(r.prompt), r, temperature) - alone(
                made.policy, r.prompt, r, temperature
            )
            torch.testing.assert_close(
                batch.advantages[i, batch.mask[i]], 0.5 * gap, rtol=0, atol=1e-4
            )
            gaps.append(gap)
        assert batch.advantages[~batch.mask].abs().max() == 0
        metrics, gap = made.meter.compute(), torch.cat(gaps)
        assert metrics["train/kl_teacher"] == pytest.approx(-gap.mean().item(), abs=1e-4)
        assert metrics["train/teacher_above_fraction"] == pytest.approx(
            (gap > 0).double().mean().item()
        )
        assert gap.abs().max() > 1e-3

    @pytest.mark.parametrize("weights", ["start", "current"])
    def test_of_the_policy_with_a_demonstration(self, weights: str) -> None:
        part = SelfTeacher(weights=weights, **SEES)
        made = distill(part)
        start = policy()
        perturb(made.policy, 0.05)
        batch, responses = sampled(made)
        model = start if weights == "start" else made.policy
        for i, r in enumerate(responses):
            gap = alone(model, part.prompt(r.prompt), r) - alone(made.policy, r.prompt, r)
            torch.testing.assert_close(batch.advantages[i, batch.mask[i]], gap, rtol=0, atol=1e-4)

    def test_of_a_server(self) -> None:
        """The ids of the teacher's prompt and of the response are sent, and values come back to
        their tokens."""
        with serve(vllm) as log:
            part = Server(url=log.url, model="m", **SEES)
            object.__setattr__(part, "tokenizer", None)
            made = distill(_Untokenized(part))
            batch, responses = sampled(made)
        for i, r in enumerate(responses):
            start = made.policy.encode(part.prompt(r.prompt))
            assert [*start, *r.tokens] in [body["prompt"] for body in log.bodies]
            expected = torch.tensor([-(len(start) + j + x / 100) for j, x in enumerate(r.tokens)])
            torch.testing.assert_close(batch.teacher_logprobs[i, batch.mask[i]], expected)
        assert len(log.bodies) == len(responses)

    def test_are_added_after_normalisation_over_the_batch(self) -> None:
        both, reward, teacher = (
            sampled(distill(advantage=advantage))[0].advantages
            for advantage in (weighted(0.3, ReinforcePP()), ReinforcePP(), weighted(0.3))
        )
        torch.testing.assert_close(both, reward + teacher)
        assert reward.abs().max() > 0.1

    def test_a_kl_in_the_reward_is_subtracted_from_those_of_the_teacher(self) -> None:
        """Also without an advantage from rewards: -beta sum_{s >= t} log(pi / pi_ref) at each
        token."""
        made = distill(advantage=weighted(0.3), kl=Penalty("k1", 0.5, "reward"))
        perturb(made.policy, 0.05)
        batch, responses = sampled(made)
        penalties = []
        for i, r in enumerate(responses):
            logprobs, ref_logprobs, teacher = (
                alone(model, r.prompt, r) for model in (made.policy, policy(), policy(3))
            )
            penalties.append(0.5 * (logprobs - ref_logprobs).flip(0).cumsum(0).flip(0))
            torch.testing.assert_close(
                batch.advantages[i, batch.mask[i]],
                0.3 * (teacher - logprobs) - penalties[i],
                rtol=0,
                atol=1e-4,
            )
        assert torch.cat(penalties).abs().max() > 1e-2

    def test_unscored_rows_have_no_loss(self) -> None:
        def some(responses: list[Response]) -> Scores:
            return Scores([None if i % 3 == 0 else 1.0 for i in range(len(responses))])

        made = distill(reward=some)
        batch, responses = sampled(made)
        for i, r in enumerate(responses):
            assert bool(batch.mask[i].any()) == (i % 3 != 0)
            if i % 3:
                gap = alone(policy(3), r.prompt, r) - alone(made.policy, r.prompt, r)
                torch.testing.assert_close(
                    batch.advantages[i, batch.mask[i]], gap, rtol=0, atol=1e-4
                )


class _Untokenized:
    """A server whose tokenizer is not compared."""

    def __init__(self, part: Server) -> None:
        self.part = part

    def __call__(self, policy: Any) -> None:
        return None

    def logprobs(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        return self.part.logprobs(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


class TestGradient:
    def test_is_that_of_the_log_likelihood_weighted_by_the_gap(self) -> None:
        made = distill()
        batch = collected(made)
        found = gradients(made, batch)
        made.zero_grad()
        logprobs = made.policy(batch.tokens, batch.mask).logprobs
        gap = policy(3)(batch.tokens, batch.mask).logprobs.detach() - logprobs.detach()
        (-(logprobs * gap)[batch.mask].mean()).backward()
        close(found, flat_gradient(made.policy))

    def test_its_mean_over_samples_is_that_of_the_reverse_kl(self) -> None:
        """For responses of one token, by enumeration of the vocabulary: sum_v pi_v A_v grad log
        pi_v = -grad KL(pi || p_T)."""
        made, teacher = distill(), policy(3)
        start = made.policy.encode(SPLITS.train[0])
        size = len(made.policy.tokenizer)
        tokens = torch.tensor([[*start, v] for v in range(size)])
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        mask[:, -1] = True
        logprobs = made.policy(tokens, mask).logprobs[mask]
        gap = teacher(tokens, mask).logprobs[mask].detach() - logprobs.detach()
        (-(logprobs.exp().detach() * gap * logprobs).sum()).backward()
        found = flat_gradient(made.policy)
        made.zero_grad()
        other = DivergenceFrom(
            teacher(tokens[:1], mask[:1], states=True).states.detach(),
            teacher.output_layer(),
            kl_divergence,
        )
        made.policy(tokens[:1], mask[:1], other=other).divergence.sum().backward()
        close(found, flat_gradient(made.policy))

    def test_the_teacher_is_not_trained_or_saved(self) -> None:
        made = distill()
        assert not any("teacher" in name for name in made.state_dict())
        assert made.frozen["teacher"].networks == [made.teacher.network]
        saved = made.checkpoint.state()
        distill().checkpoint.load_state(saved)
        with pytest.raises(
            UserError,
            match="the teacher is not the model that the run began with: restore policy= and "
            "teacher=",
        ):
            distill(Local(policy=partial(policy, seed=4))).checkpoint.load_state(saved)


def test_a_prompt_too_long_for_the_teacher() -> None:
    part = Local(
        policy=partial(policy, seed=3, context_length=20),
        demonstration="answer",
        template="{demonstration}" * 20 + "{prompt}",
    )
    with pytest.raises(
        UserError,
        match=r"tokens as the teacher sees it; with 8 tokens of a response that exceeds its context "
        r"of 20",
    ):
        fit(learner(Distill, teacher=part, advantage=TeacherLogRatio(), ratio=Unclipped()), 1)


@pytest.mark.slow
def test_it_learns() -> None:
    """The divergence from the teacher, which is far from uniform, falls."""
    made = learner(
        Distill,
        teacher=Local(policy=sharp),
        advantage=TeacherLogRatio(),
        ratio=Unclipped(),
        batch=Batch(prompts=16, samples=8),
    )
    kl = [row["train/kl_teacher"] for row in fit(made, 40)]
    assert kl[0] > 0.5
    assert sum(kl[-5:]) / 5 < 0.7 * kl[0]
