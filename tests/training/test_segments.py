"""Responses with cuts: the tokens of each segment see their own context only, and all else treats
the segments as one response."""

from dataclasses import asdict, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlmods.advantage import GAE, GroupNorm
from rlmods.aggregation import FixedLength, SequenceMean, TokenMean
from rlmods.algo import PPO, Batch
from rlmods.branching import Entropy
from rlmods.critic import Separate, Shared
from rlmods.kl import Penalty
from rlmods.policy.base import PolicyOutput
from rlmods.ratio import Clipped, Unclipped
from rlmods.reward import EnvironmentReward
from rlmods.rollout import Local, MultiTurn
from rlmods.training.checkpoint import rank_state, reshard_rows
from rlmods.training.collate import collate
from rlmods.training.extensions.sample_ahead import SampleAhead, _loaded
from rlmods.training.sample_log import sample_row
from rlmods.training.segments import Segments, forward
from rlmods.types import Branch, Experience, Prompt, Response, Scores
from tests.support.environments import Chat, forgetful
from tests.support.reference import gae
from tests.support.tiny_setup import SPLITS, close, collected, gradients, learner, policy

PPO_PARTS: dict[str, Any] = {
    "kind": PPO,
    "advantage": GAE(0.9, 0.8),
    "critic": Separate(),
    "kl": Penalty("k1", 0.1, "reward"),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "clipped": {},
    "kl and entropy": {"kl": Penalty("k3", 0.1, "loss"), "entropy_coefficient": 0.1},
    "ppo": PPO_PARTS,
    "shared critic": PPO_PARTS | {"critic": Shared()},
}


def made(**changes: Any) -> Any:
    rollout = MultiTurn(Local(max_tokens=16, seed=3), Chat())
    parts = {
        "policy": forgetful(policy()),
        "rollout": rollout,
        "reward": EnvironmentReward(),
        "batch": Batch(prompts=4, samples=4),
    }
    model = learner(**(parts | changes))
    if model.critic is not None:  # a new head is 0, and so would be all values
        head = (
            model.critic.scalar.model.score
            if isinstance(changes["critic"], Separate)
            else model.critic
        )
        torch.manual_seed(1)
        for parameter in head.parameters():
            parameter.data.normal_()
    return model


def sampled(
    environment: Any = None, samples: int = 4, branching: Any = None, **options: Any
) -> tuple[Any, list[Response]]:
    model = forgetful(policy(**options))
    rollout = MultiTurn(Local(max_tokens=16, seed=3), environment or Chat(), branching)
    rollout.sync(model, iteration=0)
    return model, rollout.generate(SPLITS.train[:4], samples=samples, iteration=0)


def bounds(rows: Experience, i: int) -> list[tuple[int, int]]:
    """Return the first and last column of the segments of a row."""
    assert rows.cuts is not None
    edges = [0, *rows.cuts[i].nonzero().flatten().tolist(), int(rows.lengths[i])]
    return list(pairwise(edges))


def apart(rows: Experience) -> Experience:
    """Return each segment as a row of its own, made by hand, with what the response has in its
    columns."""
    parts = []
    for i in range(len(rows)):
        for begin, end in bounds(rows, i):
            columns = {
                name: x[i : i + 1] if x.ndim == 1 else x[i : i + 1, begin:end]
                for name, x in rows.tensors().items()
                if x is not None
            }
            parts.append(
                Experience(**columns | {"cuts": None, "lengths": torch.tensor([end - begin])})
            )  # type: ignore[arg-type]
    return Experience.concat(parts)


