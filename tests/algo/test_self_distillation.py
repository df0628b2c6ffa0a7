"""SDPO: the policy, shown a correct sibling or feedback, grades the tokens of its own responses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlmods.advantage import GroupMean, Sum, TeacherLogRatio
from rlmods.algo import SDPO, Batch, PolicyGradient
from rlmods.algo.gkd import DistillBatch, divergence
from rlmods.config import build
from rlmods.errors import UserError
from rlmods.ratio import Unclipped
from rlmods.teacher import SelfTeacher
from rlmods.training.meter import Meter
from rlmods.types import Response, Scores, Turn
from tests.support.composed import composed
from tests.support.tiny_setup import (
    SPLITS,
    attached,
    close,
    even,
    fit,
    flat,
    flat_gradient,
    gradients,
    learner,
    perturb,
    sampled,
    sharp,
)

TEMPLATE = "{demonstration};{prompt}"
FEEDBACK = ["", "odd", None, "late"]


def graded(responses: list[Response]) -> Scores:
    """Group 0 has two correct responses, group 1 one, the others none; feedback on some."""
    correct = [i in (1, 2, 7) for i in range(len(responses))]
    columns = {"why": [FEEDBACK[i % 4] for i in range(len(responses))]}
    return Scores([float(x) for x in correct], correct=correct, columns=columns)


def sdpo(teacher: SelfTeacher, **change: Any) -> Any:
    parts = {"advantage": TeacherLogRatio(), "ratio": Unclipped(), "reward": graded}
    return attached(learner(PolicyGradient, **parts | {"teacher": teacher} | change))


def log_ratio(made: Any, response: Response, shown: str) -> torch.Tensor:
    """log p(y | shown; x) - log p(y | x) in float64, by a forward of one row."""

    def logprobs(text: str) -> torch.Tensor:
        start = made.policy.encode(replace(response.prompt, text=text))
        logits = model(torch.tensor([[*start, *response.tokens]])).logits[0].log_softmax(-1)
        places = range(len(start) - 1, len(start) + len(response.tokens) - 1)
        return torch.stack([logits[i, x] for i, x in zip(places, response.tokens, strict=True)])

    model = made.policy.frozen_copy().double().model
    return logprobs(f"{shown};{response.prompt.text}") - logprobs(str(response.prompt.text))


def next_logprobs(model: Any, start: list[int], response: Response) -> torch.Tensor:
    """Log-probabilities [m, V] of each token of a response, by a forward of one row."""
    logits = model.model(torch.tensor([[*start, *response.tokens]])).logits[0]
    whole: torch.Tensor = logits.log_softmax(-1)[len(start) - 1 : -1]
    return whole


def shown_to(row: int, responses: list[Response], sibling: bool, feedback: bool) -> str | None:
    """What the teacher sees before a row of `graded`, written out."""
    of_row = {0: 1, 1: 2, 2: 1, 3: 1, 4: 7, 5: 7, 6: 7}
    texts = []
    if sibling and row in of_row:
        texts.append(responses[of_row[row]].text)
    if feedback and row not in (1, 2, 7) and FEEDBACK[row % 4]:
        texts.append(str(FEEDBACK[row % 4]))
    return "\n\n".join(texts) if texts else None


class TestAdvantages:
    @pytest.mark.parametrize(
        ("sibling", "feedback"), [(True, False), (False, True), (True, True)], ids=str
    )
    def test_are_those_of_a_slow_reference(self, sibling: bool, feedback: bool) -> None:
        part = SelfTeacher(
            sibling=sibling,
            feedback="why" if feedback else None,
            template=TEMPLATE,
            weights="current",
        )
        made = sdpo(part)
        batch, responses = sampled(made)
        num_scored = 0
        for i, response in enumerate(responses):
            shown = shown_to(i, responses, sibling, feedback)
            expected = torch.zeros(len(response.tokens), dtype=torch.float64)
            if shown is not None:
                expected = log_ratio(made, response, shown)
                assert expected.abs().max() > 1e-3
                num_scored += 1
            found = batch.advantages[i, batch.mask[i]].double()
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
        metrics = made.meter.compute()
        assert metrics["train/teacher_scored_fraction"] == num_scored / len(responses)
        assert len({len(r.tokens) for r in responses}) > 2

    def test_gradient_is_that_of_the_likelihood_weighted_by_the_advantages(self) -> None:
        made = sdpo(SelfTeacher(sibling=True, template=TEMPLATE))
        batch, responses = sampled(made)
        found = gradients(made, batch)
        made.zero_grad()
        total = torch.zeros(())
        for i, response in enumerate(responses):
            shown = shown_to(i, responses, True, False)
            row = torch.tensor([[*response.prompt_tokens, *response.tokens]])
            mask = torch.arange(row.shape[1])[None] >= len(response.prompt_tokens)
            if shown is not None:
                weights = log_ratio(made, response, shown).float()
                total = total - (made.policy(row, mask).logprobs[mask] * weights).sum()
        (total / batch.mask.sum()).backward()
        close(found, flat_gradient(made.policy))

    def test_a_teacher_that_sees_the_same_gives_none(self) -> None:
        made = sdpo(SelfTeacher(sibling=True, template="{prompt}{demonstration:.0}"))
        batch, _ = sampled(made)
        assert made.meter.compute()["train/teacher_scored_fraction"] > 0.5
        assert batch.advantages.abs().max() < 1e-5

    def test_beside_an_advantage_of_the_group(self) -> None:
        def advantages(weight: float) -> torch.Tensor:
            terms = {
                "reward": {"estimator": GroupMean()},
                "teacher": {"estimator": TeacherLogRatio(), "weight": weight},
            }
            made = sdpo(SelfTeacher(sibling=True, template=TEMPLATE), advantage=Sum(terms))
            return sampled(made)[0].advantages

        alone, _ = sampled(sdpo(SelfTeacher(sibling=True, template=TEMPLATE)))
        without, _ = sampled(
            attached(learner(PolicyGradient, advantage=GroupMean(), reward=graded))
        )
        assert torch.equal(advantages(0.0)[without.mask], without.advantages[without.mask])
        both = without.advantages + 0.5 * alone.advantages
        torch.testing.assert_close(advantages(0.5)[without.mask], both[without.mask])

    def test_observations_are_not_scored_and_cuts_are_left_out(self) -> None:
        made = sdpo(SelfTeacher(sibling=True, template=TEMPLATE))
        _, responses = sampled(made)
        long = sorted(responses[:4], key=lambda r: len(r.tokens))[-1]
        assert len(long.tokens) >= 4
        mask = [True, False, True] + [True] * (len(long.tokens) - 3)
        turns = [Turn(0, 1, text="7"), Turn(2, len(long.tokens), text="8")]
        observed = replace(long, mask=mask, turns=turns)
        rows = [observed, replace(observed, cuts=(2,)), long]
        scores = Scores([0.0, 0.0, 1.0], correct=[False, False, True])
        batch = made.as_rows(rows, scores, torch.zeros(3, dtype=torch.long))
        found = made.teacher.logprobs(rows, scores, batch, made.scorer, made.meter)
        assert found[1].isnan().all()
        assert found[2].isnan().all()
        assert found[0].isnan().equal(~batch.mask[0])
        batch = made.scorer.add_old_logprobs(batch, torch.ones(3, dtype=torch.bool))
        expected = log_ratio(made, long, long.text)[torch.tensor(mask)]
        gap = (found - batch.old_logprobs)[0, batch.mask[0]].double()
        torch.testing.assert_close(gap, expected, rtol=0, atol=1e-4)

    def test_a_teacher_without_room_scores_nothing(self) -> None:
        made = sdpo(SelfTeacher(sibling=True, template=TEMPLATE))
        made.policy.context_length = 12
        made.teacher.network.context_length = 6
        batch, responses = sampled(made)
        # what it would be shown does not fit its context
        has_loss = torch.ones(len(responses), dtype=torch.bool)
        scores = graded(responses)
        seen, scored = made.teacher.as_seen(responses, scores, batch.group, has_loss, Meter())
        assert not scored.any()
        assert seen == responses
        metrics = made.meter.compute()
        assert metrics["train/teacher_too_long_fraction"] > 0
        assert metrics["train/teacher_scored_fraction"] == 0
        assert batch.teacher_logprobs.isnan().all()
        assert (batch.advantages == 0).all()

    @pytest.mark.parametrize(
        ("reward", "message"),
        [
            (graded, r"teacher\.feedback=wy: .* did you mean why\?"),
            (even, r"0 such columns: return Scores\(values, columns="),
        ],
    )
    def test_an_unknown_column(self, reward: Any, message: str) -> None:
        made = sdpo(SelfTeacher(feedback="wy"), reward=reward)
        with pytest.raises(UserError, match=message):
            made.sample(SPLITS.train[:2])


class TestMovingWeights:
    def test_follow_the_policy_and_are_saved(self) -> None:
        def made() -> Any:
            part = SelfTeacher(sibling=True, template=TEMPLATE, weights="ema", rate=0.25)
            terms = {
                "reward": {"estimator": GroupMean()},
                "teacher": {"estimator": TeacherLogRatio()},
            }
            batch = Batch(prompts=4, samples=4)
            return learner(PolicyGradient, teacher=part, advantage=Sum(terms), batch=batch)

        whole = made()
        start = flat(whole.teacher.network)
        fit(whole, 1)
        moved = flat(whole.teacher.network)
        torch.testing.assert_close(moved, 0.75 * start + 0.25 * flat(whole.policy))
        assert not torch.equal(moved, start)
        saved = whole.checkpoint.state()
        other = made()
        other.checkpoint.load_state(saved)
        assert torch.equal(flat(other.teacher.network), flat(whole.teacher.network))

    def test_can_begin_to_move_when_a_run_is_resumed(self) -> None:
        def made(weights: Any) -> Any:
            part = SelfTeacher(sibling=True, template=TEMPLATE, weights=weights)
            return sdpo(part)

        start = made("start")
        moving = made("ema")
        perturb(start.policy)
        moving.checkpoint.load_state(start.checkpoint.state())
        assert torch.equal(flat(moving.teacher.network), flat(start.teacher.network))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "type teacher.sibling=true"),
        ({"sibling": True, "demonstration": "answer"}, "drop it, or them"),
        ({"sibling": True, "weights": "ema", "rate": 0.0}, "teacher.rate=0.0"),
    ],
)
def test_mistakes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        SelfTeacher(**fields)


class TestDistributions:
    """`algo=sdpo`: the teacher of `TestAdvantages`, with the divergence of distributions."""

    @staticmethod
    def made(part: SelfTeacher, **change: Any) -> Any:
        settings = {"on_policy_fraction": 1.0, "top_k": 5, "beta": 0.5, "policy": sharp(0)}
        return attached(learner(SDPO, teacher=part, reward=graded, **settings | change))

    @pytest.mark.parametrize(
        ("sibling", "feedback"), [(True, False), (False, True), (True, True)], ids=str
    )
    @pytest.mark.parametrize("change", [{}, {"top_k": None}, {"beta": 1.0}], ids=str)
    def test_loss_and_gradient_are_those_of_a_slow_reference(
        self, sibling: bool, feedback: bool, change: dict[str, Any]
    ) -> None:
        part = SelfTeacher(
            sibling=sibling,
            feedback="why" if feedback else None,
            template=TEMPLATE,
            weights="current",
        )
        made = self.made(part, **change)
        responses, scores = made.responses(SPLITS.train[:3])
        rows = made.collate(responses, scores, torch.arange(3).repeat_interleave(4))
        found = gradients(made, rows)
        loss = made.meter.compute()["train/loss"]
        made.zero_grad()
        settings = made.settings
        values = []
        for i, response in enumerate(responses):
            shown = shown_to(i, responses, sibling, feedback)
            if shown is None:
                continue
            seen = made.policy.encode(
                replace(response.prompt, text=f"{shown};{response.prompt.text}")
            )
            teacher = next_logprobs(made.policy, seen, response).detach()
            student = next_logprobs(made.policy, list(response.prompt_tokens), response)
            values.append(divergence(student, teacher, settings.beta, settings.top_k))
        assert 0 < len(values) < len(responses)
        expected = torch.cat(values).mean()
        expected.backward()
        close(found, flat_gradient(made.policy))
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        assert expected > 1e-3

    def test_counts_all_sampled_tokens_and_those_that_the_teacher_scores(self) -> None:
        made = self.made(SelfTeacher(sibling=True, template=TEMPLATE))
        rows = made.rows(SPLITS.train[:3])
        metrics = made.meter.compute()
        assert metrics["train/teacher_scored_fraction"] == 7 / 12
        assert metrics["train/accuracy"] == 3 / 12
        assert [row["reward"] for row in made.samples] == [float(i in (1, 2, 7)) for i in range(12)]
        num_tokens = round(metrics["train/response_tokens"] * 12)
        assert made.response_tokens + int(rows.loss_counts[0]) == num_tokens
        assert made.response_tokens > 0

    def test_a_response_without_a_score_is_not_taught(self) -> None:
        def abstains(responses: list[Response]) -> Scores:
            scores = graded(responses)
            values = [None if i in (0, 1) else x for i, x in enumerate(scores.values)]
            correct = [None if i in (0, 1) else x for i, x in enumerate(scores.correct or ())]
            return replace(scores, values=values, correct=correct)

        made = self.made(SelfTeacher(sibling=True, template=TEMPLATE))
        made.reward = abstains
        rows = made.rows(SPLITS.train[:3])
        # 2 is correct and has no correct sibling, 7 neither
        assert rows.student.mask.any(1).nonzero().squeeze(1).tolist() == [3, 4, 5, 6]
        assert torch.equal(rows.student.mask.sum(1), rows.teacher.mask.sum(1))
        assert made.meter.compute()["train/unscored_fraction"] == 2 / 12

    def test_the_prompt_of_a_group_is_computed_once(self) -> None:
        made = self.made(SelfTeacher(sibling=True, template=TEMPLATE, success=0.0))
        rows = made.rows(SPLITS.train[:3])
        [order] = made.microbatches.chunks(rows)
        assert rows.group[order].tolist() == [0] * 4 + [1] * 4 + [2] * 4
        alone, added = rows.computed_tokens(order)
        prompt = min(len(made.policy.encode(p)) for p in SPLITS.train[:3])
        # the first two of a group are shown each other, the next two the same response
        assert (alone - added)[2:4].min() >= prompt
        assert (added >= rows.student.computed_tokens(order)[1]).all()

    def test_feedback_of_a_reward_that_is_composed(self, tmp_path: Path) -> None:
        file = tmp_path / "own.py"
        file.write_text("def grade(solution_str):\n    return {'score': 0.0, 'why': 'too short'}\n")
        made = composed(
            *("algo=sdpo", "teacher.feedback=why", "batch.prompts=2", "batch.samples=2"),
            *("reward=function", f"reward.function={file}:grade", f"run_dir={tmp_path / 'run'}"),
            *("rollout.max_tokens=8", "batch.preflight=true"),
        )
        run = build.load(made)
        fit(run.learner, 1)

    def test_no_correct_response_gives_no_gradient(self) -> None:
        def wrong(responses: list[Response]) -> Scores:
            return Scores([0.0] * len(responses), correct=[False] * len(responses))

        made = self.made(SelfTeacher(sibling=True, template=TEMPLATE))
        made.reward = wrong
        rows = made.rows(SPLITS.train[:3])
        assert isinstance(rows, DistillBatch)
        assert rows.loss_counts[0] == 0
        assert gradients(made, rows).abs().max() == 0

    def test_the_moving_teacher_follows(self) -> None:
        part = SelfTeacher(sibling=True, template=TEMPLATE, weights="ema", rate=0.5)
        made = learner(SDPO, teacher=part, reward=graded, on_policy_fraction=1.0)
        before = {name: x.clone() for name, x in made.policy.trainable_tensors().items()}
        fit(made, 1)
        after = made.policy.trainable_tensors()
        for name, x in made.teacher.network.trainable_tensors().items():
            torch.testing.assert_close(x, (before[name] + after[name]) / 2)
        assert any(not torch.equal(before[name], after[name]) for name in before)
