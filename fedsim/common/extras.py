"""Packages of extras: optional dependencies."""

from __future__ import annotations

import importlib
from types import ModuleType

from fedsim.common.errors import ConfigError


def install(extra: str) -> str:
    """Return how to install an extra, in words."""
    return f"in the folder of fedsim's source, pip install '.[{extra}]'"


def require(extra: str, module: str) -> ModuleType:
    """Return a module of an optional package, which pip installs as an extra of fedsim.

    Raises ConfigError, with the command that installs the extra, if the module cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the package {package} is needed and cannot be imported ({error}): {install(extra)}"
        ) from error
