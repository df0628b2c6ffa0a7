"""Preference pairs from responses that the hacking monitor points to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

Row = Mapping[str, Any]
"""Row of the sample log (`rlmods.training.metrics.sample_row`)."""


def gold_score(row: Row) -> float | None:
    """Return the score of the reward term `gold`, which monitors a reward model; without such a
    term, 1 for a correct response and 0 for a wrong one; None if the response is ungraded."""
    value = row.get("reward/gold", row.get("correct"))
    return None if value is None else float(value)


def offender_pairs(offenders: Sequence[Row], responses: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for `data=preferences` for each offender that has a better response: one to the
    same prompt with a higher gold score.

    The better response is that with the highest gold score and, of equal ones, the lowest reward:
    the pair that the reward has most wrong. Alerts of an iteration that show the same response give
    the same row: its id depends on iteration, prompt and response alone.

    Args:
        responses: the responses of the iteration in which the offenders were sampled.
    """
    pairs = []
    for offender in offenders:
        gold = gold_score(offender)
        others = [
            row
            for row in responses
            if row["id"] == offender["id"] and row["response"] != offender["response"]
        ]
        better = [
            row
            for row in others
            if gold is not None and (score := gold_score(row)) is not None and score > gold
        ]
        if better:
            best = max(better, key=lambda row: (gold_score(row), -(row.get("reward") or 0.0)))
            pairs.append(
                {
                    "id": f"{offender['id']}-{offender.get('iteration')}-{crc32(offender['response'].encode()):08x}",
                    "prompt": offender["prompt"],
                    "answer": offender.get("answer"),
                    "candidates": [
                        {"text": row["response"], "finish": row["finish"]}
                        for row in (best, offender)
                    ],
                    "ranks": [0, 1],
                }
            )
    return pairs
