"""Checks of paths from users, before slow imports and before libraries that fail on such paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedsim.common.errors import ConfigError, described


def as_path(path: Any, name: str) -> Path:
    """Return the argument `name` as a path. Raises ConfigError if it is no path, or no valid UTF-8."""
    if not isinstance(path, (str, Path)):
        raise ConfigError(f"{name}: expected a path, found {described(path)}")
    check_text(str(path), name)
    check_working_directory()
    return Path(path)


def check_text(text: str, name: str) -> None:
    """Raise ConfigError for a path that some libraries cannot open, with invalid UTF-8 or a NUL character."""
    if "\0" in text:
        raise ConfigError(f"{name}: expected a path, found one with a NUL in it: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: expected text in UTF-8, found the bytes {os.fsencode(text)!r}") from None


def check_working_directory() -> None:
    """Raise ConfigError if the working directory has been removed, since some libraries end the process then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory has been removed: change to one that exists") from None
