"""The pages of the site: all are in its navigation, and all links lead somewhere."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from rlmods.config.options import CONF
from tests.test_docs import DOCS, ROOT, script

site = script("site")
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def navigation(node: Any) -> list[str]:
    """Return the pages in the navigation."""
    if isinstance(node, str):
        return [node]
    return [
        page
        for child in (node.values() if isinstance(node, dict) else node)
        for page in navigation(child)
    ]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Text of every page with the links of the site."""
    found = {path.name: path.read_text() for path in DOCS.glob("*.md")} | site.pages()
    return {name: site.rewrite(text, name) for name, text in found.items()}


def anchors(text: str) -> set[str]:
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE
    )
    return {
        re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")
        for heading in headings
    }


def test_every_page_is_in_the_navigation_once(texts: dict[str, str]) -> None:
    assert sorted(navigation(CONFIG["nav"])) == sorted(texts)


def test_links_lead_to_pages_anchors_and_files(texts: dict[str, str]) -> None:
    wrong = []
    for name, text in texts.items():
        for path, anchor in site.LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)):
            target = site._normal(PurePosixPath(name).parent / path)
            if target not in texts and not (DOCS / target).is_file():
                wrong.append(f"{name}: {path}")
            elif anchor and anchor[1:] not in anchors(texts[target]):
                wrong.append(f"{name}: {path}{anchor}")
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/faults.md#signals)", "[a](faults.md#signals)"),
        ("index.md", "![a](docs/ablation.png)", "![a](ablation.png)"),
        ("index.md", "[a](CHANGELOG.md)", "[a](changelog.md)"),
        ("bench/results.md", "[a](../docs/performance.md)", "[a](../performance.md)"),
        ("settings.md", "[a](../README.md#start)", "[a](index.md#start)"),
        ("performance.md", "[a](../bench/RESULTS.md)", "[a](bench/results.md)"),
        ("one_step.md", "[`a.py`](../rlmods/algo/learner.py)", "`a.py`"),
        (
            "settings.md",
            "[a](https://example.com/x.md) [b](#here)",
            "[a](https://example.com/x.md) [b](#here)",
        ),
    ],
)
def test_links_are_rewritten(page: str, text: str, expected: str) -> None:
    assert site.rewrite(text, page) == expected


class TestGroups:
    def test_every_option_has_a_section_with_its_settings(self) -> None:
        for group in site.groups():
            page = site.group_page(group)
            for path in (CONF / group).glob("*.yaml"):
                assert f"## {path.stem}\n" in page

    def test_settings_and_equation_of_a_part(self) -> None:
        page = site.group_page("ratio")
        section = page.split("## clip_higher\n")[1].split("\n## ")[0]
        assert "`ratio=clip_higher`:" in section
        assert "high: 0.28" in section
        assert "| `high` |" in section
        assert "clip(r, 1 - low, 1 + high)" in section

    def test_classes_of_other_packages_have_no_docstring(self) -> None:
        assert site.find_class("torch.optim.AdamW") is None
        assert site.find_class("rlmods.ratio.Missing") is None


@pytest.mark.slow
@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")
def test_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outside = r"""<(?:script|link|img)[^>]+(?:src|href)="?https?:(?!//[^"]*rel=)"""
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    assert not [page.name for page in pages if re.search(outside, page.read_text())]
