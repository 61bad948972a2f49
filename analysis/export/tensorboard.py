"""Runs in TensorBoard: accuracy and fairness, who was there and what was lost, by step and by virtual time."""

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
"""Of the histogram of the clients' accuracies, in percent."""
_BATCH = 1_000


@arguments.checked
class TensorBoardWriter:
    """The event file of one run. What it has written already, it skips: a run may be told again from a checkpoint.

    The time of an event is virtual, in seconds: TensorBoard's horizontal axis `Relative` is the virtual time then.
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
        """Write the metrics of an evaluation, the mean loss, and how the clients' accuracies are spread."""
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
        """Let TensorBoard see what was written."""
        self._file.flush()

    def catch_up(self, run: Run) -> None:
        """Write all that the tables of the run hold and this did not write yet."""
        for batch in run.steps.select(["step", "time_us", *COUNTS]).to_batches(max_chunksize=_BATCH):
            for row in batch.to_pylist():
                self.step(row)
        for split in sorted(word_counts(run.evals["split"])):
            for evaluation in run.evaluations(split):
                self.evaluation(evaluation)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class Exported:
    """An event file, and how much went into it."""

    file: Path
    steps: int
    evaluations: int


@arguments.checked
def export_tensorboard(runs: Sequence[Run], out: Path | str | None = None) -> list[Exported]:
    """Write an event file for each run: into its folder, or into one of its own below `out`.

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
    """Return where the events of each run go; below `out`, runs keep their places to each other."""
    if out is None:
        return [run / "tensorboard" for run in runs]
    whole = [run.resolve() for run in runs]
    shared = os.path.commonpath([run.parent for run in whole])
    return [out / run.relative_to(shared) for run in whole]
