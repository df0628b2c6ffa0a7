"""Sample log: a row for each response, with its scores, its credit, and the tokens that are
trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from rlmods.ops import masked_mean
from rlmods.types import Experience, Response, Scores

Row = dict[str, Any]
CREDIT_COLUMNS = ("advantage", "credit", "credit_terms", "trained")
"""Columns that are set after sampling."""
MAX_RUNS = 20_000
"""Runs of tokens, about, that a batch may have in `credit` and in `trained`: with an advantage for
each token, the first responses have them."""


class SampleLog:
    """Rows of the responses of one iteration on this rank.

    `advantage` of a row is the one that the response is trained with; None without a loss, or if it
    is not known yet because the group waits for the next iteration. `credit` has the advantages of
    its tokens (`set_advantages`), `trained` the tokens that the group `tokens` selected
    (`set_trained`). If responses may branch, each row has a `branch` (`branch_row`)."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin a new iteration. Callbacks may keep the rows."""
        self.rows: list[Row] = []
        self._by_group: dict[int, list[tuple[Row, Sequence[int]]]] = {}
        """Rows with the ids of their prompts."""
        self._selections: list[tuple[Tensor, ...]] = []

    def add(self, responses: Sequence[Response], scores: Scores, iteration: int) -> None:
        """Add responses that belong to no group, with the iteration that they are logged for."""
        for i, response in enumerate(responses):
            self.rows.append(sample_row(response, scores, i) | {"iteration": iteration})

    def add_groups(
        self,
        responses: Sequence[Response],
        scores: Scores,
        iteration: int,
        group: Tensor,
        selected: Tensor,
    ) -> None:
        """Add responses with the ids [N] of their groups. `kept` of a row is True if `sampling`
        selects the response."""
        in_tree = any(response.in_tree for response in responses)
        groups = zip(group.tolist(), selected.tolist(), strict=True)
        for i, (group_id, kept) in enumerate(groups):
            siblings = self._by_group.setdefault(group_id, [])
            row = sample_row(responses[i], scores, i)
            row |= {"iteration": iteration, "advantage": None, "kept": kept}
            if in_tree:
                row["branch"] = branch_row(responses[i], len(siblings))
            self.rows.append(row)
            siblings.append((row, responses[i].prompt_tokens))

    def set_advantages(self, batch: Experience, weights: Mapping[str, float]) -> None:
        """Set the advantages of the responses in `batch` that have a loss: `advantage`, the mean
        over their tokens, and `credit`, a list of [begin, end, advantage, advantage of each term
        of advantage=sum] for each run of tokens with equal advantages, to six digits. Tokens
        between the runs have no loss. `credit_terms` are the weights of the terms by name, here
        `weights`. A row whose tokens all have the same advantage, without terms, has no `credit`,
        nor have rows after the first `MAX_RUNS` runs.

        Responses of a group are in the order of sampling; groups without rows are older."""
        values = batch.advantages[:, :, None]
        if batch.term_advantages is not None:
            values = torch.cat([values, batch.term_advantages], 2)
        means = masked_mean(batch.advantages, batch.mask)
        columns = (values.flatten(1), batch.mask, means[:, None], batch.group[:, None])
        # at once, because the host waits; exact in float64
        on_host = torch.cat([x.double() for x in columns], 1).cpu()
        parts = torch.split_with_sizes(on_host, [x.shape[1] for x in columns], 1)
        values = parts[0].reshape(values.shape)
        mask = parts[1].bool()
        groups = parts[3][:, 0].long()
        is_known = torch.isin(groups, torch.tensor(list(self._by_group)))
        runs = equal_runs(values, mask & is_known[:, None], MAX_RUNS)
        seen = Counter[int]()
        rows = zip(parts[2][:, 0].tolist(), mask.any(1).tolist(), groups.tolist(), strict=True)
        for i, (advantage, is_trained, group) in enumerate(rows):
            sampled = self._by_group.get(group, [])
            if sampled and is_trained:
                # the program of environment=agent may begin each session with other messages
                row, prompt_tokens = sampled[seen[group]]
                row["advantage"] = advantage
                credit = _in_response(runs[i], len(prompt_tokens))
                if weights and credit:
                    row["credit_terms"] = dict(weights)
                if credit and (weights or credit != [[0, len(row["tokens"]), credit[0][2]]]):
                    row["credit"] = credit
            seen[group] += 1

    def add_selection(self, rows: Experience, trained: Tensor) -> None:
        """Keep the tokens [N, T] that `tokens` selected in an optimizer step for `set_trained`,
        without a wait for the device."""
        self._selections.append((rows.group, rows.lengths, rows.tokens, rows.mask, trained))

    def set_trained(self) -> None:
        """Set `trained`: [begin, end] of each run of tokens selected in the last optimizer step on
        a response. Equal responses of a group have equal selections."""
        by_tokens: dict[tuple[int, ...], list[tuple[Row, int]]] = {}
        num_tokens = 0
        for group, sampled in self._by_group.items():
            if num_tokens >= MAX_RUNS:
                break
            for row, prompt_tokens in sampled:
                num_tokens += len(row["tokens"])
                if row["advantage"] is not None:
                    key = (group, *prompt_tokens, *row["tokens"])
                    by_tokens.setdefault(key, []).append((row, len(prompt_tokens)))
        for groups, lengths, tokens, mask, trained in self._selections:
            columns = (groups.tolist(), lengths.tolist(), tokens.tolist(), mask.any(1).tolist())
            indices = []
            found = []
            for i, (group, length, ids, has_loss) in enumerate(zip(*columns, strict=True)):
                same = by_tokens.get((group, *ids[:length]))
                if has_loss and same:
                    indices.append(i)
                    found.append(same)
            own = (mask & trained)[indices]
            runs = equal_runs(own.new_zeros(*own.shape, 0), own)
            for same, of_row in zip(found, runs, strict=True):
                for row, start in same:
                    row["trained"] = _in_response(of_row, start)
        self._selections = []

    def of_prompt(self, prompt: str | None) -> SampleLog:
        """Return a log with copies of the rows of a prompt, without advantages and selections."""
        log = SampleLog()
        for group, sampled in self._by_group.items():
            if sampled[0][0]["id"] == prompt:
                for row, prompt_tokens in sampled:
                    known = {name: x for name, x in row.items() if name not in CREDIT_COLUMNS}
                    log.rows.append(known | {"advantage": None})
                    log._by_group.setdefault(group, []).append((log.rows[-1], prompt_tokens))
        return log


