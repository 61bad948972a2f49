"""Export runs for TensorBoard: accuracy, fairness, participation and losses by step and by virtual time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from fedsim.analysis.export.event_file import NAME, EventFile
from fedsim.analysis.opening.run import Evaluation, Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.common.paths import as_path
from fedsim.common.units import US

METRICS = ("mean_percent", "std_percent", "worst10_percent", "angle_rad")
COUNTS = ("online", "in_flight", "updates", "lost", "late", "mean_staleness", "direction_norm")
"""Columns of `steps` that become curves."""
EDGES = np.linspace(0, 100, 21)
"""Edges of the histogram of clients' accuracies, in percent."""
_BATCH = 1_000


@arguments.checked
class TensorBoardWriter:
    """Writes the event file of one run. It skips steps and evaluations already written, as after a restored checkpoint.

    The time of an event is virtual time in seconds, so TensorBoard's horizontal axis `Relative` shows virtual time.
    """

    def __init__(self, folder: Path) -> None:
        self._file = EventFile(folder)
        self.steps = self.evaluations = 0
        """Written so far."""
        self._last: dict[str, tuple[int, int]] = {}
        """When each split was last evaluated: virtual time, step."""
        self._next_step = 0

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, row: Mapping[str, Any]) -> None:
        """Write a row of `steps`, the columns by name."""
        if row["step"] >= self._next_step:
            self._next_step = row["step"] + 1
            self._file.scalars(row["step"], row["time_us"] / US, {f"steps/{c}": row[c] for c in COUNTS})
            self.steps += 1

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the metrics of an evaluation, the mean loss, and the histogram of clients' accuracies."""
        when = evaluation.time_us, evaluation.step
        measured = evaluation.n > 0
        if when <= self._last.get(evaluation.split, (-1, -1)) or not measured.any():
            return
        self._last[evaluation.split] = when
        self.evaluations += 1
        time_s, about = evaluation.time_us / US, f"evaluation_{evaluation.split}/"
        values = evaluation.summary(METRICS) | {"mean_loss": float(evaluation.loss[measured].mean())}
        self._file.scalars(evaluation.step, time_s, {about + name: value for name, value in values.items()})
        self._file.histogram(
            evaluation.step, time_s, about + "clients_percent", 100 * evaluation.accuracy[measured], EDGES
        )

    def flush(self) -> None:
        """Write buffered events to the file."""
        self._file.flush()

    def catch_up(self, run: Run) -> None:
        """Write the rows of the run's tables that are not written yet."""
        for batch in run.steps.select(["step", "time_us", *COUNTS]).to_batches(max_chunksize=_BATCH):
            for row in batch.to_pylist():
                self.step(row)
        for split in sorted(word_counts(run.evals["split"])):
            for evaluation in run.evaluations(split):
                self.evaluation(evaluation)

    def close(self) -> None:
        """Write buffered events and close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class Exported:
    """An event file, and the numbers of steps and evaluations in it."""

    file: Path
    steps: int
    evaluations: int


@arguments.checked
def export_tensorboard(runs: Sequence[Run], out: Path | str | None = None) -> list[Exported]:
    """Write an event file for each run: into its folder, or into a folder per run below `out`.

    Raises ConfigError if TensorBoard is not installed, RunError if a file cannot be written.
    """
    if not runs:
        raise FolderError("runs: expected at least one run, found none")
    exported, place = [], None if out is None else as_path(out, "out")
    for run, folder in zip(runs, _folders([run.folder for run in runs], place), strict=True):
        with TensorBoardWriter(folder) as board:
            board.catch_up(run)
        exported.append(Exported(folder / NAME, board.steps, board.evaluations))
    return exported


def _folders(runs: Sequence[Path], out: Path | None) -> Iterable[Path]:
    """Return the folder of each run's events; below `out`, runs keep their relative paths."""
    if out is None:
        return [run / "tensorboard" for run in runs]
    whole = [run.resolve() for run in runs]
    shared = os.path.commonpath([run.parent for run in whole])
    return [out / run.relative_to(shared) for run in whole]
