"""Evaluations of a run, as a study keeps them in `results.csv`, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.points import Point, last_up_to
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.errors import FolderError
from fedsim.config.study.compare import parse_point
from fedsim.records.study_results import LastEvaluation


@arguments.checked
def last_evaluations(
    run: Run, cell: str, last: int = 1, points: Iterable[Point] = ("end",)
) -> list[LastEvaluation]:
    """Return the `last` evaluations of a finished run up to each point, on each split that it recorded.

    They come by split, that of the run's configuration first, then by point and by virtual time. A run with fewer
    evaluations has them all; one that does not reach a point has none there. Points are `end` and those with a number.
    """
    found: list[LastEvaluation] = []
    points = list(points)
    for split in run.recorded_splits:
        evaluations = run.evaluations(split)
        times = np.array([e.time_us for e in evaluations], dtype=np.int64)
        come = {
            "steps": [e.step for e in evaluations],
            "time": times.tolist(),
            "bytes": bytes_by(run, times).tolist(),
        }
        for at in points:
            kind, amount = parse_point(at)
            count = len(evaluations) if amount is None else last_up_to(come[kind], amount) + 1
            chosen = range(max(count - last, 0), count)
            found += [_stored(run, cell, evaluations[i], come["bytes"][i], at) for i in chosen]
    return found


def _stored(run: Run, cell: str, evaluation: Evaluation, moved: int, at: Point) -> LastEvaluation:
    client = evaluation.client
    samples, correct = (np.zeros(int(client.max(initial=-1)) + 1, dtype=np.int64) for _ in range(2))
    samples[client], correct[client] = evaluation.n, evaluation.correct
    unknown = set(client[(evaluation.n > 0) & np.isnan(evaluation.accuracy)].tolist())
    return LastEvaluation(
        cell=cell,
        digest=str(run.manifest["digest"]),
        split=evaluation.split,
        step=evaluation.step,
        time_us=evaluation.time_us,
        bytes=moved,
        n=" ".join(map(str, samples.tolist())),
        correct=" ".join("nan" if i in unknown else str(value) for i, value in enumerate(correct.tolist())),
        at=at,
    )


def bytes_by(run: Run, times_us: Ints) -> Ints:
    """Return [k] bytes downloaded and uploaded by the jobs that had ended by each time."""
    ended = run.jobs["end_us"].to_numpy()
    order = np.argsort(ended, kind="stable")
    moved = run.jobs["download_bytes"].to_numpy() + run.jobs["upload_bytes"].to_numpy()
    summed = np.concatenate([[0], np.cumsum(moved[order], dtype=np.int64)])
    return np.asarray(summed[np.searchsorted(ended[order], times_us, side="right")])


def evaluation_of(stored: LastEvaluation) -> Evaluation:
    """Return the evaluation, whose losses are unknown."""
    samples, correct = stored.counts()
    with np.errstate(invalid="ignore"):
        accuracy = np.where(samples > 0, correct / samples, math.nan)
    return Evaluation(
        step=stored.step,
        time_us=stored.time_us,
        split=stored.split,
        client=np.arange(len(samples)),
        n=samples.astype(np.int64),
        correct=np.nan_to_num(correct).astype(np.int64),
        accuracy=accuracy,
        loss=np.full(len(samples), math.nan),
    )


def of_split(results: Sequence[LastEvaluation], split: str | None, folder: Path) -> list[LastEvaluation]:
    """Return the results of a cell on a split, by default that of its configuration. Raises FolderError."""
    wanted = split or results[0].split
    if found := [result for result in results if result.split == wanted]:
        return found
    recorded = ", ".join(dict.fromkeys(result.split for result in results))
    raise FolderError(f"{folder}: no evaluation on split {split!r} was recorded; found {recorded}")


def how_to_repeat(results: Sequence[LastEvaluation], file: Path) -> str:
    """Return what `file` has of a cell whose folder is missing, and how to run the cell again, in words."""
    if not results:
        return "fedsim study repeats cells whose folder is missing"
    points = [result.at for result in results if result.split == results[0].split]
    kept = points.count("end")
    which = "its last evaluation" if kept == 1 else f"its last {kept} evaluations"
    places = " or ".join(dict.fromkeys(points))
    return (
        f"{file} has {which} alone, for fedsim compare --at {places}; to run it again, remove its lines there and "
        "repeat the study"
    )
