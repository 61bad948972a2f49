"""Paths that people give, checked before anything is imported that could not open them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedsim.common.errors import ConfigError, described


def as_path(path: Any, name: str) -> Path:
    """Return the path that an argument of this name gives. Raises ConfigError for what is none, or is no UTF-8."""
    if not isinstance(path, (str, Path)):
        raise ConfigError(f"{name}: expected a path, found {described(path)}")
    check_text(str(path), name)
    check_working_directory()
    return Path(path)


def check_text(text: str, name: str) -> None:
    """Raise ConfigError for a path that not all libraries can open: with bytes that are no UTF-8, or with a NUL."""
    if "\0" in text:
        raise ConfigError(f"{name}: expected a path, found one with a NUL in it: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected text in UTF-8, found the bytes {os.fsencode(text)!r}") from None


def check_working_directory() -> None:
    """Raise ConfigError where there is none any more: libraries that are loaded then end the process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory has been removed: change to one that is there") from None
