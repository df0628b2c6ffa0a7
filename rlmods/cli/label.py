"""Rank candidate responses with a judge: `python -m rlmods.label FILE [judge=OPTION] [key=value]`.

FILE is the output of `python -m rlmods.collect`. All pairs of a row's candidates are compared, and
the candidates ranked by their wins.

    judge=rule              rule, neural or llm, with its settings: judge.model=RUN,
                            judge.url=http://HOST/v1
    out=labelled.jsonl      output file; rows that it already has are not judged again, so the same
                            command continues after an interruption. The replies of an LLM judge are
                            saved in <out>.judge.jsonl as they arrive, or in the file judge.cache
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

import sys

from rlmods.errors import UserError, counted, print_usage

print_usage(__name__, __doc__)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

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
from rlmods.judge import LLM, Neural, cohens_kappa, rankings
from rlmods.judge.chat import NoReplyError
from rlmods.judge.ranking import category
from rlmods.needs import JudgeNeeds, needs_of
from rlmods.policy.files import fingerprint
from rlmods.protocols import counts_of
from rlmods.run.files import read_rows
from rlmods.run.secrets import saved_form
from rlmods.types import Prompt, Response

ROWS_PER_CALL = 64
"""Rows that the judge ranks in one call, after which they are written."""
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
class LabelSettings:
    """Settings of the command, described in the module docstring."""

    out: str = "labelled.jsonl"
    keep_ties: bool = True


def label(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Write the missing rows of `out` and return the summary to print.

    Raises:
        UserError: a user's mistake, the judge cannot be reached, or questions to it were lost.
    """
    config = configuration(overrides, settings=LabelSettings)
    settings = take_settings(config, LabelSettings)
    path = Path(settings.out).expanduser()
    rows = _read_candidates(Path(source).expanduser())
    if path.resolve() == Path(source).expanduser().resolve():
        raise UserError(f"out={settings.out} is the input file: type another out=FILE")
    if "cache" in config.judge and config.judge.cache is None:
        config.judge.cache = f"{path}.judge.jsonl"
    judge = instantiate(config.judge, "judge")
    has_answers = any(row.get("answer") is not None for row in rows.values())
    if needs_of(judge, JudgeNeeds).answer and not has_answers:
        raise UserError(
            f"{source}: the judge needs gold answers, but no row has one: type judge=neural "
            "or judge=llm"
        )
    # without secrets, since every row holds it
    provenance = saved_form(config)["judge"]
    for name in REQUEST_SETTINGS:
        provenance.pop(name, None)
    if isinstance(judge, Neural):
        provenance["weights"] = list(map(fingerprint, judge.scorer.networks))
    output = Output(path, {"judge": provenance, "keep_ties": settings.keep_ties})
    remaining = [rows[key] for key in output.missing(rows)]
    lost: dict[str, NoReplyError] = {}
    if isinstance(judge, LLM):
        judge.losses.skip_rejected = True
    with progress("judging", len(remaining)) as update:
        for start in range(0, len(remaining), ROWS_PER_CALL):
            chunk = remaining[start : start + ROWS_PER_CALL]
            lost |= _rank(judge, chunk, output, settings)
            update(start + len(chunk))
    if lost:
        first, error = next(iter(lost.items()))
        raise UserError(
            f"judge.url={judge.url}: no reply to questions of {counted(len(lost), 'row')}, such as "
            f"{first!r}: {error}; run the same command again, which asks only what is missing"
        )
    counts = {event: count for event, count in counts_of(judge).items() if count}
    return _summary(output) | ({"judge": counts} if counts else {})


def _rank(
    judge: Any, rows: Sequence[dict[str, Any]], output: Output, settings: LabelSettings
) -> dict[str, NoReplyError]:
    """Write the rows with ranks. Return why questions were lost by the id of the row, which is not
    written then."""
    asked = list(map(_responses, rows))
    results = rankings(judge, asked)
    losses = _losses(judge, asked, accepted=bool(output.rows))
    lost = {}
    for row, result, loss in zip(rows, results, losses, strict=True):
        ranks, verdicts = result
        labelled = row | {"ranks": ranks, "verdicts": verdicts}
        if loss is None:
            output.add(labelled, keep=settings.keep_ties or _has_preference(ranks))
        elif loss.rejected:
            output.add(labelled | {"rejected": str(loss)}, keep=False)
        else:
            lost[row["id"]] = loss
    return lost


