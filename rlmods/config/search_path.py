"""Options of plugins in Hydra's search path."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from rlmods.errors import UserError

Folders = Callable[[], Iterable[tuple[str, Path]]]
"""Returns the name of each plugin and the folder of its options."""


class PluginSearchPath(SearchPathPlugin):
    """Appends every plugin's folder to Hydra's search path."""

    folders: ClassVar[Folders]

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        existing: dict[str, Path] = {}
        for element in search_path.get_path():
            path = element.path or ""
            if "://" not in path or path.startswith("file://"):
                conf = Path(path.removeprefix("file://"))
                existing |= {str(file.relative_to(conf)): file for file in conf.rglob("*.yaml")}
        groups = {str(Path(option).parent) for option in existing}
        for name, folder in type(self).folders():
            for option in sorted(folder.rglob("*.yaml")):
                key = option.relative_to(folder)
                if str(key.parent) not in groups or key.parent == Path():
                    names = ", ".join(sorted(groups - {"."}))
                    raise UserError(
                        f"{option}: move it to {folder.name}/GROUP/, where GROUP is one of {names}"
                    )
                if str(key) in existing:
                    raise UserError(
                        f"{option}: {key.parent}={key.stem} is {existing[str(key)]} already, "
                        "rename one of the two"
                    )
                existing[str(key)] = option
            search_path.append(f"plugin-{name}", str(folder))


def register(folders: Folders) -> None:
    """Let Hydra find the options in these folders, which are asked for when it composes."""
    PluginSearchPath.folders = staticmethod(folders)
    Plugins.instance().register(PluginSearchPath)
