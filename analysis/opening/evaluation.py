"""The results of one evaluation by client, and the evaluations in a run's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.analysis.statistics.fairness import summary
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.arrow_columns import array, texts
from fedsim.common.errors import FolderError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of one evaluation by client, as arrays [K] in ascending order of client."""

    step: int
    time_us: int
    split: str
    client: Ints
    n: Ints
    correct: Ints
    accuracy: Floats
    """Fractions; NaN for a client without samples in this split."""
    loss: Floats

    @property
    def measured(self) -> int:
        """Number of clients with samples in this split."""
        return int((self.n > 0).sum())

    @arguments.checked
    def without(self, clients: Ints) -> Evaluation:
        """Leave some clients out."""
        others = ~np.isin(self.client, clients)
        columns = ("client", "n", "correct", "accuracy", "loss")
        return replace(self, **{name: getattr(self, name)[others] for name in columns})

    def equals(self, other: Evaluation) -> bool:
        """Return whether another evaluation has the same results at the same step and time."""
        if (self.step, self.time_us, self.split) != (other.step, other.time_us, other.split):
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("client", "n", "accuracy", "loss")]
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)

    @arguments.checked
    def summary(self, metrics: Iterable[str] | None = None) -> dict[str, float]:
        """Return the value of each metric (all of `fedsim.analysis.metrics` by default)."""
        return summary(self.accuracy, self.n, metrics)


def latest(folder: Path, evaluations: Sequence[Evaluation], last: int) -> Sequence[Evaluation]:
    """Return the `last` ones of the evaluations of a run in a folder. Raises FolderError if there are fewer."""
    if len(evaluations) < last:
        raise FolderError(
            f"{folder}: last: expected {last} evaluations to average, found {len(evaluations)}; average fewer, or "
            "evaluate more often ([evaluate])"
        )
    return evaluations[-last:]


def on_common_clients(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return evaluations without the clients that one of them lacks: the last one of a run may have more."""
    if all(np.array_equal(each.client, evaluations[0].client) for each in evaluations):
        return list(evaluations)
    common = reduce(np.intersect1d, (each.client for each in evaluations))
    return [each.without(np.setdiff1d(each.client, common)) for each in evaluations]


def evaluations_in(evals: pa.Table, split: str) -> Iterator[Evaluation]:
    """Yield the evaluations on a split in the rows of `evals.parquet`, by virtual time."""
    rows = evals.filter(pc.is_in(evals["split"].cast(pa.string()), value_set=texts([split])))
    if not len(rows):
        return
    column = {name: array(rows[name]) for name in rows.column_names if name != "split"}
    order = np.lexsort((column["client"], column["step"], column["time_us"]))
    column = {name: values[order] for name, values in column.items()}
    fresh = np.flatnonzero((np.diff(column["step"]) != 0) | (np.diff(column["time_us"]) != 0)) + 1
    for start, stop in zip([0, *fresh], [*fresh, len(order)], strict=True):
        yield _evaluation({name: values[start:stop] for name, values in column.items()}, split)


def _evaluation(column: dict[str, Any], split: str) -> Evaluation:
    return Evaluation(
        step=int(column["step"][0]),
        time_us=int(column["time_us"][0]),
        split=split,
        client=column["client"].astype(np.int64),
        n=column["n"].astype(np.int64),
        correct=column["correct"].astype(np.int64),
        accuracy=column["accuracy"].astype(np.float64),
        loss=column["loss"].astype(np.float64),
    )
