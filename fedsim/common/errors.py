"""Every error that fedsim raises on purpose.

fedsim.Error
├─ ConfigError      bad key, type, range or combination; names the field and the file
├─ DataError        a data set is missing, truncated or cannot be partitioned as asked
├─ TraceError       overlapping or reversed intervals, a world that ends; names client and row
├─ SolverError      a subproblem was not solved; carries the Gram matrix
├─ RunError         a run cannot go on, or its folder cannot be written
│  ├─ FolderError   a folder is missing, foreign, damaged, in use, in the way, or has not what was asked for
│  ├─ SomeFailed    of several runs some failed, and the others are done
│  ├─ LethalJob     a client's training kills the process that does it, again and again
│  └─ ServerLost    the server's process died, or rows for it were lost with their node
└─ CheckpointError  a part is missing, or was made by a different config

The first three, FolderError and CheckpointError say that what was handed over is at fault: exit code 2 on the command
line, unless a run had begun.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Error(Exception):
    """The base of all errors raised by fedsim."""


class ConfigError(Error):
    """A configuration holds a bad key, type, range or combination."""


class DataError(Error):
    """A data set is missing or malformed, or cannot be divided as asked."""


class TraceError(Error):
    """A trace is malformed, or a world was asked about a time that it does not cover."""


class SolverError(Error):
    """A subproblem was not solved to its tolerance; `matrix` is the Gram matrix given to the solver."""

    def __init__(self, message: str, matrix: Any = None) -> None:
        super().__init__(message)
        self.matrix = matrix


class RunError(Error):
    """A run cannot go on, or its folder cannot be written."""


class FolderError(RunError):
    """A folder is missing, foreign, damaged, in use or in the way, or does not hold what was asked for."""


class SomeFailed(RunError):
    """Of several runs some failed; `errors` says why, by name, and `results` are those of the others."""

    def __init__(self, errors: Mapping[str, Exception], results: Sequence[Any]) -> None:
        lines = [line for name, error in errors.items() for line in _said(name, error)]
        super().__init__("\n".join([f"{len(errors)} of {len(errors) + len(results)} runs failed", *lines]))
        self.errors, self.results = errors, results


class LethalJob(RunError):
    """A job killed its worker process each time that it was tried."""


class ServerLost(RunError):
    """The server's process died, or what it needed was lost: its state is gone, and a new one goes on from an older."""


class CheckpointError(Error):
    """A checkpoint misses a part or was made by a different configuration."""


class EndOfWorld(UserWarning):
    """A run goes on for longer than its world is described."""


INPUT_ERRORS = (ConfigError, DataError, TraceError, FolderError, CheckpointError)


def _said(name: str, error: Exception) -> list[str]:
    """Return what an error says with its notes, for the run of this name."""
    what = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return [f"{name}: {what}", *getattr(error, "__notes__", ())]


def closest(name: str, known: Iterable[str], beside: Iterable[str] = ()) -> str:
    """Return `; did you mean 'x'?` for the known name nearest to `name`, or the known names if none is near.

    Names in `beside` may have been meant as well, and are not listed.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, [*names, *beside], n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def short(text: str, most: int = 200) -> str:
    """Return a text for a message: of a long one the beginning, and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} signs)"


def found(value: object) -> str:
    """Return a value for a message, as Python writes it; a long one is cut."""
    try:
        return short(repr(value))
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"


def described(value: object) -> str:
    """Return what an argument is for a message: a plain value as Python writes it, of others the type."""
    shown = found(value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return shown
    name = type(value).__name__
    return name if "\n" in shown or len(shown) > 80 or shown.startswith(("<", name)) else f"{name} {shown}"


_WORDS = {
    "a valid tuple": "a list",
    "a valid list": "a list",
    "an instance of Sequence": "a list",
    "a valid dictionary": "a table",
    "Input is not a valid path for <class 'pathlib.Path'>": "Input should be a path",
}


def in_words(said: str) -> str:
    """Return what pydantic says of a value in the words of TOML."""
    for theirs, ours in _WORDS.items():
        said = said.replace(theirs, ours)
    return said
