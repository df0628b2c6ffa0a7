"""The README matches the code."""

import re
from pathlib import Path

from rlmods.config.options import CONF

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_example_plugin_matches_the_shipped_one():
    for file in ("plugins/brevity/brevity.py", "plugins/brevity/reward/brevity.yaml"):
        assert (ROOT / file).read_text().strip() in README


def test_overrides_exist():
    config = "\n".join(path.read_text() for path in CONF.rglob("*.yaml"))
    for key in set(re.findall(r"`?(?:batch|rollout|optimizer|algo|validation|trainer|data|policy)\.(\w+)=", README)):
        assert re.search(rf"^\s*{key}:", config, re.MULTILINE), key


def test_images_and_linked_pages_exist():
    for path in re.findall(r"\[[^\]]+\]\(((?!https?:)[^)]+)\)", README):
        assert (ROOT / path).is_file(), path
