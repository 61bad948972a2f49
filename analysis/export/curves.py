"""The curves of a run for trackers of experiments: accuracy, fairness, participation and losses.

TensorBoard, Weights & Biases and MLflow get the same series; each has a `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError
from fedsim.common.units import US

METRICS = ("mean_percent", "std_percent", "worst10_percent", "angle_rad")
COUNTS = ("online", "in_flight", "updates", "lost", "late", "mean_staleness", "direction_norm")
"""Columns of `steps` that become curves."""
EDGES = np.linspace(0, 100, 21)
"""Edges of the histogram of clients' accuracies, in percent."""
_BATCH = 1_000


class Sink(Protocol):
    """Where points of curves go: a tag, a server step, and virtual time in seconds."""

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Add the finite values, by tag."""

    def histogram(self, step: int, time_s: float, tag: str, values: Floats, edges: Floats) -> None:
        """Add a histogram of values between ascending edges [n + 1], if the tracker has histograms."""

    def flush(self) -> None:
        """Send buffered points."""

    def close(self, complete: bool = True) -> None:
        """Send buffered points and end; `complete` says whether the run came to its regular end."""


class Curves:
    """Sends the curves of one run to a sink, without what was already sent, as after a restored checkpoint.

    As a context manager it closes the sink, as that of an incomplete run if an exception was raised.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.steps = self.evaluations = 0
        """Sent so far."""
        self._last: dict[str, tuple[int, int]] = {}
        """When each split was last evaluated: virtual time, step."""
        self._next_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=error is None)

    def step(self, row: Mapping[str, Any]) -> None:
        """Send a row of `steps`, the columns by name."""
        if row["step"] >= self._next_step:
            self._next_step = row["step"] + 1
            self._sink.scalars(row["step"], row["time_us"] / US, {f"steps/{c}": row[c] for c in COUNTS})
            self.steps += 1

    def evaluation(self, evaluation: Evaluation) -> None:
        """Send the metrics of an evaluation, the mean loss, and the histogram of clients' accuracies."""
        when = evaluation.time_us, evaluation.step
        measured = evaluation.n > 0
        if when <= self._last.get(evaluation.split, (-1, -1)) or not measured.any():
            return
        self._last[evaluation.split] = when
        self.evaluations += 1
        time_s, about = evaluation.time_us / US, f"evaluation_{evaluation.split}/"
        values = evaluation.summary(METRICS) | {"mean_loss": float(evaluation.loss[measured].mean())}
        self._sink.scalars(evaluation.step, time_s, {about + name: value for name, value in values.items()})
        self._sink.histogram(
            evaluation.step, time_s, about + "clients_percent", 100 * evaluation.accuracy[measured], EDGES
        )

    def flush(self) -> None:
        """Send buffered points."""
        self._sink.flush()

    def catch_up(self, run: Run) -> None:
        """Send the rows of the run's tables that are not sent yet."""
        for batch in run.steps.select(["step", "time_us", *COUNTS]).to_batches(max_chunksize=_BATCH):
            for row in batch.to_pylist():
                self.step(row)
        for split in sorted(word_counts(run.evals["split"])):
            for evaluation in run.evaluations(split):
                self.evaluation(evaluation)

    def close(self, complete: bool = True) -> None:
        """Send buffered points and end; `complete` says whether the run came to its regular end."""
        self._sink.close(complete)


Writer = TypeVar("Writer", bound=Curves)


def at_least_one(runs: Sequence[Run]) -> None:
    """Raise FolderError if there are no runs."""
    if not runs:
        raise FolderError("runs: expected at least one run, found none")


def export_each(runs: Sequence[Run], writer: Callable[[Run], Writer]) -> list[Writer]:
    """Send each run's curves through a writer of its own, and return the closed writers.

    Raises FolderError if there are no runs.
    """
    at_least_one(runs)
    writers = []
    for run in runs:
        with writer(run) as curves:
            curves.catch_up(run)
        writers.append(curves)
    return writers


def name_of(run: Run) -> str:
    """Return the name that a run has in a tracker: that of its configuration, such as `quickstart/fedlf`."""
    name = run.config.get("name")
    return name if isinstance(name, str) and name else run.label
