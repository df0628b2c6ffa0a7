"""Functions that a setting names, as in `reward.function=my_rewards.py:score`."""

import inspect
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from rlmods.errors import UserError, in_one_line, suggest


def example(key: str) -> str:
    """Return what to type for a setting that names a function."""
    return f"type {key}=MODULE:FUNCTION, or {key}=FILE.py:FUNCTION"


@lru_cache(maxsize=64)
def load_function(name: str, key: str) -> Callable[..., Any]:
    """Return the function that "MODULE:FUNCTION" or "FILE.py:FUNCTION" names, also in the working
    directory.

    Args:
        key: the setting with this name.

    Raises:
        UserError: the module or the function does not exist, or the module raises while it is
            imported.
    """
    module_name, _, function_name = name.rpartition(":")
    if not module_name or not function_name:
        raise UserError(f"{key}={name}: {example(key)}")
    module = _import(module_name, f"{key}={name}")
    function: Callable[..., Any] | None = vars(module).get(function_name)
    if not callable(function):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        hint = suggest(function_name, known) if known else "it defines no function"
        raise UserError(f"{key}={name}: no function {function_name}; {hint}")
    return function


def _import(module_name: str, setting: str) -> ModuleType:
    path = Path(module_name)
    if path.suffix == ".py" and not path.is_file():
        raise UserError(f"{setting}: no file {path.absolute()}")
    here = str(Path.cwd())
    try:
        if path.suffix == ".py":
            return _import_file(path)
        if here not in sys.path:
            # last, so that files of the working directory do not shadow installed packages
            sys.path.append(here)
        return import_module(module_name)
    except Exception as error:  # a module may raise anything
        reason = f"{type(error).__name__}: {error}"
        if not isinstance(error, ImportError | SyntaxError):  # whose messages name the place
            frame = traceback.extract_tb(error.__traceback__)[-1]
            reason += f" ({frame.filename}:{frame.lineno})"
        raise UserError(f"{setting}: {in_one_line(reason)}") from error


def _import_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