def _in_response(runs: Sequence[Sequence[Any]], start: int) -> list[list[Any]]:
    """Return runs of columns as runs of response tokens, with NaN as None."""
    found = []
    for begin, end, *values in runs:
        numbers = [None if math.isnan(x) else float(f"{x:.6g}") for x in values]
        found.append([begin - start, end - start, *numbers])
    return found


def sample_row(response: Response, scores: Scores, i: int) -> Row:
    """Return one row of the sample log: response i with its scores."""
    prompt = response.prompt
    row: Row = {
        "id": prompt.id,
        "prompt": prompt.text if prompt.messages is None else list(prompt.messages),
        "answer": prompt.answer,
    }
    if prompt.source is not None:
        row["source"] = prompt.source
    row |= {
        "response": response.text,
        "tokens": list(response.tokens),
        "finish": response.finish,
    }
    if response.turns:
        row["turns"] = list(map(asdict, response.turns))
    if response.cuts:
        row["cuts"] = list(response.cuts)
    if response.session is not None:
        row["session"] = asdict(response.session)
    row["reward"] = scores.values[i]
    row["correct"] = None if scores.correct is None else scores.correct[i]
    row |= {f"reward/{name}": values[i] for name, values in scores.terms.items()}
    row |= {name: column[i] for name, column in scores.columns.items()}
    return row


def branch_row(response: Response, sample: int) -> dict[str, Any]:
    """Return what the sample log says about the tree of a response.

    `sample` is its index among the responses to its prompt, `parent` the index of the response
    whose first `shared` tokens it has (None, 0: sampled from the prompt on). `decisions` are the
    decisions of `rlmods.branching` at its tool results."""
    branch = response.branch
    return {
        "sample": sample,
        "parent": None if branch is None else branch.parent,
        "shared": 0 if branch is None else branch.shared,
        "decisions": list(response.meta.get("decisions", ())),
    }


def equal_runs(values: Tensor, mask: Tensor, limit: int | None = None) -> list[list[list[Any]]]:
    """Return, for each row of `values` [N, T, K], [begin, end, *values] of the runs of columns with
    a true mask and K equal values each. NaN equals NaN. Rows after the first `limit` runs have
    none."""
    before = values[:, :-1]
    after = values[:, 1:]
    is_equal = ((before == after) | (before.isnan() & after.isnan())).all(2)
    continues = is_equal & mask[:, :-1] & mask[:, 1:]
    begins = mask.clone()
    begins[:, 1:] &= ~continues
    ends = mask.clone()
    ends[:, :-1] &= ~continues
    if limit is not None:
        num_runs = begins.sum(1)
        is_within = (num_runs.cumsum(0) - num_runs < limit)[:, None]
        begins &= is_within
        ends &= is_within
    row, begin = begins.nonzero(as_tuple=True)
    last = ends.nonzero()[:, 1]
    columns = (row.tolist(), begin.tolist(), (last + 1).tolist(), values[row, begin].tolist())
    runs: list[list[list[Any]]] = [[] for _ in range(len(mask))]
    for i, first, end, own in zip(*columns, strict=True):
        runs[i].append([first, end, *own])
    return runs
