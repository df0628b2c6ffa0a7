"""Rank candidate responses with a judge: `python -m rlmods.label FILE [judge=OPTION] [key=value]`.

FILE is the output of `python -m rlmods.collect`. All pairs of a row's candidates are compared, and
the candidates ranked by their wins.

    judge=rule              rule, neural or llm, with its settings: judge.model=RUN,
    judge.url=http://HOST/v1 out=labelled.jsonl      output file; rows that it already has are not
    judged again, so the same command continues after an interruption.
                            The replies of an LLM judge are saved in <out>.judge.jsonl as they
                            arrive, or in the file judge.cache
    keep_ties=true          false: rows in which no candidate is preferred to another go to
    <out>.dropped.jsonl instead

A row is the row of FILE with `ranks` (one per candidate: 0 is the best, equal ranks are a tie, null
without a verdict), `verdicts` (one per pair, in the order 0-1, 0-2, ..., 1-2: 1.0 if the first is
better, 0.5 for a tie, 0.0 if the second is, null without a verdict) and `judge`, the settings of
the judge. A row with a question that the server rejects, such as one that exceeds the context
length, goes to <out>.dropped.jsonl with the reason as `rejected`. Rows with questions that were
lost in another way are named in an error; the others are written, and the same command asks again.
Train on the output with `data=preferences data.train=FILE`. Prints one JSON object that summarises
all rows of `out`.

    python -m rlmods.label --kappa FILE_A FILE_B

prints the agreement of two judges of the same candidates: Cohen's kappa over the pairs with a
verdict of both, dropped rows included."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlmods.cli.command import (
    INTERRUPTED,
    Output,
    command,
    configuration,
    dropped_path,
    progress,
    take_settings,
)
from rlmods.config.instantiate import instantiate
from rlmods.data.schema import check_messages
from rlmods.errors import UserError
from rlmods.judge import LLM, Neural, cohens_kappa, rankings
from rlmods.judge.agreement import category
from rlmods.judge.chat import NoReplyError
from rlmods.needs import JudgeNeeds, needs_of
from rlmods.policy.fingerprint import fingerprint
from rlmods.protocols import counts_of
from rlmods.run.jsonl import read_rows
from rlmods.types import Prompt, Response

ROWS_PER_CALL = 64
"""Rows that the judge ranks in one call, after which they are written."""
MAX_IDS = 20
"""Ids of lost rows in an error message."""
REQUEST_SETTINGS = (
    "cache",
    "concurrency",
    "timeout_s",
    "deadline_s",
    "retries",
    "backoff_s",
    "key_variable",
)
"""Settings of a judge that do not affect its verdicts, so they may change when an output file is
continued."""


@dataclass(frozen=True)
class Settings:
    """Settings of the command, described in the module docstring."""

    out: str = "labelled.jsonl"
    keep_ties: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.keep_ties, bool):
            raise UserError(f"keep_ties={self.keep_ties}: must be true or false")


def label(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Write the missing rows of `out` and return the summary to print.

    Raises:
        UserError: a user's mistake, the judge cannot be reached, or questions to it were lost.
    """
    config = configuration(overrides, settings=Settings)
    settings = take_settings(config, Settings)
    rows, path = _candidates(Path(source).expanduser()), Path(settings.out).expanduser()
    if path.resolve() == Path(source).expanduser().resolve():
        raise UserError(f"out={settings.out} is the input file: type another out=FILE")
    if "cache" in config.judge and config.judge.cache is None:
        config.judge.cache = f"{path}.judge.jsonl"
    judge, judge_settings = (
        instantiate(config.judge, "judge"),
        OmegaConf.to_container(config.judge, resolve=True),
    )
    assert isinstance(judge_settings, dict)
    if needs_of(judge, JudgeNeeds).answer and all(row.get("answer") is None for row in rows):
        raise UserError(
            f"{source}: the judge needs gold answers, but no row has one: type judge=neural "
            "or judge=llm"
        )
    weights = (
        {"weights": [fingerprint(network) for network in judge.scorer.networks]}
        if isinstance(judge, Neural)
        else {}
    )
    provenance = {
        key: value for key, value in judge_settings.items() if key not in REQUEST_SETTINGS
    } | weights
    output = Output(path, {"judge": provenance, "keep_ties": settings.keep_ties})
    remaining, lost = _remaining(rows, output), dict[str, NoReplyError]()
    if isinstance(judge, LLM):
        judge.losses.skip_rejected = True
    with progress("judging", len(remaining)) as update:
        for start in range(0, len(remaining), ROWS_PER_CALL):
            chunk = remaining[start : start + ROWS_PER_CALL]
            asked = [_responses(row) for row in chunk]
            results = rankings(judge, asked)
            losses = _losses(judge, asked, accepted=bool(output.rows))
            for row, (ranks, verdicts), loss in zip(chunk, results, losses, strict=True):
                labelled = row | {"ranks": ranks, "verdicts": verdicts}
                if loss is None:
                    output.add(labelled, keep=settings.keep_ties or _has_preference(ranks))
                elif loss.rejected:
                    output.add(labelled | {"rejected": str(loss)}, keep=False)
                else:
                    lost[row["id"]] = loss
            update(start + len(chunk))
    if lost:
        ids = ", ".join([repr(key) for key in lost][:MAX_IDS]) + (
            ", ..." if len(lost) > MAX_IDS else ""
        )
        reason = (
            f"{len(lost)} rows have questions without a reply ({ids}), the last because of: "
            f"{[*lost.values()][-1]}"
        )
        raise UserError(
            f"judge.url={judge.url}: {reason}; run the same command again, which asks only "
            "what is missing"
        )
    counts = {event: count for event, count in counts_of(judge).items() if count}
    return _summary(output) | ({"judge": counts} if counts else {})


