"""Bugs that no operator makes: arguments swapped, rows mixed up, gradients cut, sums forgotten.

Each bug replaces one function of a module or class, selected by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from typing import Any

import torch

Function = Callable[..., Any]
INVARIANCES = "tests/test_loss_invariances.py"
LOOP = "tests/algo/test_policy_gradient.py"


@dataclass(frozen=True)
class Bug:
    """A bug, planted in a fresh process before the tests import the package."""

    plant: Callable[[], None]
    tests: Sequence[str]


BUGS: dict[str, Bug] = {}
"""Bugs by what they break."""


def bug(module: str, name: str, *tests: str) -> Callable[[Callable[[Function], Function]], None]:
    """Register a bug: `name` ("function" or "Class.method") of `module` is replaced by what the
    decorated function makes of it."""

    def register(make: Callable[[Function], Function]) -> None:
        def plant() -> None:
            *classes, last = name.split(".")
            owner = import_module(f"rlmods.{module}")
            for each in classes:
                owner = getattr(owner, each)
            original = getattr(owner, last)
            setattr(owner, last, wraps(original)(make(original)))

        BUGS[make.__name__.replace("_", " ")] = Bug(plant, tests)

    return register


# Parts


@bug("kl.penalty", "Penalty.__call__", "tests/kl", "tests/test_golden.py")
def the_kl_is_the_reference_against_the_policy(original: Function) -> Function:
    return lambda self, logprobs, ref_logprobs: original(self, ref_logprobs, logprobs)


@bug("kl.penalty", "Penalty.__call__", "tests/kl")
def the_kl_has_no_gradient(original: Function) -> Function:
    return lambda self, *args: original(self, *args).detach()


@bug("advantage.gae", "GAE.estimate", "tests/advantage")
def gae_reads_the_value_of_the_next_token(original: Function) -> Function:
    return lambda self, rewards, mask, group, values: original(
        self, rewards, mask, group, values.roll(-1, 1)
    )


@bug("advantage.gae", "GAE.normalize", "tests/advantage")
def whitening_counts_padding(original: Function) -> Function:
    return lambda self, advantages, mask: original(self, advantages, torch.ones_like(mask))


@bug("advantage.rloo", "RLOO.__call__", "tests/advantage")
def the_baseline_of_rloo_contains_the_response_itself(original: Function) -> Function:
    from rlmods.advantage.group_mean import GroupMean

    return lambda self, *args: GroupMean()(*args)


@bug("advantage.group_norm", "GroupNorm.__call__", "tests/advantage", "tests/test_golden.py")
def groups_are_told_by_position(original: Function) -> Function:
    return lambda self, rewards, mask, group, values: original(
        self, rewards, mask, group.sort().values, values
    )


@bug("advantage.group_norm", "GroupNorm.__call__", "tests/advantage", "tests/test_golden.py")
def the_group_norm_divides_by_the_population_deviation(original: Function) -> Function:
    return lambda self, *args: original(replace(self, unbiased=False), *args)


@bug("aggregation.token_mean", "TokenMean.__call__", "tests/aggregation", INVARIANCES)
def the_token_mean_counts_masked_slots(original: Function) -> Function:
    return lambda self, x, mask, totals: original(self, x, torch.ones_like(mask), totals)


@bug("aggregation.token_mean", "TokenMean.__call__", "tests/aggregation", INVARIANCES)
def the_token_mean_divides_by_the_tokens_of_the_microbatch(original: Function) -> Function:
    return lambda self, x, mask, totals: original(self, x, mask, replace(totals, tokens=mask.sum()))


@bug("ratio.clipped", "Clipped.__call__", "tests/ratio", INVARIANCES)
def a_row_is_weighted_by_the_advantage_of_another(original: Function) -> Function:
    return lambda self, log_ratio, advantages, mask: original(
        self, log_ratio, advantages.roll(1, 0), mask
    )


@bug("ratio.clipped", "Clipped.__call__", "tests/ratio")
def the_clip_fraction_is_counted_after_clipping(original: Function) -> Function:
    def call(self: Any, *args: Any) -> Any:
        found = original(self, *args)
        return replace(found, clipped=torch.zeros_like(found.clipped))

    return call


@bug("sampling.dynamic", "Dynamic.__call__", "tests/sampling")
def groups_that_are_all_right_are_kept(original: Function) -> Function:
    return lambda self, scores, group: original(self, scores, group) | (scores == 1)


@bug("preference.sigmoid", "Sigmoid.__call__", "tests/preference", "tests/test_golden.py")
def dpo_prefers_the_rejected_response(original: Function) -> Function:
    return lambda self, *args: original(self, *args[:-1], -args[-1])


@bug("preference.sigmoid", "Sigmoid.reward", "tests/preference", "tests/test_golden.py")
def dpo_averages_log_probabilities(original: Function) -> Function:
    return lambda self, *args: original(self, *args) / args[-1].clamp(min=1)


@bug("critic.loss", "value_loss", "tests/critic", "tests/test_golden.py")
def the_critic_learns_the_return_of_the_next_token(original: Function) -> Function:
    return lambda values, old, returns, *args: original(values, old, returns.roll(-1, 1), *args)


@bug("correction.truncated", "Truncated.__call__", "tests/correction")
def the_correction_is_the_inverse(original: Function) -> Function:
    return lambda self, old, behavior, mask: original(self, behavior, old, mask)


@bug("tokens.off_policy", "OffPolicy.__call__", "tests/tokens/test_off_policy.py")
def the_distance_from_the_sampler_is_the_negative_one(original: Function) -> Function:
    return lambda self, logprobs, advantages, mask, behavior: original(
        self, behavior, advantages, mask, logprobs
    )


@bug("tokens.covariance", "center", "tests/tokens/test_covariance.py")
def the_covariance_is_of_the_plain_numbers(original: Function) -> Function:
    return lambda x, mask: (torch.where(mask, x, 0.0), mask.sum())


@bug("training.parts", "TokenSelection.objective", "tests/training/test_parts.py")
def tokens_that_are_left_out_are_trained(original: Function) -> Function:
    return lambda self, objective, log_ratio, trained: objective


@bug("algo.policy_gradient", "PolicyGradient.select_tokens", "tests/training/test_parts.py")
def a_selection_of_the_step_is_made_without_the_step(original: Function) -> Function:
    return lambda self, rows: rows


@bug(
    "training.extensions.supervised", "Likelihood.before_step", "tests/training/test_supervised.py"
)
def the_likelihood_is_a_sum(original: Function) -> Function:
    return lambda self, minibatch: []


@bug("advantage.gae", "adaptive_lambda", "tests/advantage/test_gae.py")
def the_adaptive_lambda_counts_columns(original: Function) -> Function:
    return lambda mask, alpha: original(torch.ones_like(mask), alpha)


@bug("reward.length", "overlong_penalty", "tests/reward/test_length.py", "tests/test_golden.py")
def the_overlong_penalty_begins_at_the_limit(original: Function) -> Function:
    return lambda length, max_length, cache: original(length, max_length + cache, cache)


# The way through the loop


@bug("training.collate", "collate", "tests/training/test_collate.py", LOOP)
def the_end_of_text_has_no_loss(original: Function) -> Function:
    def collate(*args: Any, **options: Any) -> Any:
        batch = original(*args, **options)
        following = torch.zeros_like(batch.mask)
        following[:, :-1] = batch.mask[:, 1:]
        return replace(batch, mask=batch.mask & following)

    return collate


@bug("training.collate", "collate", "tests/training/test_collate.py", LOOP)
def padded_slots_are_marked_as_sampled(original: Function) -> Function:
    def collate(*args: Any, **options: Any) -> Any:
        batch = original(*args, **options)
        return replace(batch, mask=batch.mask | (batch.mask.cumsum(1) > 0))

    return collate


@bug("training.meter", "Meter.mean", "tests/training/test_meter.py")
def a_mean_of_microbatches_is_a_mean_of_means(original: Function) -> Function:
    def mean(self: Any, name: str, x: Any, where: Any = None) -> None:
        values = torch.as_tensor(x, dtype=torch.float64)
        chosen = values if where is None else values[where]
        if chosen.numel():
            original(self, name, chosen.mean())

    return mean


@bug("training.meter", "Meter.sum", "tests/training")
def a_sum_over_the_iteration_keeps_its_last_value(original: Function) -> Function:
    return lambda self, name, value: original(self, name, min(value, 1))


@bug("training.train_step", "TrainStep.clip", "tests/training/test_train_step.py", LOOP)
def gradients_are_not_clipped(original: Function) -> Function:
    def clip(self: Any) -> Any:
        self.max_norm = float("inf")
        return original(self)

    return clip


@bug("training.buffer", "SampleBuffer.pop", "tests/training/test_buffer.py", LOOP)
def rejected_groups_are_trained_on(original: Function) -> Function:
    def pop(self: Any, num_groups: int) -> Any:
        rows = original(self, num_groups)
        return replace(rows, mask=rows.mask | (rows.old_logprobs != 0))

    return pop


@bug("policy.output_layer", "linear_logprobs", "tests/policy/test_output_layer.py")
def entropy_has_no_gradient(original: Function) -> Function:
    def linear_logprobs(*args: Any, **options: Any) -> Any:
        scores = original(*args, **options)
        return type(scores)(scores[0], scores[1].detach())

    return linear_logprobs


@bug("policy.output_layer", "linear_logprobs", "tests/policy/test_output_layer.py")
def the_temperature_is_forgotten(original: Function) -> Function:
    return lambda hidden, weight, bias, targets, transform, **options: original(
        hidden, weight, bias, targets, replace(transform, temperature=1.0), **options
    )


@bug("ops", "keyed_uniforms", "tests/test_ops.py", "tests/rollout/test_local.py")
def samples_do_not_depend_on_the_iteration(original: Function) -> Function:
    return lambda count, *key: original(count, *key[:-1], 0)
