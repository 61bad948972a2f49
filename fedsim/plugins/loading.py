"""Imports the code of plug-ins that fedsim does not ship: installed modules and files."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

_provided: dict[str, Any] = {}
"""Modules made from source texts, by the path in a plug-in's name."""
_installed: set[str] = set()
"""Installed modules that names of plug-ins referred to."""
_PREFIX = "fedsim_plugin_"
"""Prefix of the names of modules that were read from files."""


def load(where: str) -> Any:
    """Return the module that `where` names: an installed module, or the path of a file that ends in `.py`.

    Raises FileNotFoundError for a path without a file, and what the module raises.
    """
    if where.endswith(".py"):
        return _provided.get(where) or _from_file(Path(where))
    _installed.add(where)
    return importlib.import_module(where)


def is_plugin(module: str) -> bool:
    """Return whether a module, by its name in `sys.modules`, is the code of such a plug-in."""
    return module.startswith(_PREFIX) or module in _installed


def sources(plugins: Iterable[str]) -> dict[str, str]:
    """Return the text of each file that names of plug-ins refer to, by its path, for `provide` in another process."""
    paths = {where for where, _, _ in (name.rpartition(":") for name in plugins) if where.endswith(".py")}
    return {path: Path(path).read_text(encoding="utf-8") for path in sorted(paths)}


def provide(texts: Mapping[str, str]) -> None:
    """Use the texts of `sources` in place of the files at their paths, unless this process has equal files."""
    for where, text in texts.items():
        path = Path(where)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(text, encoding="utf-8")
            _provided[where] = _from_file(copy)


class _TextLoader(SourceFileLoader):
    """Compiles a file each time: cached bytecode is matched by second and size, which an edit may not change."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Raise OSError, so that no cached bytecode is used."""
        raise OSError


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file, seen from {Path.cwd()}")
    qualified = f"{_PREFIX}{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    loader = _TextLoader(qualified, str(path))
    spec = importlib.util.spec_from_file_location(qualified, path, loader=loader)
    assert spec is not None
    module = sys.modules[qualified] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[qualified]
        raise
    return module
