"""Slow loops written from the papers: one scalar at a time, true slots only. Meant to be read
beside the paper, and never to be fast.

A field is {(row, slot): scalar} over the true slots; scalars are float64 tensors, so that autograd
differentiates the loops as well."""

from math import ceil, exp, log, sqrt

import torch
from torch import Tensor

Field = dict[tuple[int, int], Tensor]


def true_slots(mask: Tensor) -> list[list[int]]:
    """Per row, the slots where the mask is true."""
    return [[t for t in range(mask.shape[1]) if mask[i, t]] for i in range(mask.shape[0])]


def slots(mask: Tensor) -> list[tuple[int, int]]:
    """Row and slot wherever the mask is true."""
    return [(i, t) for i, ts in enumerate(true_slots(mask)) for t in ts]


def dense(field: Field, shape: torch.Size) -> Tensor:
    """[N, T] with 0 outside the field."""
    out = torch.zeros(shape, dtype=torch.float64)
    for (i, t), x in field.items():
        out[i, t] = x
    return out


# advantages


def group_advantage(
    kind: str,
    rewards: Tensor,
    mask: Tensor,
    group: Tensor,
    eps: float = 1e-6,
    unbiased: bool = True,
) -> Tensor:
    """group_norm, group_mean or rloo: each response against the scored responses of equal group
    id."""
    rows = true_slots(mask)
    score = {i: sum(float(rewards[i, t]) for t in ts) for i, ts in enumerate(rows) if ts}
    field: Field = {}
    for i, own in score.items():
        members = [score[j] for j in score if int(group[j]) == int(group[i])]
        size = len(members)
        if size == 1 or max(members) == min(members):
            advantage = 0.0
        elif kind == "rloo":
            advantage = own - (sum(members) - own) / (size - 1)
        else:
            advantage = own - sum(members) / size
            if kind == "group_norm":
                squares = sum((x - sum(members) / size) ** 2 for x in members)
                advantage /= sqrt(squares / (size - 1 if unbiased else size)) + eps
        field.update({(i, t): torch.tensor(advantage, dtype=torch.float64) for t in rows[i]})
    return dense(field, mask.shape)


def turn_advantage(
    rewards: Tensor,
    mask: Tensor,
    group: Tensor,
    turn: Tensor,
    key: Tensor,
    gamma: float,
    eps: float,
    unbiased: bool,
) -> Tensor:
    """turn_norm (`key` is the turn's index) or anchor_state (`key` is its state): each turn against
    the turns of equal group id and key."""
    rows = true_slots(mask)
    score: dict[tuple[int, int], float] = {}
    cell: dict[tuple[int, int], tuple[int, int]] = {}
    for i, ts in enumerate(rows):
        indices = sorted({int(turn[i, t]) for t in ts})
        for k in indices:
            later = [t for t in ts if int(turn[i, t]) >= k]
            score[i, k] = sum(gamma ** (int(turn[i, t]) - k) * float(rewards[i, t]) for t in later)
            [own] = {int(key[i, t]) for t in ts if int(turn[i, t]) == k}
            cell[i, k] = (int(group[i]), own)
    field: Field = {}
    for i, ts in enumerate(rows):
        for t in ts:
            own_turn = (i, int(turn[i, t]))
            members = [score[other] for other in score if cell[other] == cell[own_turn]]
            size = len(members)
            mean = sum(members) / size
            squares = sum((x - mean) ** 2 for x in members)
            advantage = 0.0
            if size > 1 and max(members) - min(members) > 1e-9:
                divisor = sqrt(squares / (size - 1 if unbiased else size)) + eps
                advantage = (score[own_turn] - mean) / divisor
            field[i, t] = torch.tensor(advantage, dtype=torch.float64)
    return dense(field, mask.shape)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """A_t = sum_l (gamma lam)^l delta_{t+l}, as the paper's equation 16 sums it, over the row's
    true tokens."""
    advantages: Field = {}
    returns: Field = {}
    for i, ts in enumerate(true_slots(mask)):
        r, v = (
            [rewards[i, t] for t in ts],
            [values[i, t] for t in ts] + [torch.tensor(0.0, dtype=torch.float64)],
        )
        delta = [r[k] + gamma * v[k + 1] - v[k] for k in range(len(ts))]
        for k, t in enumerate(ts):
            advantages[i, t] = sum(
                ((gamma * lam) ** (j - k) * delta[j] for j in range(k, len(ts))),
                torch.tensor(0.0, dtype=torch.float64),
            )
            returns[i, t] = advantages[i, t] + v[k]
    return dense(advantages, mask.shape), dense(returns, mask.shape)


def to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Field:
    """G_t = sum_l gamma^l r_{t+l} over the row's true tokens."""
    field: Field = {}
    for i, ts in enumerate(true_slots(mask)):
        for k, t in enumerate(ts):
            field[i, t] = sum(
                (gamma**j * rewards[i, u] for j, u in enumerate(ts[k:])),
                torch.tensor(0.0, dtype=torch.float64),
            )
    return field