class TestSegments:
    CUTS = torch.tensor(
        [[0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], dtype=torch.bool
    )
    LENGTHS = torch.tensor([6, 3, 4])
    X = torch.arange(1, 19).view(3, 6)

    def segments(self) -> Segments:
        rows: Any = SimpleNamespace(cuts=self.CUTS, lengths=self.LENGTHS)
        segments = Segments.of(rows)
        assert segments is not None
        return segments

    def test_split_where_cuts_are(self) -> None:
        split = self.segments().split(self.X)
        assert split.tolist() == [
            [1, 2, 0],
            [3, 4, 0],
            [5, 6, 0],
            [7, 8, 9],
            [13, 0, 0],
            [14, 15, 16],
        ]

    def test_join_undoes_split(self) -> None:
        segments = self.segments()
        joined = segments.join(segments.split(self.X), -1)
        used = torch.arange(6) < self.LENGTHS[:, None]
        assert torch.equal(joined, torch.where(used, self.X, -1))
        both = torch.stack([self.X, -self.X], -1)
        assert torch.equal(
            segments.join(segments.split(both))[..., 1], torch.where(used, -self.X, 0)
        )

    def test_forward_tokens_count_the_padding_of_segments(self) -> None:
        _, responses = sampled()
        rows = collate(responses, Scores([1.0] * 16), torch.arange(16), policy_version=0, pad_id=0)
        expected = [
            len(own := bounds(rows, i)) * max(end - begin for begin, end in own) for i in range(16)
        ]
        assert rows.forward_tokens.tolist() == expected
        assert max(map(len, (r.cuts for r in responses))) > 1

    def test_outputs_of_the_router_are_in_the_order_of_the_rows(self) -> None:
        rows = collate([CUT, CUT], Scores([1.0] * 2), torch.arange(2), policy_version=0, pad_id=0)

        def routed(tokens: Tensor, mask: Tensor, routed_experts: Tensor | None) -> PolicyOutput:
            x = tokens.float()
            logits = torch.stack([x, -x], -1).flatten(0, 1)
            experts = tokens[:, :, None, None]
            return PolicyOutput(x, x, routed_experts=experts, router_logits=(logits, 2 * logits))

        output = forward(routed, rows)
        assert output.router_logits is not None
        expected = torch.stack([rows.tokens, -rows.tokens], -1).flatten(0, 1).float()
        assert torch.equal(output.router_logits[0], expected)
        assert torch.equal(output.router_logits[1], 2 * expected)
        assert output.routed_experts is not None
        assert torch.equal(output.routed_experts[..., 0, 0], rows.tokens)


class TestRollout:
    def test_contexts_are_what_the_template_writes(self) -> None:
        model, responses = sampled()
        assert {len(r.cuts) for r in responses} >= {0, 1, 2}
        for r in responses:
            assert r.mask is not None
            assert all(r.mask[t.start : t.stop] == [True] * (t.stop - t.start) for t in r.turns)
            text = model.decode(r.prompt_tokens, skip_special_tokens=False)
            for before, turn in pairwise(r.turns):
                context = r.tokens[before.stop : turn.start]
                assert not any(r.mask[before.stop : turn.start])
                written = text + before.raw[before.raw[:1].isalpha() :]
                new = model.decode(context, skip_special_tokens=False)
                assert (before.stop in r.cuts) == before.raw[:1].isalpha()
                text = new if before.stop in r.cuts else text + before.raw + new
                assert text.startswith(written + ";=ab")

    def test_logprobs_are_those_of_the_segments(self) -> None:
        """Of a segment forwarded alone, and of the forward of whole rows."""
        model, responses = sampled()
        rows = collate(
            responses, Scores([1.0] * 16), torch.arange(16), policy_version=0, pad_id=model.pad_id
        )
        joined = forward(model, rows).logprobs.detach()
        torch.testing.assert_close(
            joined[rows.mask], rows.behavior_logprobs[rows.mask], rtol=0, atol=1e-4
        )
        for i in range(len(rows)):
            for begin, end in bounds(rows, i):
                logits = (
                    model.model(rows.tokens[i : i + 1, begin:end])
                    .logits[0]
                    .log_softmax(-1)
                    .detach()
                )
                for t in range(begin, end):
                    if rows.mask[i, t]:
                        assert float(logits[t - begin - 1, rows.tokens[i, t]]) == pytest.approx(
                            float(joined[i, t]), abs=1e-5
                        )

    def test_limits_count_no_token_twice(self) -> None:
        (_, free), (_, limited) = (
            sampled(Chat(max_turns=8, least=6, max_tokens=limit)) for limit in (1000, 60)
        )
        assert max(r.turns[-2].stop for r in limited if r.cuts) > 60
        for r in limited:
            observed = sum(b.start - a.stop for a, b in pairwise(r.turns) if a.stop not in r.cuts)
            assert r.num_sampled + observed <= 60
        assert sum(len(r.turns) for r in limited) < sum(len(r.turns) for r in free)

    def test_segments_fit_the_context(self) -> None:
        _, responses = sampled(Chat(least=3), context_length=24)
        rows = collate(responses, Scores([1.0] * 16), torch.arange(16), policy_version=0, pad_id=0)
        lengths = [end - begin for i in range(16) for begin, end in bounds(rows, i)]
        assert max(lengths) <= 24
        assert int(rows.lengths.max()) > 24

    def test_branches_keep_the_cuts_of_their_parents(self) -> None:
        rule = Entropy(num_initial=2, tau=-1e9)
        model, responses = sampled(Chat(least=3), samples=6, branching=rule)
        branched = [
            r
            for r in responses
            if r.branch is not None and any(cut < r.branch.shared for cut in r.cuts)
        ]
        assert branched
        group = torch.arange(4).repeat_interleave(6)
        rows = collate(responses, Scores([1.0] * 24), group, policy_version=0, pad_id=model.pad_id)
        torch.testing.assert_close(
            forward(model, rows).logprobs[rows.mask],
            rows.behavior_logprobs[rows.mask],
            rtol=0,
            atol=1e-4,
        )


@pytest.mark.parametrize("variant", VARIANTS)
class TestGradient:
    def test_is_that_of_separate_samples_that_share_the_credit(self, variant: str) -> None:
        model = made(**VARIANTS[variant])
        rows = collected(model)
        assert rows.cuts is not None
        assert rows.cuts.any()
        close(gradients(model, rows), gradients(model, apart(rows)))

    def test_is_the_same_for_any_microbatches(self, variant: str) -> None:
        model = made(**VARIANTS[variant])
        rows = collected(model)
        whole = gradients(model, rows)
        model.microbatches.token_budget = 1
        close(gradients(model, rows), whole)


@pytest.mark.parametrize(
    ("ratio", "aggregation"),
    [
        (Unclipped(), TokenMean()),
        (Unclipped(), FixedLength(30)),
        (Clipped(level="sequence", low=1.0, high=1e9), SequenceMean()),
    ],
)
def test_ratio_and_aggregation_take_a_response_as_one_sequence(
    ratio: Any, aggregation: Any
) -> None:
    """Against a plain loop over responses, with the logits of one segment at a time."""
    model = made(ratio=ratio, advantage=GroupNorm(), aggregation=aggregation)
    rows = collected(model)
    rows = replace(
        rows,
        old_logprobs=rows.old_logprobs
        - 0.3 * torch.rand(rows.mask.shape, generator=torch.Generator().manual_seed(0)),
    )
    losses: list[Tensor] = []
    for i in range(len(rows)):
        ratios = []
        for begin, end in bounds(rows, i):
            logprobs = (
                model.policy.model(rows.tokens[i : i + 1, begin:end]).logits[0].log_softmax(-1)
            )
            ratios += [
                logprobs[t - begin - 1, rows.tokens[i, t]] - rows.old_logprobs[i, t]
                for t in range(begin, end)
                if rows.mask[i, t]
            ]
        log_ratio = torch.stack(ratios)
        if isinstance(ratio, Clipped):
            log_ratio = log_ratio.mean().expand(len(log_ratio))
        advantage = rows.advantages[i][rows.mask[i]][0]
        lengths = {
            TokenMean: float(rows.mask.sum()),
            SequenceMean: len(rows) * len(log_ratio),
            FixedLength: len(rows) * 30.0,
        }
        losses.append(-(log_ratio.exp() * advantage).sum() / lengths[type(aggregation)])
    parameters = [p for p in model.policy.parameters() if p.requires_grad]
    expected = torch.cat(
        [g.flatten() for g in torch.autograd.grad(torch.stack(losses).sum(), parameters)]
    )
    close(gradients(model, rows), expected)


def test_gae_carries_values_across_cuts() -> None:
    """Against the quadratic sum over the sampled tokens; the value of a token is that of its
    segment."""
    model = made(
        **PPO_PARTS
        | {"kl": Penalty("k1", 0.0, "reward"), "reward": EnvironmentReward(by_turn=True)}
    )
    rows = collected(model)
    assert rows.values is not None
    assert rows.returns is not None
    advantages, returns = gae(rows.rewards.double(), rows.values.double(), rows.mask, 0.9, 0.8)
    torch.testing.assert_close(rows.advantages.double(), advantages, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows.returns.double(), returns, rtol=1e-4, atol=1e-5)
    hand = apart(rows)
    torch.testing.assert_close(
        rows.values[rows.mask],
        model.critic(hand.tokens, hand.mask)[hand.mask],
        rtol=1e-4,
        atol=1e-5,
    )


CUT = Response(
    Prompt(id="a", text="1"),
    [1, 2],
    [3, 4, 5, 6, 7],
    [-1.0] * 5,
    mask=[True, False, False, True, True],
    cuts=[1],
    meta={"sample": 0},
)


class TestRecords:
    def test_rows_mark_the_first_token_of_a_segment(self) -> None:
        rows = collate(
            [CUT, replace(CUT, cuts=())],
            Scores([1.0, 1.0]),
            torch.tensor([0, 0]),
            policy_version=0,
            pad_id=0,
        )
        assert rows.cuts is not None
        assert rows.cuts.nonzero().tolist() == [[0, 3]]
        assert (
            collate(
                [replace(CUT, cuts=())],
                Scores([1.0]),
                torch.tensor([0]),
                policy_version=0,
                pad_id=0,
            ).cuts
            is None
        )

    def test_rows_with_and_without_cuts_are_concatenated(self) -> None:
        with_cuts, without = (
            collate([r], Scores([1.0]), torch.tensor([0]), policy_version=0, pad_id=0)
            for r in (CUT, replace(CUT, cuts=()))
        )
        both = Experience.concat([without, with_cuts])
        assert both.cuts is not None
        assert both.cuts.nonzero().tolist() == [[1, 3]]
        assert Experience.concat([without, without]).cuts is None

    def test_checkpoints_keep_cuts(self) -> None:
        rows = collate([CUT], Scores([1.0]), torch.tensor([0]), policy_version=0, pad_id=0)
        loaded = reshard_rows([rank_state(rows)], 0, 1)
        assert loaded is not None
        assert torch.equal(loaded.cuts, rows.cuts)  # type: ignore[arg-type]
        ahead = SampleAhead()
        ahead._responses = [CUT, replace(CUT, cuts=()), replace(CUT, branch=Branch(0, 1))]
        again = [_loaded(row) for row in ahead.rank_state()["responses"]]
        assert [list(r.cuts) for r in again] == [[1], [], [1]]
        assert [r.branch for r in again] == [None, None, Branch(0, 1)]

    def test_the_sample_log_has_them(self) -> None:
        assert sample_row(CUT, Scores([1.0]), 0)["cuts"] == [1]
        assert "cuts" not in sample_row(replace(CUT, cuts=()), Scores([1.0]), 0)
        assert "cuts" in asdict(CUT)