def kappa(first: str, second: str) -> dict[str, Any]:
    """Return the agreement of two labelled files on the rows they have in common.

    Raises:
        UserError: a file cannot be read or is not labelled, the files share no row, or the
        candidates of a shared row differ.
    """
    paths = [Path(path).expanduser() for path in (first, second)]
    files = [{row["id"]: row for row in _candidates(path, dropped_path(path))} for path in paths]
    shared = [(row, files[1][key]) for key, row in files[0].items() if key in files[1]]
    if not shared:
        raise UserError(
            f"{first} and {second} have no row in common: label the same candidates twice, "
            "with another judge= and out="
        )
    for a, b in shared:
        if _texts(a) != _texts(b):
            raise UserError(
                f"{second}: row {b['id']} has other candidates than in {first}: label the "
                "same candidates twice"
            )
    verdicts = [
        [verdict for rows in shared for verdict in _verdicts(rows[i], path)]
        for i, path in enumerate((first, second))
    ]
    pairs = [(a, b) for a, b in zip(*verdicts, strict=True) if a is not None and b is not None]
    num_agreed = sum(category(a) == category(b) for a, b in pairs)
    agreement = num_agreed / len(pairs) if pairs else None
    return {
        "rows": len(shared),
        "pairs": len(pairs),
        "agreement": agreement,
        "kappa": cohens_kappa(*verdicts),
    }


def _candidates(path: Path, *more: Path) -> list[dict[str, Any]]:
    """Read and check the rows of files of candidates. Raises: UserError for a missing file or an
    invalid row."""
    rows, seen = [row for file in (path, *more) for row in read_rows(file)], set()
    for number, row in enumerate(rows, 1):
        candidates = row.get("candidates")
        if not isinstance(candidates, list) or not all(
            isinstance(c, dict) and isinstance(c.get("text"), str) for c in candidates
        ):
            raise UserError(
                f'{path}: row {number} has no "candidates", objects with "text"; python -m '
                "rlmods.collect writes them"
            )
        if not isinstance(row.get("id"), str) or row["id"] in seen:
            raise UserError(
                f'{path}: row {number} has no unique "id", a text that no other row has'
            )
        if not isinstance(row.get("prompt"), str | list):
            raise UserError(f'{path}: row {number} has no "prompt", a text or a list of messages')
        if isinstance(row["prompt"], list):
            check_messages(row["prompt"], f"{path}: row {number}", "prompt")
        if not isinstance(row.get("answer"), str | None) or not isinstance(
            row.get("meta"), dict | None
        ):
            raise UserError(
                f'{path}: row {number} has an "answer" that is no text, or a "meta" that is '
                "no object"
            )
        seen.add(row["id"])
    if not rows:
        raise UserError(
            f"{path}: no such file, or no rows in it; python -m rlmods.collect writes one"
        )
    return rows