def reinforce_pp(
    rewards: Tensor, mask: Tensor, group: Tensor, gamma: float, baseline: str
) -> Tensor:
    """Returns-to-go, less the group's mean score or not, then less their mean and divided by their
    standard deviation."""
    field = to_go(rewards, mask, gamma)
    score = {
        i: sum(float(rewards[i, t]) for t in ts) for i, ts in enumerate(true_slots(mask)) if ts
    }
    if baseline == "group":
        for i, t in field:
            members = [score[j] for j in score if int(group[j]) == int(group[i])]
            field[i, t] = field[i, t] - sum(members) / len(members)
    mean = sum(field.values()) / max(1, len(field))
    variance = sum((x - mean) ** 2 for x in field.values()) / max(1, len(field))
    return dense({at: (x - mean) / sqrt(variance + 1e-8) for at, x in field.items()}, mask.shape)


def process(
    rewards: Tensor,
    mask: Tensor,
    group: Tensor,
    steps: Tensor,
    eps: float = 1e-6,
    unbiased: bool = True,
) -> Tensor:
    """Every step reward against all step rewards of its group; a token gets the sum over the steps
    that end at it or later."""
    rows = true_slots(mask)
    ends = {(i, t): float(rewards[i, t]) for i, ts in enumerate(rows) for t in ts if steps[i, t]}
    normalised = {}
    for (i, t), own in ends.items():
        members = [r for (j, _), r in ends.items() if int(group[j]) == int(group[i])]
        size, mean = len(members), sum(members) / len(members)
        if max(members) == min(members):
            normalised[i, t] = 0.0
        else:
            std = sqrt(sum((x - mean) ** 2 for x in members) / (size - 1 if unbiased else size))
            normalised[i, t] = (own - mean) / (std + eps)
    field = {
        (i, t): sum(normalised.get((i, u), 0.0) for u in ts if u >= t)
        for i, ts in enumerate(rows)
        for t in ts
    }
    return dense({at: torch.tensor(x, dtype=torch.float64) for at, x in field.items()}, mask.shape)


# ratios


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """x where it is inside, else the bound, a constant."""
    return (
        torch.tensor(low, dtype=x.dtype)
        if x < low
        else torch.tensor(high, dtype=x.dtype)
        if x > high
        else x
    )


def clipped(
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    low: float,
    high: float,
    level: str = "token",
    dual: float | None = None,
) -> tuple[Field, set[tuple[int, int]]]:
    """PPO's min, at the level of a token or of a response, and the slots whose gradient the clip
    took."""
    objective: Field = {}
    decided = set()
    for i, ts in enumerate(true_slots(mask)):
        for t in ts:
            s = torch.exp(sum(log_ratio[i, u] for u in ts) / len(ts))
            d = log_ratio[i, t]
            r = {
                "token": torch.exp(d),
                "sequence": s,
                "sequence_token": s.detach() * torch.exp(d - d.detach()),
            }[level]
            a = advantages[i, t]
            free, bound = r * a, clip(r, 1 - low, 1 + high) * a
            objective[i, t] = bound if bound < free else free
            if bound < free:
                decided.add((i, t))
            if dual is not None and a < 0 and objective[i, t] < dual * a:
                objective[i, t] = dual * a
                decided.add((i, t))
    return objective, decided


def unclipped(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor
) -> tuple[Field, set[tuple[int, int]]]:
    return {(i, t): torch.exp(log_ratio[i, t]) * advantages[i, t] for i, t in slots(mask)}, set()


def soft(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, positive: float, negative: float
) -> tuple[Field, set[tuple[int, int]]]:
    objective: Field = {}
    for i, t in slots(mask):
        tau = positive if advantages[i, t] > 0 else negative
        objective[i, t] = (
            4 / tau / (1 + torch.exp(-tau * (torch.exp(log_ratio[i, t]) - 1))) * advantages[i, t]
        )
    return objective, set()


def cispo(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float | None, high: float | None
) -> tuple[Field, set[tuple[int, int]]]:
    objective: Field = {}
    decided = set()
    for i, t in slots(mask):
        weight = ratio = log_ratio[i, t].exp().item()
        if low is not None and ratio < 1 - low:
            weight = 1 - low
        if high is not None and ratio > 1 + high:
            weight = 1 + high
        objective[i, t] = weight * advantages[i, t] * log_ratio[i, t]
        if weight != ratio:
            decided.add((i, t))
    return objective, decided


def log_likelihood(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor
) -> tuple[Field, set[tuple[int, int]]]:
    return {(i, t): advantages[i, t] * log_ratio[i, t] for i, t in slots(mask)}, set()


def kl_penalty(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, beta: float
) -> tuple[Field, set[tuple[int, int]]]:
    objective: Field = {}
    for i, t in slots(mask):
        r = torch.exp(log_ratio[i, t])
        objective[i, t] = r * advantages[i, t] - beta * (r - 1 - log_ratio[i, t])
    return objective, set()


