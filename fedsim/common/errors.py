"""The errors that fedsim raises, and helpers for their messages.

fedsim.Error
├─ ConfigError      bad key, type, range or combination; names the field and the file
├─ DataError        a data set is missing, truncated or cannot be partitioned as asked
├─ TraceError       overlapping or reversed intervals, a world that ends; names client and row
├─ SolverError      a subproblem was not solved; carries the Gram matrix
├─ RunError         a run cannot continue, or its folder cannot be written
│  ├─ FolderError   a folder is missing, foreign, damaged, in use or in the way, or lacks what was asked for
│  ├─ SomeFailed    some of several runs failed, and the others finished
│  ├─ LethalJob     a client's training kills its worker process each time
│  └─ ServerLost    the server's process died, or updates for it were lost with their node
└─ CheckpointError  a part is missing, or was made by a different configuration

ConfigError, DataError, TraceError, FolderError and CheckpointError are errors of the input: the command line exits with
code 2, unless a run has begun.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn


class Error(Exception):
    """The base class of all errors that fedsim raises."""


class ConfigError(Error):
    """A configuration has a bad key, type, range or combination."""


class DataError(Error):
    """A data set is missing or malformed, or cannot be divided among clients as asked."""


class TraceError(Error):
    """A trace is malformed, or its world does not cover a time that is needed."""


class SolverError(Error):
    """A subproblem was not solved to its tolerance; `matrix` is the solver's Gram matrix."""

    def __init__(self, message: str, matrix: Any = None) -> None:
        super().__init__(message)
        self.matrix = matrix


class RunError(Error):
    """A run cannot continue, or its folder cannot be written."""


class FolderError(RunError):
    """A folder is missing, foreign, damaged, in use or in the way, or lacks what was asked for."""


class SomeFailed(RunError):
    """Some of several runs failed: `errors` by the name of the run, and the `results` of the others.

    `lines` has by name the file and line of a plug-in that raised the error, as `plugins.line_of` returns them.
    """

    def __init__(
        self, errors: Mapping[str, Exception], results: Sequence[Any], lines: Mapping[str, str]
    ) -> None:
        text = [f"{len(errors)} of {len(errors) + len(results)} runs failed"]
        for name, error in errors.items():
            message = (
                str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}{lines[name]}"
            )
            text += [f"{name}: {message}", *getattr(error, "__notes__", ())]
        super().__init__("\n".join(text))
        self.errors, self.results = errors, results


class LethalJob(RunError):
    """A job killed its worker process each time."""


class ServerLost(RunError):
    """The server's process or an input of it was lost, and with it the state; a new server resumes from older state."""


class CheckpointError(Error):
    """A checkpoint lacks a part, or was made by a different configuration."""


class LongRun(UserWarning):
    """A run is longer than its configuration suggests."""


class EndOfWorld(LongRun):
    """A run is longer than the horizon of its world."""


class ManySteps(LongRun):
    """A run takes very many server steps until its limit."""


class UnusedWorld(UserWarning):
    """A run ignores a part of its world, or the world lacks what makes time pass or has other clients than the task."""


class RunNote(UserWarning):
    """A run is done, but ended early, or no step used an update."""


class Changed(UserWarning):
    """Code or files of existing runs were edited since these started, or a study no longer has some of its cells."""


class Untracked(UserWarning):
    """A tracker such as MLflow failed, and the run goes on without it."""


INPUT_ERRORS = (ConfigError, DataError, TraceError, FolderError, CheckpointError)


def closest(name: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """Return `; did you mean 'x'?` for the known name closest to `name`, or the known names if none is close.

    Names in `others` may be suggested too, but are not listed.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, [*names, *others], n=5, cutoff=0.75)
    near = sorted(near, key=lambda each: sorted(each) != sorted(name))  # `fedfv` has the letters of `fedvf`
    near = near[:1] or [
        each for each in names if name in each.split("_")
    ]  # `median` is one of `coordinate_median`
    near = near or difflib.get_close_matches(name, [*names, *others], n=1, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; known: {', '.join(names)}" if names else ""


def short(text: str, most: int = 200) -> str:
    """Return a text for a message; a long text is cut, with its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} signs)"


def shown(value: object) -> str:
    """Return the `repr` of a value for a message, shortened if it is long."""
    try:
        return short(repr(value))
    except ValueError:  # Python refuses to print integers with thousands of digits
        return "a number of thousands of digits"


def described(value: object) -> str:
    """Return an argument for a message: the `repr` of a plain value, otherwise the type, with the `repr` if short."""
    text = shown(value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return text
    name = type(value).__name__
    return name if "\n" in text or len(text) > 80 or text.startswith(("<", name)) else f"{name} {text}"


_WORDS = {
    "a valid tuple": "a list",
    "a valid list": "a list",
    "Tuple should": "List should",
    " after validation, not 0": "",
    "an instance of Sequence": "a list",
    "a valid dictionary": "a table",
    "Input is not a valid path for <class 'pathlib.Path'>": "Input should be a path",
}


_SHOULD = "Input should be "
_TAG = re.compile(r"(constrained-)?(int|float|str|bool)|literal\[.*\]")
"""pydantic's names for the members of a union of plain types."""


def in_words(message: str) -> str:
    """Return a message of pydantic in the terms of TOML."""
    for pydantic_term, toml_term in _WORDS.items():
        message = message.replace(pydantic_term, toml_term)
    return message


def one_per_value(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """Merge errors of pydantic about a value of a union type, of which it reports one for each member.

    A list whose entries have errors is not also called too short: pydantic counts the valid entries.
    """
    merged: list[dict[str, Any]] = []
    for error in errors:
        if error["type"] == "too_short" and any(
            other["loc"][: len(error["loc"])] == error["loc"] != other["loc"] for other in errors
        ):
            continue
        loc, message = error["loc"], str(error["msg"]).partition(", unable to parse")[0]
        detail = {**error, "msg": message}
        if message.startswith(_SHOULD) and len(loc) > 1 and _TAG.fullmatch(str(loc[-1])):
            detail["loc"] = loc[:-1]
            if merged and merged[-1]["loc"] == loc[:-1]:
                merged[-1]["msg"] += f" or {message.removeprefix(_SHOULD)}"
                continue
        merged.append(detail)
    return merged


class Undeclared:
    """In place of an array that a plug-in did not declare to read: any use but taking a part raises RunError."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getitem__(self, which: Any) -> Undeclared:
        return self

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise RunError(self._message)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __array__ = __len__ = __iter__ = __bool__ = __float__ = _refuse
    __neg__ = __abs__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
