"""`results.csv` of a study: the last evaluation of each finished cell, which outlives the run folders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from fedsim.analysis.opening.arrays import Ints
from fedsim.analysis.opening.run import Evaluation, Run
from fedsim.common.errors import FolderError
from fedsim.common.files import write_text

RESULTS = "results.csv"


@dataclass(frozen=True, slots=True)
class CellResult:
    """The last evaluation of a cell on one split: a line of `results.csv`."""

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

    def evaluation(self) -> Evaluation:
        """Return the evaluation, whose losses are unknown. Raises ValueError."""
        samples, correct = (np.array(text.split(), dtype=np.float64) for text in (self.n, self.correct))
        if len(samples) != len(correct):
            raise ValueError(f"expected as many numbers in correct as in n, found {len(correct)}")
        if not (correct[~np.isnan(correct)] <= samples[~np.isnan(correct)]).all() or (samples < 0).any():
            raise ValueError("expected correct from 0 to n for each client")
        with np.errstate(invalid="ignore"):
            accuracy = np.where(samples > 0, correct / samples, math.nan)
        return Evaluation(
            step=self.step,
            time_us=self.time_us,
            split=self.split,
            client=np.arange(len(samples)),
            n=samples.astype(np.int64),
            correct=np.nan_to_num(correct).astype(np.int64),
            accuracy=accuracy,
            loss=np.full(len(samples), math.nan),
        )


_COLUMNS = tuple(field.name for field in fields(CellResult))


def results_of(run: Run, cell: str) -> list[CellResult]:
    """Return the last evaluation of a finished run on each split that it recorded, that of its configuration first."""
    return [_result(run, cell, run.final(split)) for split in run.recorded_splits]


def _result(run: Run, cell: str, last: Evaluation) -> CellResult:
    samples, correct = (np.zeros(int(last.client.max(initial=-1)) + 1, dtype=np.int64) for _ in range(2))
    samples[last.client], correct[last.client] = last.n, last.correct
    unknown = set(last.client[(last.n > 0) & np.isnan(last.accuracy)].tolist())
    return CellResult(
        cell=cell,
        digest=str(run.manifest["digest"]),
        split=last.split,
        step=last.step,
        time_us=last.time_us,
        bytes=int(bytes_by(run, np.array([last.time_us]))[0]),
        n=" ".join(map(str, samples.tolist())),
        correct=" ".join("nan" if i in unknown else str(value) for i, value in enumerate(correct.tolist())),
    )


def bytes_by(run: Run, times_us: Ints) -> Ints:
    """Return [k] bytes downloaded and uploaded by the jobs that had ended by each time."""
    ended = run.jobs["end_us"].to_numpy()
    order = np.argsort(ended, kind="stable")
    moved = run.jobs["download_bytes"].to_numpy() + run.jobs["upload_bytes"].to_numpy()
    summed = np.concatenate([[0], np.cumsum(moved[order], dtype=np.int64)])
    return np.asarray(summed[np.searchsorted(ended[order], times_us, side="right")])


def write_results(folder: Path, results: Iterable[CellResult]) -> None:
    """Write `results.csv` in a study's folder."""
    lines = [",".join(_COLUMNS), *(",".join(map(str, astuple(result))) for result in results)]
    write_text(folder / RESULTS, "\n".join(lines) + "\n")


def read_results(folder: Path) -> dict[str, list[CellResult]]:
    """Return the results in a study's folder by cell; empty without the file.

    Raises FolderError that names the line.
    """
    file = folder / RESULTS
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error
    found: dict[str, list[CellResult]] = {}
    for result in _parsed(file, text):
        found.setdefault(result.cell, []).append(result)
    return found


def _parsed(file: Path, text: str) -> Iterator[CellResult]:
    heading, *lines = text.splitlines() or [""]
    if heading != ",".join(_COLUMNS):
        raise FolderError(f"{file}: expected the columns {','.join(_COLUMNS)}, found {heading or 'none'}")
    for number, line in enumerate(lines, start=2):
        try:
            cell, digest, split, step, time_us, moved, n, correct = line.split(",")
            result = CellResult(cell, digest, split, int(step), int(time_us), int(moved), n, correct)
            result.evaluation()
        except ValueError as error:
            raise FolderError(f"{file}: line {number}: {error}") from error
        yield result
