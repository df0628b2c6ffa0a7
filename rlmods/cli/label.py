"""Rank candidates with a judge: `python -m rlmods.label FILE [judge=OPTION] [key=value]`.

FILE is what `python -m rlmods.collect` writes. Each pair of a row's candidates is compared, and the candidates ranked by their wins.

    judge=rule              rule, neural or llm, with its settings: judge.model=RUN, judge.url=http://HOST/v1
    out=labelled.jsonl      where the rows go; what is there already is not judged again, so the same command goes on after an interruption.
                            An LLM's replies are kept in <out>.judge.jsonl as they come, unless judge.cache says otherwise
    keep_ties=true          false: rows that prefer no candidate to another go to <out>.dropped.jsonl instead

A row is FILE's row and `ranks` (one a candidate: 0 the best, equal ranks a tie, null where nothing was said of it), `verdicts` (one a pair,
in the order 0-1, 0-2, ..., 1-2: 1.0 the first is better, 0.5 a tie, 0.0 the second is, null no verdict) and `judge`, its settings.
`data=preferences data.train=FILE` reads it. Prints one JSON object that sums up all the rows of `out`.

    python -m rlmods.label --kappa FILE_A FILE_B

prints how far two judges of the same candidates agree: Cohen's kappa over the pairs on which both have a verdict, dropped rows included.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlmods.cli.command import KEPT, Output, command, configuration, dropped_beside, progress
from rlmods.config.instantiate import make
from rlmods.judge import Neural, cohens_kappa, rankings
from rlmods.judge.agreement import category
from rlmods.policy.fingerprint import fingerprint
from rlmods.run.jsonl import read_rows
from rlmods.types import Prompt, UserError

AT_ONCE = 64
"""Rows that a judge is given in one call, after which they are written."""
FREE = ("cache", "concurrency", "timeout_s", "retries", "backoff_s", "key_variable")
"""Settings that decide how a judge is asked, not what it says: they may differ when a file goes on."""


@dataclass(frozen=True)
class Settings:
    """What the module's docstring says of them."""

    out: str = "labelled.jsonl"
    keep_ties: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.keep_ties, bool):
            raise UserError(f"keep_ties={self.keep_ties}: must be true or false")


