"""Packages that only some features need; pip installs them as extras of fedsim."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from fedsim.common.errors import ConfigError


def require(extra: str, module: str) -> ModuleType:
    """Return a module of an optional package.

    Raises ConfigError, with the command that installs the extra, if the module cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the package {package} is needed and cannot be imported ({error}): "
            f"pip install 'fedsim-dynamics[{extra}]'"
        ) from error
