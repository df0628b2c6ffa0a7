"""The README says what is."""

import re
from pathlib import Path

from rlmods.config.options import CONF, groups, options, table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_table_of_options_is_current():
    between = re.search(r"<!-- options: [^>]*-->\n(.*?)\n?<!-- /options -->", README, re.DOTALL)
    assert between is not None
    assert between[1].strip() == table(), "run: python -m rlmods.options, and paste it between the comments"


def test_every_option_says_what_it_is():
    assert {folder.name for folder in CONF.iterdir() if folder.is_dir()} == set(groups())
    for group in groups():
        for name, text in options(group).items():
            assert text, f"conf/{group}/{name}.yaml has no first comment"


def test_plugin_shown_is_the_plugin_shipped():
    for file in ("plugins/brevity/brevity.py", "plugins/brevity/reward/brevity.yaml"):
        assert (ROOT / file).read_text().strip() in README


def test_overrides_shown_exist():
    config = "\n".join(path.read_text() for path in CONF.rglob("*.yaml"))
    for key in set(re.findall(r"`?(?:batch|rollout|optimizer|algo|validation|trainer|data|policy)\.(\w+)=", README)):
        assert re.search(rf"^\s*{key}:", config, re.MULTILINE), key


def test_pictures_exist():
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README):
        assert (ROOT / picture).is_file(), picture