def _remaining(rows: Sequence[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return the rows that are not labelled yet. Raises: UserError if a row was labelled with other
    candidates."""
    done = output.rows
    for row in rows:
        if row["id"] in done and _texts(done[row["id"]]) != _texts(row):
            raise UserError(
                f"{output.path}: row {row['id']} was labelled with other candidates: type "
                "another out=FILE"
            )
    return [row for row in rows if row["id"] not in done]


def _prompt(row: Mapping[str, Any]) -> Prompt:
    content = (
        {"text": row["prompt"]} if isinstance(row["prompt"], str) else {"messages": row["prompt"]}
    )
    return Prompt(
        id=row["id"],
        answer=row.get("answer"),
        source=row.get("source"),
        meta=row.get("meta") or {},
        **content,
    )


def _responses(row: Mapping[str, Any]) -> tuple[Prompt, list[Response]]:
    """Return the prompt and the candidates of a row, which keep their `finish`."""
    prompt = _prompt(row)
    return prompt, [
        Response(prompt, text=text, finish="length" if finish == "length" else "stop")
        for text, finish in _texts(row)
    ]


def _texts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return text and finish of each candidate."""
    return [(candidate["text"], candidate.get("finish", "stop")) for candidate in row["candidates"]]


def _losses(
    judge: Any, asked: Sequence[tuple[Prompt, list[Response]]], *, accepted: bool
) -> list[NoReplyError | None]:
    """Return, for each row of the last call, why a question of it was lost, None if none was.

    Raises:
        UserError: the server rejects questions, and has never replied to one (`accepted`: in an
        earlier run it has).
    """
    if not isinstance(judge, LLM):
        return [None] * len(asked)
    losses = [
        judge.lost([(prompt, *pair) for pair in combinations(responses, 2)])
        for prompt, responses in asked
    ]
    rejections = [loss for loss in losses if loss is not None and loss.rejected]
    if rejections and not (accepted or judge.losses.in_a_row >= 0 or judge.counts["cached"]):
        raise UserError(f"judge.url={judge.url}: {rejections[0]}")
    return losses


def _verdicts(row: Mapping[str, Any], path: str) -> list[float | None]:
    """Return the verdicts on the pairs of a row, or derive them from its ranks. Raises: UserError
    if the row is not labelled."""
    if "verdicts" in row:
        return list(row["verdicts"])
    if "ranks" not in row:
        raise UserError(
            f"{path}: row {row['id']} is not labelled; label the file with python -m rlmods.label"
        )
    return [
        None if a is None or b is None else 0.5 if a == b else float(a < b)
        for a, b in combinations(row["ranks"], 2)
    ]


def _has_preference(ranks: Sequence[int | None]) -> bool:
    return len({rank for rank in ranks if rank is not None}) > 1


def _summary(output: Output) -> dict[str, Any]:
    rows = output.rows.values()
    verdicts = [verdict for row in rows for verdict in row["verdicts"]]
    return {
        "out": str(output.path),
        "rows": len(rows),
        "without_preference": sum(not _has_preference(row["ranks"]) for row in rows),
        "dropped_rows": len(output.dropped),
        "rejected_rows": sum("rejected" in row for row in rows),
        "pairs": len(verdicts),
        "ties": sum(verdict == 0.5 for verdict in verdicts),
        "without_verdict": sum(verdict is None for verdict in verdicts),
    }


def main(arguments: list[str]) -> None:
    def action() -> dict[str, Any]:
        if arguments[0] != "--kappa":
            return label(arguments[0], arguments[1:])
        if len(arguments) != 3:
            raise UserError(
                "--kappa compares two labelled files: python -m rlmods.label --kappa FILE_A FILE_B"
            )
        return kappa(*arguments[1:])

    command(arguments, __doc__, action, interrupt_message=INTERRUPTED)


if __name__ == "__main__":
    main(sys.argv[1:])
