"""Plugins: `plugins/<name>/<name>.py` defines classes, `plugins/<name>/<group>/<option>.yaml` makes
one an option of a group.

Plugins are discovered by `register()`, which runs before Hydra composes; their options show in
`--help` and work from any directory. An installed package provides options with an entry point in
the group `rlmods.plugins` and files `conf/<group>/<option>.yaml`."""

import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from rlmods.config.options import CONF
from rlmods.errors import UserError

FOLDER = (
    CONF.parent / "plugins" if (CONF.parent / "train.py").is_file() else Path("plugins").absolute()
)
"""Folder of plugins: in the repository, or in the working directory if the package is installed."""
SEARCHED = [FOLDER]
"""Folders with plugins: `FOLDER` and, after `make_importable`, the folders of `configured`."""
ENTRY_POINTS = "rlmods.plugins"
"""Group of the entry points of installed packages with plugins: `my_package = "my_package"`."""


@dataclass(frozen=True)
class Source:
    """One plugin."""

    name: str
    options: Path
    """Folder of the files `<group>/<option>.yaml`."""
    code: Path
    """Folder of the Python code."""
    module: str
    """Name of its Python module."""

    @property
    def overrides(self) -> list[str]:
        """Overrides that select its options."""
        return [f"{path.parent.name}={path.stem}" for path in sorted(self.options.glob("*/*.yaml"))]


def sources() -> Iterator[Source]:
    """Yield the plugins in the folders, then those of installed packages."""
    for path in _plugins():
        yield Source(path.name, path, path, path.name)
    for entry in _entry_points(tuple(sys.path)):
        spec = find_spec(entry.module)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield Source(entry.name, Path(folder) / "conf", Path(folder), entry.module)


@lru_cache(maxsize=8)
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of the packages on `sys.path`, which is `path`. The search reads the
    metadata of every installed package."""
    return tuple(sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name))


def configured() -> tuple[Path, ...]:
    """Return the folders in `RLMODS_PLUGINS`, which are separated as in `PATH` (by `:`, on Windows
    `;`).

    Raises:
        UserError: one does not exist.
    """
    folders = tuple(
        Path(name).expanduser().resolve()
        for name in os.environ.get("RLMODS_PLUGINS", "").split(os.pathsep)
        if name
    )
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"no plugin folder {folder}, set RLMODS_PLUGINS to one that exists (several: "
                f"A{os.pathsep}B) or unset it"
            )
    return folders


def register() -> None:
    """Make the plugins importable and add their options to Hydra.

    Raises:
        UserError: as in `make_importable`. While Hydra composes: an option is in no known group, or
            has the name of an existing option (which Hydra would silently ignore).
    """
    from rlmods.config import search_path  # Hydra, which not all commands need

    make_importable()
    search_path.register(lambda: [(source.name, source.options) for source in sources()])


def make_importable() -> None:
    """Make the plugins in `FOLDER` and in the folders of `configured` importable.

    Raises:
        UserError: a plugin's name is not valid for a module or is the name of another module, or
            its module is missing.
    """
    SEARCHED[:] = dict.fromkeys([FOLDER, *configured()])
    for plugin in _plugins():
        module = plugin / f"{plugin.name}.py"
        if not plugin.name.isidentifier():
            raise UserError(
                f"{plugin}: the folder's name is the name of a Python module: use letters, "
                "digits and _ only"
            )
        if not module.is_file():
            raise UserError(
                f"{plugin}: no {module.name} in it, name the plugin's module like its folder"
            )
        check_name(plugin)
        if str(plugin) not in sys.path:
            # last, so that a plugin's modules do not shadow installed packages
            sys.path.append(str(plugin))


def check_name(plugin: Path) -> None:
    """Check that no other module has the name of a plugin.

    Raises:
        UserError: another module has that name.
    """
    spec = find_spec(plugin.name)
    # None: a namespace package; ours overrides it
    if spec is not None and spec.origin not in (None, str(plugin / f"{plugin.name}.py")):
        raise UserError(
            f"{plugin}: the module name {plugin.name} is used by {spec.origin}, rename the "
            f"folder and {plugin.name}.py"
        )


def explain_plugin_error(exception: BaseException) -> UserError | None:
    """Return a one-line error with file and line number if `exception` or one of its causes was
    raised in a plugin, else None."""
    folders = [*SEARCHED, *(source.code for source in sources())]
    cause: BaseException | None = exception
    found: UserError | None = None
    while cause is not None:
        frames = [
            (frame.filename, frame.lineno) for frame in traceback.extract_tb(cause.__traceback__)
        ]
        if isinstance(cause, SyntaxError):
            frames.append((cause.filename or "", cause.lineno))
        for name, line in frames:
            if any(map(Path(name).is_relative_to, folders)):
                text = " ".join(f"{type(cause).__name__}: {cause}".split())
                found = UserError(f"{name}:{line}: {text}")
        cause = cause.__cause__ or cause.__context__
    return found


def _plugins() -> Iterator[Path]:
    """Yield the folders of the plugins in the searched folders."""
    for folder in SEARCHED:
        for path in sorted(folder.glob("*")):
            if path.is_dir() and not path.name.startswith((".", "__")):
                yield path