def label(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Fill `out`; returns what the command prints.

    Raises:
        UserError: a user's mistake, or a judge that cannot be asked.
    """
    config = configuration(overrides, settings=Settings)
    settings = Settings(**{f.name: config[f.name] for f in fields(Settings)})
    rows, path = _candidates(Path(source).expanduser()), Path(settings.out).expanduser()
    if path.resolve() == Path(source).expanduser().resolve():
        raise UserError(f"out={settings.out} is the file that is read: type another out=FILE")
    if "cache" in config.judge and config.judge.cache is None:
        config.judge.cache = f"{path}.judge.jsonl"
    judge, facts = make(config.judge, "judge"), OmegaConf.to_container(config.judge, resolve=True)
    assert isinstance(facts, dict)
    if getattr(judge, "needs_answer", False) and all(row.get("answer") is None for row in rows):
        raise UserError(f"{source}: the judge compares with gold answers, and no row has one: type judge=neural or judge=llm")
    weights = {"weights": [fingerprint(network) for network in judge.scorer.networks]} if isinstance(judge, Neural) else {}
    settled = {key: value for key, value in facts.items() if key not in FREE} | weights
    output = Output(path, {"judge": settled, "keep_ties": settings.keep_ties})
    left = _left(rows, output)
    with progress("judging", len(left)) as tell:
        for start in range(0, len(left), AT_ONCE):
            some = left[start : start + AT_ONCE]
            for row, (ranks, verdicts) in zip(some, rankings(judge, [(_prompt(row), _texts(row)) for row in some]), strict=True):
                output.add(row | {"ranks": ranks, "verdicts": verdicts}, keep=settings.keep_ties or _prefers(ranks))
            tell(start + len(some))
    counts = {event: count for event, count in getattr(judge, "counts", {}).items() if count}
    return _summary(output) | ({"judge": counts} if counts else {})


def kappa(first: str, second: str) -> dict[str, Any]:
    """Agreement on the pairs of the rows that both files have.

    Raises:
        UserError: a file cannot be read or is not labelled, there is no row in both, or one with other candidates.
    """
    paths = [Path(path).expanduser() for path in (first, second)]
    files = [{row["id"]: row for row in _candidates(path, dropped_beside(path))} for path in paths]
    shared = [(a, files[1][key]) for key, a in files[0].items() if key in files[1]]
    if not shared:
        raise UserError(f"{first} and {second} have no row in common: label the same candidates twice, with another judge= and out=")
    for a, b in shared:
        if _texts(a) != _texts(b):
            raise UserError(f"{second}: row {b['id']} has other candidates than in {first}: label the same candidates twice")
    said = [[x for rows in shared for x in _verdicts(rows[side], path)] for side, path in enumerate((first, second))]
    both = [(a, b) for a, b in zip(*said, strict=True) if a is not None and b is not None]
    agreed = sum(category(a) == category(b) for a, b in both)
    return {"rows": len(shared), "pairs": len(both), "agreement": agreed / len(both) if both else None, "kappa": cohens_kappa(*said)}


def _candidates(path: Path, *more: Path) -> list[dict[str, Any]]:
    """The rows of files of candidates. Raises: UserError, naming what is wrong."""
    rows, seen = [row for file in (path, *more) for row in read_rows(file)], set()
    for number, row in enumerate(rows, 1):
        candidates = row.get("candidates")
        if not isinstance(candidates, list) or not all(isinstance(c, dict) and isinstance(c.get("text"), str) for c in candidates):
            raise UserError(f'{path}: row {number} has no "candidates", a list of objects with "text"; python -m rlmods.collect makes them')
        if not isinstance(row.get("id"), str) or row["id"] in seen:
            raise UserError(f'{path}: row {number} has no "id" of its own, which must be a text that no other row has')
        if not isinstance(row.get("prompt"), str | list):
            raise UserError(f'{path}: row {number} has no "prompt", a text or a list of messages')
        seen.add(row["id"])
    if not rows:
        raise UserError(f"{path}: no such file, or no rows in it; python -m rlmods.collect makes them")
    return rows


def _left(rows: Sequence[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Those that are not labelled. Raises: UserError where a labelled one had other candidates."""
    done = output.rows
    for row in rows:
        if row["id"] in done and _texts(done[row["id"]]) != _texts(row):
            raise UserError(f"{output.path}: row {row['id']} was labelled with other candidates: type another out=FILE")
    return [row for row in rows if row["id"] not in done]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    asked = {"text": row["prompt"]} if isinstance(row["prompt"], str) else {"messages": row["prompt"]}
    return Prompt(id=row["id"], answer=row.get("answer"), meta=row.get("meta") or {}, **asked)


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [candidate["text"] for candidate in row["candidates"]]


def _verdicts(row: Mapping[str, Any], path: str) -> list[float | None]:
    """On the row's pairs; of a file that has ranks only, which one ranks better."""
    if "verdicts" in row:
        return list(row["verdicts"])
    if "ranks" not in row:
        raise UserError(f"{path}: row {row['id']} is not labelled; python -m rlmods.label does that")
    return [None if a is None or b is None else 0.5 if a == b else float(a < b) for a, b in combinations(row["ranks"], 2)]


def _prefers(ranks: Sequence[int | None]) -> bool:
    return len({rank for rank in ranks if rank is not None}) > 1


def _summary(output: Output) -> dict[str, Any]:
    rows = output.rows.values()
    verdicts = [found for row in rows for found in row["verdicts"]]
    return {
        "out": str(output.path),
        "rows": len(rows),
        "without_preference": sum(not _prefers(row["ranks"]) for row in rows),
        "dropped_rows": len(output.dropped),
        "pairs": len(verdicts),
        "ties": sum(found == 0.5 for found in verdicts),
        "without_verdict": sum(found is None for found in verdicts),
    }


def main(arguments: list[str]) -> None:
    def action() -> dict[str, Any]:
        if arguments[0] != "--kappa":
            return label(arguments[0], arguments[1:])
        if len(arguments) != 3:
            raise UserError("--kappa compares two labelled files: python -m rlmods.label --kappa FILE_A FILE_B")
        return kappa(*arguments[1:])

    command(arguments, __doc__, action, ended=KEPT)


if __name__ == "__main__":
    main(sys.argv[1:])
