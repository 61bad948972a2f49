"""Imports the code of plug-ins that fedsim does not ship: installed modules and files."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.abc import ExecutionLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from threadpoolctl import threadpool_limits


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a plug-in as it was read."""

    path: Path
    """The absolute path."""
    text: str

    @property
    def sha256(self) -> str:
        """Return the digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_kept: list[dict[Path, Source]] = []
"""The files that were read in the open `read_once` blocks, which all share one entry."""
_provided: dict[str, Source] = {}
"""Files of another process, by the path in a plug-in's name."""
_installed: set[str] = set()
"""Installed modules that names of plug-ins referred to."""
_PREFIX = "fedsim_plugin_"
"""Prefix of the names of modules that were read from files."""


def load(where: str) -> Any:
    """Return the module that `where` names: an installed module, or the path of a file that ends in `.py`.

    An edited file is another module. The libraries in memory, such as NumPy's, use one thread while a module is
    imported, as in a run: what it computes does not depend on the number of cores.

    Raises FileNotFoundError for a path without a file, and what the module raises.
    """
    if where.endswith(".py"):
        return _module(_provided.get(where) or _source(where))
    _installed.add(where)
    with nullcontext() if where in sys.modules else threadpool_limits(1):
        return importlib.import_module(where)


def is_plugin(module: str) -> bool:
    """Return whether a module, by its name in `sys.modules`, is the code of such a plug-in."""
    return module.startswith(_PREFIX) or module in _installed


@contextmanager
def read_once() -> Iterator[None]:
    """Read each plug-in file at most once in the body, so that an edit does not change runs in progress."""
    _kept.append(_kept[-1] if _kept else {})
    try:
        yield
    finally:
        _kept.pop()


def sources(plugins: Iterable[str]) -> dict[str, Source]:
    """Return the files that names of plug-ins refer to, by the path there, as `load` reads them."""
    paths = {where for where, _, _ in (name.rpartition(":") for name in plugins) if where.endswith(".py")}
    return {path: _provided.get(path) or _source(path) for path in sorted(paths)}


def provide(files: Mapping[str, Source]) -> None:
    """Use the `sources` of another process in place of the files at their paths, and none of an earlier call."""
    _provided.clear()
    _provided.update(files)


def _source(where: str) -> Source:
    path = Path(where).absolute()
    if _kept and path in _kept[-1]:
        return _kept[-1][path]
    if not path.is_file():
        raise FileNotFoundError(f"{where} is not a file, seen from {Path.cwd()}")
    source = Source(path, importlib.util.decode_source(path.read_bytes()))
    if _kept:
        _kept[-1][path] = source
    return source


class _TextLoader(ExecutionLoader):
    """Runs the text that was read, without cached bytecode, and shows it in tracebacks."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def get_filename(self, fullname: str) -> str:
        """Return the path of the file."""
        return str(self._source.path)

    def get_source(self, fullname: str) -> str:
        """Return the text."""
        return self._source.text


def _module(source: Source) -> ModuleType:
    """Return the module of a text; other processes name it alike, so that they can exchange objects of its classes."""
    place = source.path.resolve().as_posix().replace("/", "_").removesuffix(".py")
    name = f"{_PREFIX}{source.sha256[:12]}_{place}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _TextLoader(source)
    spec = importlib.util.spec_from_file_location(name, source.path, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with threadpool_limits(1):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
