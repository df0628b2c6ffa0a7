"""Sample log: a row for each sampled response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from rlmods.ops import masked_mean
from rlmods.types import Experience, Response, Scores

Row = dict[str, Any]


class SampleLog:
    """Rows of the responses of one iteration on this rank.

    `advantage` of a row is the one that the response is trained with. It stays None for a response
    that is unscored, not selected, truncated (`algo.overlong_filter`) or of a rejected group, and,
    if advantages are normalised over the rows of an iteration, for one of a group that waits for
    the next iteration.

    If responses may branch, each row has a `branch`: `sample`, the index of the response among
    those to its prompt, `parent`, the index of the response whose first `shared` tokens it has
    (None, 0: sampled from the prompt on), `decisions` of `rlmods.branching` at its tool results if
    the rollout reports them in `meta["decisions"]`, and `segments`: [begin, end, advantage] of each
    run of sampled tokens with equal advantages, as indices of the response's tokens."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._by_group: dict[int, list[Row]] = {}

    def clear(self) -> None:
        """Begin a new iteration. Callbacks may keep the rows."""
        self.rows = []
        self._by_group = {}

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
        seen = Counter[int]()
        groups = zip(group.tolist(), selected.tolist(), strict=True)
        for i, (group_id, kept) in enumerate(groups):
            row = sample_row(responses[i], scores, i)
            row |= {"iteration": iteration, "advantage": None, "kept": kept}
            if in_tree:
                row["branch"] = _branch(responses[i], seen[group_id])
            seen[group_id] += 1
            self.rows.append(row)
            self._by_group.setdefault(group_id, []).append(row)

    def set_advantages(self, batch: Experience) -> None:
        """Set `advantage` of the responses in `batch` that have a loss: the mean over their tokens.
        The responses of a group are in the order in which they were sampled; groups without rows
        are of earlier iterations."""
        advantages = masked_mean(batch.advantages, batch.mask).tolist()
        is_trained = batch.mask.any(1).tolist()
        seen = Counter[int]()
        for i, group in enumerate(batch.group.tolist()):
            rows = self._by_group.get(group, [])
            if rows and is_trained[i]:
                row = rows[seen[group]]
                row["advantage"] = advantages[i]
                if "branch" in row:
                    end = int(batch.lengths[i])
                    columns = slice(end - len(row["tokens"]), end)
                    values = batch.advantages[i, columns].tolist()
                    mask = batch.mask[i, columns].tolist()
                    row["branch"]["segments"] = equal_runs(values, mask)
            seen[group] += 1


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
        row["turns"] = [asdict(turn) for turn in response.turns]
    if response.cuts:
        row["cuts"] = list(response.cuts)
    row["reward"] = scores.values[i]
    row["correct"] = None if scores.correct is None else scores.correct[i]
    row |= {f"reward/{name}": values[i] for name, values in scores.terms.items()}
    row |= {name: column[i] for name, column in scores.columns.items()}
    return row


def _branch(response: Response, sample: int) -> Row:
    branch = response.branch
    return {
        "sample": sample,
        "parent": None if branch is None else branch.parent,
        "shared": 0 if branch is None else branch.shared,
        "decisions": list(response.meta.get("decisions", ())),
        "segments": None,
    }


def equal_runs(values: Sequence[float], mask: Sequence[bool]) -> list[list[float]]:
    """Return [begin, end, value] of the runs of equal values where the mask is True."""
    runs: list[list[float]] = []
    for t, (value, is_true) in enumerate(zip(values, mask, strict=True)):
        if is_true and runs and runs[-1][1:] == [t, value]:
            runs[-1][1] = t + 1
        elif is_true:
            runs.append([t, t + 1, value])
    return runs
