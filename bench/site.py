"""Hooks of mkdocs (`mkdocs.yml`): the README as the first page, pages of bench/ and the changelog,
and a page for each group of options.

`make site` builds the pages into site/, which opens without a network. Group pages are written from
conf/ and the docstrings of the classes that the options name, which are read and not imported."""

import ast
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONF, DOCS, PACKAGE = ROOT / "conf", ROOT / "docs", ROOT / "rlmods"
COPIED = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{
        f"bench/{path.stem.lower()}.md": f"bench/{path.name}"
        for path in sorted((ROOT / "bench").glob("*.md"))
    },
}
"""Files of the repository by the name of their page."""
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
"""Target and anchor of a relative link or image."""


def pages() -> dict[str, str]:
    """Return the text of every page that is not a file in docs/, by its name."""
    copied = {name: (ROOT / source).read_text() for name, source in COPIED.items()}
    return (
        copied
        | {f"groups/{group}.md": group_page(group) for group in groups()}
        | {"groups/index.md": groups_page()}
    )


def groups() -> list[str]:
    """Return the groups of options."""
    return sorted(path.name for path in CONF.iterdir() if path.is_dir())


def groups_page() -> str:
    """Return the page that lists the groups."""
    rows = [
        f"| [{group}]({group}.md) | {', '.join(f'`{path.stem}`' for path in _options(group))} |"
        for group in groups()
    ]
    intro = "Each group is a choice, made with `GROUP=OPTION` on the command line."
    return "\n".join(["# Groups", "", intro, "", "| group | options |", "|---|---|", *rows, ""])


def group_page(group: str) -> str:
    """Return the page of a group: for each option its description, its settings with their
    defaults, and what its class computes."""
    module = PACKAGE / group / "__init__.py"
    intro = (ast.get_docstring(ast.parse(module.read_text())) or "") if module.is_file() else ""
    return "\n".join(
        [
            f"# {group}",
            "",
            intro.split("\n\n")[0],
            *(line for path in _options(group) for line in _option(group, path)),
        ]
    )


def _options(group: str) -> list[Path]:
    return sorted((CONF / group).glob("*.yaml"))


def _option(group: str, path: Path) -> Iterator[str]:
    text = path.read_text()
    comments = [
        line.lstrip("# ")
        for line in text.splitlines()
        if line.startswith("#") and "@package" not in line
    ]
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    yield from (
        "",
        f"## {path.stem}",
        "",
        " ".join(comments[:1]),
        "",
        f"`{group}={path.stem}`:",
        "",
        "```yaml",
        body,
        "```",
    )
    target = (yaml.safe_load(text) or {}).get("_target_", "")
    if (found := find_class(target)) is None:
        return
    if rows := [
        f"| `{name}` | {' '.join(meaning.split()).replace('|', chr(92) + '|')} |"
        for name, meaning in field_docs(found)
    ]:
        yield from ("", "| setting | |", "|---|---|", *rows)
    if text := ast.get_docstring(found) or "":
        yield from (
            "",
            f"`{target}`:",
            "",
            "```text",
            "\n\n".join(map(_wrapped, text.split("\n\n"))),
            "```",
        )


def _wrapped(paragraph: str) -> str:
    """Return a paragraph in lines of at most 92 characters; tables and lists stay as they are."""
    is_plain = not any(
        line.startswith((" ", "=", "-")) or line[-1:] == ":" for line in paragraph.splitlines()
    )
    return textwrap.fill(paragraph, 92, break_long_words=False) if is_plain else paragraph


def find_class(target: str) -> ast.ClassDef | None:
    """Return the definition of a class by its dotted name in the package; None for others."""
    parts = target.split(".")
    if parts[0] != "rlmods":
        return None
    folder = PACKAGE.joinpath(*parts[1:-1])
    files = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    nodes = (node for file in files if file.is_file() for node in ast.parse(file.read_text()).body)
    return next(
        (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == parts[-1]), None
    )


def field_docs(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each documented public field of a class."""
    for node, after in pairwise(definition.body):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ) if not name.startswith("_"):
                yield name, text


def rewrite(text: str, page: str) -> str:
    """Return the text of a page with relative links that are those of the site: to pages, or to
    files beside them. Links to files that are not on the site become their names."""
    names = {source: name for name, source in COPIED.items()}
    folder = (
        PurePosixPath(COPIED[page]).parent if page in COPIED else PurePosixPath("docs", page).parent
    )

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        source = _normal(folder / path)
        if page.startswith("groups/"):
            return match[0]
        if source in names:
            return _relative(names[source], page) + anchor
        if source.startswith("docs/") and (ROOT / source).is_file():
            return _relative(source.removeprefix("docs/"), page) + anchor
        return f"#outside:{source}"

    text = LINK.sub(target, text)
    return re.sub(r"\[([^\]]+)\]\(#outside:[^)]*\)", r"\1", text)


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _relative(target: str, page: str) -> str:
    return "../" * page.count("/") + target


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files in docs/."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links."""
    return rewrite(markdown, page.file.src_uri)
