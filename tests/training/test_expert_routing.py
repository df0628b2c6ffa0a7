"""Mixtures of experts in the loop: what is recorded is what is replayed, ratios keep still, and
routers learn when it is their turn."""

import copy
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from rlmods.algo import Batch
from rlmods.kl import Penalty
from rlmods.policy import Policy
from rlmods.ratio import CISPO, Clipped, GeometricMean, LogLikelihood
from rlmods.rollout import Local
from rlmods.router import Routing
from rlmods.sampling import Dynamic
from rlmods.training.buffer import SampleBuffer
from rlmods.training.extensions.expert_routing import ExpertRouting, loss_row_tokens
from rlmods.types import Experience, Totals
from tests.support.mixtures import mixture
from tests.support.models import llama, policy as plain
from tests.support.tiny_setup import attached, collected, extension, fit, gradients, learner

SEVERAL = Batch(prompts=4, samples=4, epochs=4, minibatches=2)
GATES = [f"policy.model.model.layers.{i}.mlp.gate.weight" for i in range(3)]
quiet = pytest.mark.filterwarnings("ignore:the experts of a token may change")


def made(
    router: Routing | None = None, *, ends: int = 25, policy: Policy | None = None, **change: Any
) -> Any:
    """A learner of a mixture whose answers end at one of so many of its 102 tokens."""
    policy = policy or mixture()
    policy.eos_ids = frozenset(range(1, ends + 1))
    return learner(policy=policy, router=router or Routing(), **change)


def watched(made: Any) -> list[tuple[Experience, Tensor]]:
    """Microbatches as the loss gets them, and the experts [N, T, L, k] that the policy used in
    each."""
    seen: list[tuple[Experience, Tensor]] = []
    given: list[Tensor] = []
    experts = [
        module for name, module in made.policy.model.named_modules() if name.endswith(".experts")
    ]
    for module in experts:
        module.register_forward_pre_hook(lambda _, args: given.append(args[1]))
    loss = made.loss

    def spy(micro: Experience, totals: Totals) -> Tensor:
        given.clear()
        found = loss(micro, totals)
        seen.append(
            (
                micro,
                torch.stack(given[: len(experts)], 1).view(*micro.tokens.shape, len(experts), -1),
            )
        )
        return found

    made.loss = spy
    return seen