def geometric_mean(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float
) -> tuple[Field, set[tuple[int, int]]]:
    """The paper's product: PPO's min of r A and clip(r) A decides by token which ratio goes into
    it."""
    objective: Field = {}
    decided = set()
    for i, ts in enumerate(true_slots(mask)):
        product = torch.ones((), dtype=torch.float64)
        for t in ts:
            r, a = torch.exp(log_ratio[i, t]), advantages[i, t]
            bound = clip(r, exp(-low), exp(high))
            if bound * a < r * a:
                decided.add((i, t))
            product = product * (bound if bound * a < r * a else r)
        for t in ts:
            objective[i, t] = product ** (1 / len(ts)) * advantages[i, t]
    return objective, decided


def topr(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, level: str
) -> tuple[Field, set[tuple[int, int]]]:
    objective: Field = {}
    decided = set()
    for i, ts in enumerate(true_slots(mask)):
        for t in ts:
            ratio = exp(
                sum(log_ratio[i, u].item() for u in (ts if level == "sequence_token" else [t]))
            )
            if advantages[i, t] < 0 and ratio > 1:
                decided.add((i, t))
            weight = 1.0 if advantages[i, t] > 0 else min(ratio, 1.0)
            objective[i, t] = weight * advantages[i, t] * log_ratio[i, t]
    return objective, decided


def dppo(
    log_ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_logprobs: Tensor,
    divergence: str,
    low: float,
    high: float,
) -> tuple[Field, set[tuple[int, int]]]:
    """The mask of equation 12, from the two probabilities of each token."""
    objective: Field = {}
    decided = set()
    for i, t in slots(mask):
        old, a = exp(float(old_logprobs[i, t])), float(advantages[i, t])
        new = min(old * log_ratio[i, t].exp().item(), 1 - 1e-7)
        distance = (
            abs(new - old)
            if divergence == "tv"
            else old * log(old / new) + (1 - old) * log((1 - old) / (1 - new))
        )
        away = (a > 0 and new > old and distance > high) or (a < 0 and new < old and distance > low)
        objective[i, t] = (
            torch.zeros((), dtype=torch.float64)
            if away
            else torch.exp(log_ratio[i, t]) * advantages[i, t]
        )
        if away:
            decided.add((i, t))
    return objective, decided


# corrections


def correction(
    old: Tensor, behavior: Tensor, mask: Tensor, level: str, low: float, high: float, masks: bool
) -> tuple[Field, set[tuple[int, int]]]:
    """The weights min(rho, high), or rho within the bounds and 0 outside, and the slots outside of
    them."""
    weights: Field = {}
    outside = set()
    for i, ts in enumerate(true_slots(mask)):
        for t in ts:
            rho = 1.0
            for u in ts if level == "sequence" else [t]:
                rho *= exp(float(old[i, u])) / exp(float(behavior[i, u]))
            is_outside = rho > high or (masks and rho < low)
            if is_outside:
                outside.add((i, t))
            weights[i, t] = torch.tensor(
                (0.0 if masks else high) if is_outside else rho, dtype=torch.float64
            )
    return weights, outside


# tokens


def highest_entropy(entropy: Tensor, mask: Tensor, fraction: float) -> set[tuple[int, int]]:
    """The slots of the largest entropies: `fraction` of all, rounded up, and those equal to the
    smallest of them up to rounding."""
    values = {(i, t): float(entropy[i, t].detach()) for i, t in slots(mask)}
    count = ceil(round(fraction * len(values), 9))
    largest = sorted(values.values(), reverse=True)[:count]
    return {slot for slot, x in values.items() if x > min(largest) - 1e-5}


def covariances(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Field:
    """(log pi - mean) (A - mean) of each slot."""
    of_all = slots(mask)
    mean_logprob = sum(float(logprobs[slot]) for slot in of_all) / max(1, len(of_all))
    mean_advantage = sum(float(advantages[slot]) for slot in of_all) / max(1, len(of_all))
    return {
        slot: (logprobs[slot] - mean_logprob) * (advantages[slot] - mean_advantage)
        for slot in of_all
    }


def near_the_sampler(
    logprobs: Tensor, behavior: Tensor, advantages: Tensor, mask: Tensor, threshold: float
) -> set[tuple[int, int]]:
    """The slots that off-policy sequence masking trains."""
    kept = set()
    for i, ts in enumerate(true_slots(mask)):
        distance = sum(float(behavior[i, t] - logprobs[i, t]) for t in ts) / max(1, len(ts))
        for t in ts:
            if distance <= threshold or advantages[i, t] >= 0:
                kept.add((i, t))
    return kept


# aggregations


def aggregate(kind: str, field: Field, tokens: float, sequences: float, length: int = 1) -> Tensor:
    """token_mean, sequence_mean or fixed_length."""
    own = {i: sum(1 for row, _ in field if row == i) for i, _ in field}
    total = torch.zeros((), dtype=torch.float64)
    for (i, _), x in field.items():
        total = (
            total
            + x
            / {
                "token_mean": tokens,
                "sequence_mean": own[i] * sequences,
                "fixed_length": sequences * length,
            }[kind]
        )
    return total
