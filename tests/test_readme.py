"""The README and the pages of settings match the code."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlmods.config.options import CONF, groups
from rlmods.config.schema import SETTINGS, defaults

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{page}.md" for page in ("settings", "preferences", "models_and_data")),
]


def overrides(page: Path) -> list[tuple[str, str]]:
    """Return key and value of every override in the code spans and blocks of a page."""
    return re.findall(r"(?<![\w./@-])\+?([a-z_][a-z_.@]*)=([^\s`,]+)", page.read_text())


def test_example_plugin_works():
    block = next(x for x in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class" in x)
    names = {"dataclass": dataclass, "Sequence": Sequence, "Response": Any, "__name__": "readme"}
    exec(block, names)
    score = names["Brevity"](target=4)
    assert score([SimpleNamespace(tokens=[7] * n) for n in (0, 4, 8)]) == [1.0, 1.0, 0.5]


def test_is_short():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    assert len(prose.split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_overrides_exist(page):
    keys = {
        key
        for path in (*CONF.rglob("*.yaml"), *ROOT.glob("plugins/*/*/*.yaml"))
        for key in re.findall(r"^ *(\w+):", path.read_text(), re.MULTILINE)
    }
    keys |= {key for settings in SETTINGS.values() for key in defaults(settings)}
    names = [(key, value) for key, value in overrides(page) if "." in key or key in groups()]
    assert len(names) >= 10
    for key, value in names:
        if (
            key.startswith(
                (
                    "reward.terms.brevity",
                    "data.weights",
                    "callbacks.early_stopping",
                    "policy.chat_template_kwargs",
                )
            )
            or "@" in key
        ):
            continue
        if "." in key:
            assert key.split(".")[-1] in keys, f"{key}={value}"
        elif value.isalpha() and value.islower():
            files = [CONF / key / f"{value}.yaml", *ROOT.glob(f"plugins/*/{key}/{value}.yaml")]
            assert any(file.is_file() for file in files), f"{key}={value}"


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "docs/one_step.md"], ids=lambda page: page.stem
)
def test_images_and_linked_pages_exist(page):
    for target in re.findall(r"\[[^\]]+\]\(((?!https?:)[^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        assert (page.parent / path).is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (page.parent / path).read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target