def distances(
    router: Routing, *, policy: Policy | None = None, ratio: Any = None, lr: float = 3e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """|log ratio| by token of the first optimizer step, of the later ones, and what the ratio made
    of the latter."""
    settings = {"rollout": Local(max_tokens=32), "optimizer": partial(torch.optim.AdamW, lr=lr)}
    run = made(
        router,
        ends=1,
        policy=policy,
        batch=Batch(prompts=8, samples=4, epochs=4, minibatches=2),
        **settings,
    )
    part = ratio or Clipped()
    tokens: list[Tensor] = []
    taken: list[Tensor] = []

    class Spy:
        level = part.level

        def __call__(self, d: Tensor, advantages: Tensor, mask: Tensor) -> Any:
            tokens.append(d.detach()[mask].abs())
            taken.append(part.ratio(d.detach(), mask)[mask].log().abs())
            return part(d, advantages, mask)

    run.set_ratio(Spy())
    fit(run, 2 if lr else 1)
    later = [i for i in range(len(tokens)) if i % 8]
    return tokens[0], torch.cat([tokens[i] for i in later]), torch.cat([taken[i] for i in later])


class TestReplay:
    @pytest.mark.slow
    def test_every_row_keeps_its_own_routes_through_epochs_and_shuffling(self) -> None:
        run = made(Routing(replay=True), batch=replace(SEVERAL, token_budget=48))
        seen, recorded, score = watched(run), dict[tuple[int, ...], Tensor](), run.scorer.score

        def spy(experience: Experience, policy: Policy, **options: Any) -> Any:
            found = score(experience, policy, **options)
            for row, length, routes in zip(
                experience.tokens, experience.lengths.tolist(), found.routed_experts, strict=True
            ):
                recorded[tuple(row[:length].tolist())] = routes[:length]
            return found

        run.scorer.score = spy
        fit(run, 1)
        assert len(seen) > 8
        assert len(recorded) > 8
        changed = 0
        for micro, used in seen:
            for i, length in enumerate(micro.lengths.tolist()):
                if not micro.mask[i].any():
                    continue
                want = recorded[tuple(micro.tokens[i, :length].tolist())]
                assert torch.equal(micro.routed_experts[i, :length], want)
                assert torch.equal(used[i, :length], want.long())
                changed += int(
                    (run.policy(micro.tokens, micro.mask).routed_experts[i, :length] != want).sum()
                )
        assert changed > 0, "no router has changed its mind, so that nothing was tested"

    @pytest.mark.slow
    def test_the_first_ratio_is_one_and_later_ones_are_those_of_a_model_that_does_not_route(
        self,
    ) -> None:
        first, still, _ = distances(Routing(replay=True))
        assert first.max() < 1e-6
        _, fixed, _ = distances(Routing(replay=True, every=None))
        _, dense, _ = distances(Routing(), policy=plain(llama(num_hidden_layers=3)))
        tails = {
            name: float(x.quantile(0.999))
            for name, x in (("replay", still), ("fixed", fixed), ("dense", dense))
        }
        assert tails["replay"] < 1.2 * tails["fixed"]
        assert tails["replay"] < 1.2 * tails["dense"]

    @quiet
    @pytest.mark.slow
    def test_the_ratio_of_a_sequence_needs_no_replay(self) -> None:
        _, tokens, sequence = distances(Routing(), ratio=Clipped(3e-4, 4e-4, "sequence"))
        assert sequence.quantile(0.999) < 0.25 * tokens.quantile(0.999)

    def test_the_reference_routes_by_itself(self) -> None:
        run = attached(made(Routing(replay=True), kl=Penalty("k3", 0.1, "loss")))
        rows = collected(run)
        assert (rows.routed_experts[loss_row_tokens(rows)] >= 0).all()
        rows = replace(rows, routed_experts=(rows.routed_experts + 1) % 8)
        assert torch.equal(
            run.scorer.add_ref_logprobs(rows, run.reference.policy).ref_logprobs,
            collected(run).ref_logprobs,
        )
        assert not torch.equal(
            run.scorer.score(rows, run.policy).logprobs, collected(run).old_logprobs
        )

    @pytest.mark.slow
    def test_however_the_step_is_cut(self) -> None:
        """Loss and gradient, the balancing loss among them."""
        found = []
        for budget in (10_000, 40, 1):
            router = Routing(replay=True, aux_coefficient=0.5)
            run = attached(made(router, batch=Batch(prompts=4, samples=4, token_budget=budget)))
            rows = collected(run)
            with torch.no_grad():
                for router in run.policy.routers.modules:
                    router.weight.add_(
                        0.2
                        * torch.randn(
                            router.weight.shape, generator=torch.Generator().manual_seed(1)
                        )
                    )
            extension(run, ExpertRouting).before_step(rows)
            found.append(
                (
                    gradients(run, rows),
                    run.meter.compute()
                    | {"aux": float(extension(run, ExpertRouting).aux_losses[0])},
                )
            )
        (want, metrics), *others = found
        assert metrics["train/router_changed_fraction"] > 0.1
        assert want.norm() > 1e-2
        for have, same in others:
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-5)
            assert same == pytest.approx(metrics, rel=1e-4, abs=2e-6)

    def test_waiting_and_replayed_rows_keep_theirs(self) -> None:
        rows = collected(attached(made(Routing(replay=True))))
        wide = replace(
            rows,
            tokens=torch.nn.functional.pad(rows.tokens, (0, 3)),
            **{
                name: torch.nn.functional.pad(getattr(rows, name), (0, 3))
                for name in ("mask", "rewards", "old_logprobs", "behavior_logprobs", "advantages")
            },
            routed_experts=torch.nn.functional.pad(
                rows.routed_experts, (0, 0, 0, 0, 0, 3), value=-1
            ),
        )
        both = Experience.concat([rows, wide])
        assert torch.equal(both.routed_experts[: len(rows)], wide.routed_experts)
        assert torch.equal(both.trim().routed_experts[len(rows) :], rows.trim().routed_experts)
        buffer, other = (SampleBuffer(learner().ranks) for _ in range(2))
        buffer.push(rows, torch.ones(len(rows), dtype=torch.bool))
        other.load_rank_states([buffer.rank_state()], 0, 1)
        assert other.kept is not None
        assert torch.equal(other.kept.routed_experts, rows.trim().routed_experts)
        assert other.kept.routed_experts.dtype == torch.int16


class TestRouters:
    def weights(self, run: Any) -> dict[str, Tensor]:
        return {name: x.detach().clone() for name, x in run.named_parameters()}

    def test_learn_under_replay_and_not_when_frozen(self) -> None:
        for router, learns in (
            (Routing(replay=True), True),
            (Routing(replay=True, every=None), False),
        ):
            run = made(router, batch=SEVERAL)
            before = self.weights(run)
            fit(run, 1)
            moved = {
                name for name, x in self.weights(run).items() if not torch.equal(x, before[name])
            }
            assert moved == set(before) - (set() if learns else set(GATES))

    @pytest.mark.slow
    def test_step_in_every_second_iteration_as_if_there_were_no_others(self) -> None:
        """Moments too: AdamW has counted the steps that were made."""
        run = made(Routing(replay=True, every=2), batch=SEVERAL)
        history = [self.weights(run)]
        optimize = run.optimize
        run.optimize = lambda *args: (optimize(*args), history.append(self.weights(run)))[0]
        fit(run, 4)
        for i in range(4):
            moved = {
                name for name, x in history[i + 1].items() if not torch.equal(x, history[i][name])
            }
            assert moved == set(history[0]) - (set() if i % 2 else set(GATES)), i
        optimizer = run.optimizers()
        steps = {name: int(optimizer.state[p]["step"]) for name, p in run.named_parameters()}
        assert {steps[name] for name in GATES} == {16}
        assert {n for name, n in steps.items() if name not in GATES} == {32}

    @pytest.mark.slow
    def test_resting_ones_have_no_part_in_the_gradient_norm(self) -> None:
        norms = []
        for every in (2, None):
            run = made(Routing(replay=True, every=every))
            norms.append(fit(run, 1)[0]["train/grad_norm"])
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        assert fit(made(Routing(replay=True)), 1)[0]["train/grad_norm"] > 1.001 * norms[0]


