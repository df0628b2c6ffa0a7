"""Groups of the configuration and their options."""

from collections.abc import Iterable
from pathlib import Path

CONF = (Path(__file__).parents[1] / "conf").resolve()
"""Folder of the options: `conf/` of the repository, to which `rlmods/conf` links, or its copy in an
installed package."""
USAGE = """\
Train a language model: python train.py algo=dapo reward=math ratio=symmetric optimizer.lr=1e-4

group=option swaps a part, key=value changes a setting, +key=value adds one, and -m with values
separated by commas runs all combinations. --cfg job prints all settings. docs/options.md describes
the options.
"""


def groups() -> list[str]:
    """Return the names of the groups, in the order of `conf/train.yaml`."""
    lines = (CONF / "train.yaml").read_text().split("defaults:")[1].split("\n\n")[0].splitlines()
    names = [line.strip(" -").split(":")[0] for line in lines if ":" in line]
    return [name for name in names if (CONF / name).is_dir()]


def options(group: str, conf: Path = CONF) -> dict[str, str]:
    """Return the description of each option of a group: the first comment of its file."""
    descriptions = {}
    for file in sorted((conf / group).glob("*.yaml")):
        comments = [
            line.lstrip("# ").strip()
            for line in file.read_text().splitlines()
            if line.startswith("#") and "@package" not in line
        ]
        descriptions[file.stem] = comments[0] if comments else ""
    return descriptions


def usage(plugins: Iterable[Path] = ()) -> str:
    """Return the page of `train.py --help`: the options of each group, with those in the folders of
    plugins."""
    folders = [CONF, *plugins]
    lines = []
    for group in groups():
        names: list[str] = []
        for folder in folders:
            names += options(group, folder)
        lines.append(f"{group}: {', '.join(sorted(names))}")
    return "\n".join([USAGE, *lines])
