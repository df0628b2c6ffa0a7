"""The table of groups and options, read from the configuration: `python -m rlmods.options` prints it as Markdown."""

from __future__ import annotations

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"


def groups(conf: Path = CONF) -> list[str]:
    """Groups in the order of `conf/train.yaml`, which is that of the data."""
    lines = (conf / "train.yaml").read_text().split("defaults:")[1].split("\n\n")[0].splitlines()
    names = [line.strip(" -").split(":")[0] for line in lines if ":" in line]
    return [name for name in names if (conf / name).is_dir()]


def options(group: str, conf: Path = CONF) -> dict[str, str]:
    """What each option of a group says of itself: the first comment of its file."""
    found = {}
    for file in sorted((conf / group).glob("*.yaml")):
        comments = [line.lstrip("# ").strip() for line in file.read_text().splitlines() if line.startswith("#") and "@package" not in line]
        found[file.stem] = comments[0] if comments else ""
    return found


def table(conf: Path = CONF) -> str:
    """All of them, as a Markdown table."""
    rows = ["| group | option | what it is |", "|---|---|---|"]
    for group in groups(conf):
        for i, (name, text) in enumerate(options(group, conf).items()):
            rows.append(f"| {f'**{group}**' if i == 0 else ''} | `{name}` | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
