"""The environment of a run for its manifest: versions, files of plug-ins and worlds, and hardware."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from threadpoolctl import threadpool_info

from fedsim import plugins
from fedsim.common.files import sha256

_PLUGIN_KEYS = {"name", "scenario", "metric"}
"""The keys of tables that name a plug-in."""
_PACKAGES = ("fedsim", "torch", "torchvision", "numpy", "scipy", "ray", "pyarrow", "simpy", "pydantic")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    return {package: _version(package) for package in _PACKAGES} | {"python": platform.python_version()}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version("fedsim-dynamics" if package == "fedsim" else package)
    except metadata.PackageNotFoundError:
        return "not installed"


def code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the sha256 of the file of each plug-in in a resolved configuration that fedsim does not ship.

    They are named as there: by a path, whose file is as runs read it, or by a name of an installed package.
    """
    files = {path: source.sha256 for path, source in plugin_files(config).items()}
    named = [name for name in _names(config) if not (".py:" in name or plugins.is_given(name))]
    installed = {name: plugins.installed_file(name) for name in named}
    return files | {name: sha256(file) for name, file in installed.items() if file is not None}


def plugin_files(config: Mapping[str, Any]) -> dict[str, plugins.Source]:
    """Return the plug-in files in a resolved configuration by their paths there, as runs read them."""
    return plugins.sources(text for text in _texts(config) if Path(text.rpartition(":")[0]).is_file())


def _names(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield what may be the name of a plug-in in the tables of a configuration, whose own name is none."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in _PLUGIN_KEYS and isinstance(inner, str) and depth:
                yield inner
            yield from _names(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _names(inner, depth + 1)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested tables and lists that may name a function in a Python file."""
    if isinstance(value, str):
        if ".py:" in value:
            yield value
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(entry)


def changed(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return how versions, processor and plug-in files differ now from those in the manifest of a run, as texts."""
    before = (manifest.get("versions") or {}) | (manifest.get("hardware") or {})
    others = [
        f"{name} {before[name]}, now {here}"
        for name, here in (versions() | processor()).items()
        if before.get(name) not in (None, here)
    ]
    files = code(config)
    return others + [
        f"{path} {'edited' if path in files else 'missing'}"
        for path, digest in (manifest.get("code") or {}).items()
        if files.get(path) != digest
    ]


def edited_worlds(manifest: Mapping[str, Any]) -> list[str]:
    """Return which files that the world of a run was read from differ now, as texts."""
    files = (manifest.get("world_files") or {}).items()
    return [f"{path} {found}" for path, digest in files if (found := _edit_of(Path(path), digest))]


def _edit_of(path: Path, digest: str) -> str:
    """Return what became of a file with this sha256; "" if it is the same."""
    try:
        about = path.stat()
        return "" if _sha256_of(path, about.st_mtime_ns, about.st_size) == digest else "edited"
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else "cannot be read"


@lru_cache(maxsize=1024)
def _sha256_of(path: Path, mtime_ns: int, size: int) -> str:
    """Return the sha256 of a file, which is read once until it changes: the runs of a study share a world."""
    return sha256(path)


def processor() -> dict[str, str]:
    """Return what the last bits of sums depend on: the processor's vendor, torch's instruction set and NumPy's BLAS."""
    return {
        "vendor": _cpuinfo("vendor_id") or "unknown",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
    }


@cache
def _blas() -> str:
    """Return NumPy's BLAS and the kernels that it chose, by the processor or `OPENBLAS_CORETYPE`; empty if unknown."""
    found = [
        lib for lib in threadpool_info() if lib["user_api"] == "blas" and _is_of_numpy(Path(lib["filepath"]))
    ]
    return ", ".join(f"{lib['internal_api']} for {lib.get('architecture', 'any')}" for lib in found)


def _is_of_numpy(library: Path) -> bool:
    return any(folder.name.startswith("numpy") for folder in library.parents)


@cache
def _cpuinfo(name: str) -> str:
    """Return what Linux says about the first processor; empty on other systems, and for what it does not know."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    values = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name)
    return next(values, "")


def hardware(device: str) -> dict[str, Any]:
    """Return the hardware of this machine, which may lack the GPUs of a cluster."""
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        **processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None,
    }