def test_balance_adds_the_loss_of_transformers_and_its_gradient() -> None:
    run = attached(made())
    rows = collected(run)
    without = gradients(run, rows)
    on = attached(made(Routing(aux_coefficient=0.3)))
    extension(on, ExpertRouting).before_step(rows)
    have = gradients(on, rows) - without
    on.zero_grad()
    logits = on.policy.model(input_ids=rows.tokens, output_router_logits=True).router_logits
    aux = load_balancing_loss_func(logits, 8, 2, loss_row_tokens(rows))
    (0.3 * aux).backward()
    want = torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in on.policy.parameters()
        ]
    )
    assert float(extension(on, ExpertRouting).aux_losses[0]) == pytest.approx(
        float(aux.detach()), rel=1e-5
    )
    assert want.norm() > 1e-2
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-5)


def test_real_tokens_are_those_of_prompt_and_response_where_there_is_loss() -> None:
    rows = collected(attached(made()))
    silent = replace(rows, mask=rows.mask & (torch.arange(len(rows)) != 2)[:, None])
    where = loss_row_tokens(silent)
    assert not where[2].any()
    for i, length in enumerate(rows.lengths.tolist()):
        assert where[i].sum() == (0 if i == 2 else length)
        assert not where[i, length:].any()


def test_changed_fraction_and_load_against_a_slow_count() -> None:
    run = attached(made())
    rows = collected(run)
    rows.routed_experts[0] = -1
    with torch.no_grad():
        run.policy.routers.modules[0].weight.add_(0.2)
    run.policy.routers.modules[0].weight.data[0] += 0.3
    gradients(run, rows)
    live, where = run.policy(rows.tokens, rows.mask).routed_experts, loss_row_tokens(rows)
    changed = total = 0
    counts = torch.zeros(3, 8)
    for i in range(len(rows)):
        for t in range(rows.tokens.shape[1]):
            for layer in range(3) if where[i, t] else ():
                chosen = live[i, t, layer].tolist()
                counts[layer, chosen] += 1
                total += i > 0
                changed += i > 0 and set(chosen) != set(rows.routed_experts[i, t, layer].tolist())
    extension(run, ExpertRouting).after_update(rows, len(rows))
    metrics = run.meter.compute()
    assert 0 < changed < total
    assert metrics["train/router_changed_fraction"] == pytest.approx(changed / total)
    assert metrics["train/router_load_max"] == pytest.approx(
        float((counts / counts.mean(1, keepdim=True)).max())
    )


@pytest.mark.slow
class TestWarning:
    @pytest.mark.parametrize("ratio", [Clipped(), CISPO()])
    def test_of_token_ratios_over_several_steps(self, ratio: Any) -> None:
        for change in ({"batch": SEVERAL}, {"replay_fraction": 0.5}):
            with pytest.warns(
                UserWarning, match=r"type router=replay .*, or ratio=sequence"
            ) as said:
                fit(made(ratio=ratio, **change), 1)
            assert len([w for w in said if "experts of a token" in str(w.message)]) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"router": Routing(replay=True), "batch": SEVERAL},
            {"ratio": Clipped(level="sequence"), "batch": SEVERAL},
            {"ratio": Clipped(level="sequence_token"), "batch": SEVERAL},
            {"ratio": GeometricMean(), "batch": SEVERAL},
            {"ratio": LogLikelihood(), "batch": SEVERAL},
        ],
    )
    def test_of_nothing_else(self, change: dict[str, Any]) -> None:
        with warnings.catch_warnings(record=True) as said:
            fit(made(**change), 1)
            fit(learner(batch=SEVERAL), 1)
        assert not [w for w in said if "experts of a token" in str(w.message)]


@pytest.mark.slow
def test_dynamic_sampling_with_waiting_groups_and_a_critic_on_the_trunk_run() -> None:
    from rlmods.advantage import GAE
    from rlmods.critic import Shared

    run = made(
        Routing(replay=True),
        sampling=Dynamic(),
        batch=Batch(prompts=3, samples=2, epochs=2),
        surplus="keep",
        replay_fraction=0.5,
    )
    assert fit(run, 3)[-1]["train/ratio_max"] > 1
    run = made(
        Routing(replay=True),
        advantage=GAE(),
        critic=Shared(),
        batch=SEVERAL,
        policy=mixture(gradient_checkpointing=True),
    )
    assert fit(copy.deepcopy(run), 2)[-1]["train/ratio_max"] > 1


def test_frozen_routers_are_in_the_checkpoint() -> None:
    """Nobody vouches for those that a resumed run would load."""
    made = learner(policy=mixture("qwen3"), router=Routing(every=None))
    assert any(not x.requires_grad for x in made.policy.parameters())
    assert made.checkpoint.frozen_state() == {}
