"""`results.csv` of a study: the last evaluations of each finished cell, which outlive the run folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import FolderError, shown
from fedsim.common.files import write_text

RESULTS = "results.csv"


@dataclass(frozen=True, slots=True)
class LastEvaluation:
    """One of the last evaluations of a cell on one split: a line of `results.csv`."""

    cell: str
    """The cell's folder, relative to the study's."""
    digest: str
    split: str
    step: int
    time_us: int
    bytes: int
    """Bytes moved by the jobs that had ended."""
    n: str
    """Samples of the clients 0, 1, ..., separated by spaces."""
    correct: str
    """Correctly classified samples of the same clients; `nan` where the model's outputs were not finite."""
    at: str = "end"
    """The point of comparison up to which it is one of the last evaluations, such as `end` or `steps=500`."""

    def counts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `n` and `correct` [K] as numbers. Raises ValueError."""
        samples, correct = (_numbers(name, getattr(self, name)) for name in ("n", "correct"))
        if len(samples) != len(correct):
            raise ValueError(f"expected as many numbers in correct as in n, found {len(correct)}")
        known = ~np.isnan(correct)
        if not ((correct[known] >= 0) & (correct[known] <= samples[known])).all() or (samples < 0).any():
            raise ValueError("expected correct from 0 to n for each client")
        return samples, correct


def _numbers(name: str, text: str) -> NDArray[np.float64]:
    try:
        return np.array(text.split(), dtype=np.float64)
    except ValueError:
        raise ValueError(f"{name}: expected numbers with spaces between them, found {shown(text)}") from None


_COLUMNS = tuple(field.name for field in fields(LastEvaluation))
_AT_THE_END = _COLUMNS[:-1]
"""The columns of a file whose evaluations are all those at the end."""


def write_results(folder: Path, results: Iterable[LastEvaluation]) -> None:
    """Write `results.csv` in a study's folder."""
    kept = list(results)
    columns = _AT_THE_END if all(result.at == "end" for result in kept) else _COLUMNS
    lines = [",".join(columns), *(",".join(map(str, astuple(result)[: len(columns)])) for result in kept)]
    write_text(folder / RESULTS, "\n".join(lines) + "\n")


def read_results(folder: Path) -> dict[str, list[LastEvaluation]]:
    """Return the results in a study's folder by cell, in the order of the file; empty without the file.

    Raises FolderError that names the line.
    """
    file = folder / RESULTS
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error
    found: dict[str, list[LastEvaluation]] = {}
    lines: dict[tuple[str, str, str, int, int], int] = {}
    for number, result in enumerate(_parsed(file, text), start=2):
        key = (result.cell, result.split, result.at, result.step, result.time_us)
        if (first := lines.setdefault(key, number)) != number:
            raise FolderError(f"{file}: line {number}: the same cell, split and evaluation as line {first}")
        found.setdefault(result.cell, []).append(result)
    return found


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name}: expected a whole number, found {shown(text)}")
    return int(text)


def _parsed(file: Path, text: str) -> Iterator[LastEvaluation]:
    heading, *lines = text.splitlines() or [""]
    columns = next((some for some in (_AT_THE_END, _COLUMNS) if heading == ",".join(some)), None)
    if columns is None:
        raise FolderError(f"{file}: expected the columns {','.join(_COLUMNS)}, found {heading or 'none'}")
    for number, line in enumerate(lines, start=2):
        try:
            values = line.split(",")
            if len(values) != len(columns):
                raise ValueError(f"expected {len(columns)} values, found {len(values)}")
            cell, digest, split, step, time_us, moved, n, correct, *at = values
            whole = _whole("step", step), _whole("time_us", time_us), _whole("bytes", moved)
            result = LastEvaluation(cell, digest, split, *whole, n, correct, *at)
            result.counts()
        except ValueError as error:
            raise FolderError(f"{file}: line {number}: {error}") from error
        yield result
