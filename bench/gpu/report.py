"""The tables of `make gpu`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.gpu.findings import Failure, Findings

Cells = Sequence[str]


def table(head: Cells, rows: Sequence[Cells]) -> str:
    """Return a table in Markdown, with numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(x: float | None) -> str:
    """Return a number with three significant digits, a dash for None."""
    if x is None:
        return "-"
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b, None if one is missing."""
    return a / b if a and b else None


def broken(parts: Mapping[str, Findings]) -> Iterator[tuple[str, Failure]]:
    """Yield failures, and checks that do not hold, in the order of the parts."""
    for name, found in parts.items():
        for failure in found.failures:
            yield name, failure
        for check in found.checks:
            if not check.holds:
                relation = ">=" if check.at_least else "<="
                text = f"{check.value:.3g} is not {relation} {check.bound:g}"
                yield name, Failure(check.name, text, [])


def checks_table(parts: Mapping[str, Findings]) -> str:
    """Return the number of checks of each part, and the one that is nearest to its bound."""
    rows = []
    for name, found in parts.items():
        if not found.checks:
            continue
        bounded = [x for x in found.checks if x.bound and not x.at_least]
        nearest = max(bounded, key=lambda x: x.value / x.bound, default=None)
        text = "-"
        if nearest is not None:
            text = f"{nearest.name}: {nearest.value:.2g} of {nearest.bound:g}"
        holding = sum(x.holds for x in found.checks)
        rows.append([name, f"{holding} of {len(found.checks)}", text])
    return table(["checks", "hold", "nearest to its bound"], rows)


def rates_table(found: Findings) -> str:
    """Return the card's own rates."""
    rows = [[k, number(v)] for k, v in found.figures.items() if isinstance(v, float)]
    chosen = found.figures.get("attention kernels", {})
    rows += [[f"attention, {name}", kernel] for name, kernel in chosen.items()]
    return table(["the card", "rate"], rows)


def decode_table(parts: Mapping[str, Findings], rates: Mapping[str, Any]) -> str:
    """Return sampling speed. The limit reads each weight and the cache once a step, or computes its
    products, whichever takes longer."""
    bytes_s, flops_s = rates.get("memory TB/s"), rates.get("bfloat16 TFLOP/s")
    rows = []
    for name, found in parts.items():
        for step, ours in found.figures.items():
            side, _, size = step.partition(", ")
            if side not in ("here", "graphs") or not size:
                continue
            other = found.figures.get(f"plain, {size}", {})
            limit = None
            if bytes_s and flops_s:
                read_ms = ours["bytes"] / bytes_s / 1e9
                limit = max(read_ms, ours["flops"] / flops_s / 1e9)
            cells = [
                ours["tokens/s"],
                other.get("tokens/s"),
                ratio(ours["tokens/s"], other.get("tokens/s")),
                ours["ms a step"],
                limit,
                ours["GiB"],
                other.get("GiB"),
            ]
            label = f"{name}, {size}" if side == "here" else f"{name}, {size}, {side}"
            rows.append([label, *map(number, cells)])
    head = ["sampling", "tokens/s", "plain", "ratio", "ms a step", "limit, ms", "GiB", "plain, GiB"]
    return table(head, rows)


def update_table(parts: Mapping[str, Findings], rates: Mapping[str, Any]) -> str:
    """Return the speed of updates. Utilisation: operations that the work needs, each prompt once,
    over the card's rate of bfloat16 products."""
    rate = rates.get("bfloat16 TFLOP/s")
    rows = []
    for name, found in parts.items():
        for step, figures in found.figures.items():
            if "response tokens/s" not in figures:
                continue
            tflops = figures["flops"] / figures["s a step"] / 1e12
            cells = [
                figures["response tokens/s"],
                figures["s a step"],
                tflops,
                None if rate is None else 100 * tflops / rate,
                figures["GiB"],
            ]
            rows.append([f"{name}: {step}", *map(number, cells)])
    head = ["update", "response tokens/s", "s", "TFLOP/s", "utilisation, %", "GiB"]
    return table(head, rows)


def iteration_table(parts: Mapping[str, Findings]) -> str:
    """Return whole iterations and their stages."""
    rows = []
    for name, found in parts.items():
        for side in ("here", "plain"):
            figures = found.figures.get(side)
            if figures is None:
                continue
            keys = ("iteration_s", "rollout_s", "update_s", "other_s")
            cells = [figures.get(f"time/{key}") for key in keys]
            peak = figures.get("perf/peak_memory_mb", 0) / 1024
            label = f"{name.replace('plain ', '')}: {side}, {figures['rows']} responses"
            rows.append([label, *map(number, cells), number(peak)])
    return table(["iteration", "s", "sampling, s", "update, s", "other, s", "GiB"], rows)


def named(parts: Mapping[str, Findings], kind: str) -> dict[str, Findings]:
    """Return the parts that measure something, by shape."""
    return {name: part for name, part in parts.items() if name.startswith(f"{kind} ")}


def page(environment: Mapping[str, Any], parts: Mapping[str, Findings], seconds: float) -> str:
    """Return everything, for people."""
    lines = ["# make gpu", ""]
    lines += [f"- {name}: {value}" for name, value in environment.items()]
    lines += [f"- took {seconds:.0f} s", ""]
    rates = parts.get("rates", Findings())
    tables = [
        checks_table(parts),
        rates_table(rates),
        decode_table(named(parts, "decode"), rates.figures),
        update_table(named(parts, "update"), rates.figures),
        iteration_table(named(parts, "iteration") | named(parts, "plain iteration")),
    ]
    for text in tables:
        if text.count("\n") > 1:
            lines += [text, ""]
    lines += [f"- not done: {x}" for x in undone(parts)]
    return "\n".join([*lines, "", *first_broken(parts), ""])


def undone(parts: Mapping[str, Findings]) -> list[str]:
    """Return what was skipped, with reasons."""
    texts = []
    for name, found in parts.items():
        for step, reason in found.skipped.items():
            texts.append(f"{name}: {reason}" if step == name else f"{name}, {step}: {reason}")
    return texts


def first_broken(parts: Mapping[str, Findings]) -> list[str]:
    """Return the first failure with the end of its traceback, and the number of others."""
    failures = list(broken(parts))
    if not failures:
        return ["Nothing broke."]
    name, first = failures[0]
    lines = [f"The first thing that broke: {name}, {first.step}: {first.error}"]
    lines += [f"    {line}" for line in first.lines]
    others = [f"{part}, {x.step}" for part, x in failures[1:]]
    if others:
        lines += ["", f"{len(others)} more: {'; '.join(others[:12])}"]
    return lines