def kappa(first: str, second: str) -> dict[str, Any]:
    """Return the agreement of two labelled files on the rows they have in common.

    Raises:
        UserError: a file cannot be read or is not labelled, the files share no row, or the
        candidates of a shared row differ.
    """
    paths = [Path(first).expanduser(), Path(second).expanduser()]
    ours, theirs = (_read_candidates(path, dropped_path(path)) for path in paths)
    shared = [key for key in ours if key in theirs]
    if not shared:
        raise UserError(
            f"{first} and {second} have no row in common: label the same candidates twice, "
            "with another judge= and out="
        )
    verdicts: list[float | None] = []
    others: list[float | None] = []
    for key in shared:
        if _texts(ours[key]) != _texts(theirs[key]):
            raise UserError(
                f"{second}: row {key} has other candidates than in {first}: label the same "
                "candidates twice"
            )
        verdicts += _verdicts(ours[key], first)
        others += _verdicts(theirs[key], second)
    agreed = []
    for verdict, other in zip(verdicts, others, strict=True):
        if verdict is not None and other is not None:
            agreed.append(category(verdict) == category(other))
    return {
        "rows": len(shared),
        "pairs": len(agreed),
        "agreement": sum(agreed) / len(agreed) if agreed else None,
        "kappa": cohens_kappa(verdicts, others),
    }


def _read_candidates(path: Path, *more: Path) -> dict[str, dict[str, Any]]:
    """Read and check the rows of files of candidates, by id.

    Raises:
        UserError: a missing file, or an invalid row.
    """
    rows: list[dict[str, Any]] = []
    for file in (path, *more):
        rows += read_rows(file)
    if not rows:
        raise UserError(
            f"{path}: no such file, or no rows in it; python -m rlmods.collect writes one"
        )
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, 1):
        if not _is_valid(row, found):
            raise UserError(
                f'{path}: row {number} needs a unique "id", a "prompt" and "candidates" with '
                '"text"; python -m rlmods.collect writes such rows'
            )
        if isinstance(row["prompt"], list):
            check_messages(row["prompt"], f"{path}: row {number}", "prompt")
        found[row["id"]] = row
    return found


def _is_valid(row: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return whether a row has candidates, an id that no other row has, and a prompt."""
    candidates = row.get("candidates")
    if not isinstance(candidates, list) or not isinstance(row.get("prompt"), str | list):
        return False
    texts = [x.get("text") if isinstance(x, dict) else None for x in candidates]
    is_unique = isinstance(row.get("id"), str) and row["id"] not in others
    return is_unique and all(isinstance(text, str) for text in texts)


def _responses(row: Mapping[str, Any]) -> tuple[Prompt, list[Response]]:
    """Return the prompt and the candidates of a row, which keep their `finish`."""
    content = row["prompt"]
    prompt = Prompt(
        id=row["id"],
        text=content if isinstance(content, str) else None,
        messages=None if isinstance(content, str) else content,
        answer=row.get("answer"),
        source=row.get("source"),
        meta=row.get("meta") or {},
    )
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
    losses = []
    for prompt, responses in asked:
        pairs = [(prompt, *pair) for pair in combinations(responses, 2)]
        losses.append(judge.lost(pairs))
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
    verdicts: list[float | None] = []
    for first, second in combinations(row["ranks"], 2):
        if first is None or second is None:
            verdicts.append(None)
        else:
            verdicts.append(((first < second) + (first <= second)) / 2)
    return verdicts


def _has_preference(ranks: Sequence[int | None]) -> bool:
    return len({rank for rank in ranks if rank is not None}) > 1


def _summary(output: Output) -> dict[str, Any]:
    rows = output.rows.values()
    verdicts: list[float | None] = []
    for row in rows:
        verdicts += row["verdicts"]
    return {
        "out": str(output.path),
        "rows": len(rows),
        "without_preference": sum(not _has_preference(row["ranks"]) for row in rows),
        "dropped_rows": len(output.dropped),
        "rejected_rows": sum("rejected" in row for row in rows),
        "pairs": len(verdicts),
        "ties": verdicts.count(0.5),
        "without_verdict": verdicts.count(None),
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

    command(action, interrupt_message=INTERRUPTED)


if __name__ == "__main__":
    main(sys.argv[1:])
