"""Writes TensorBoard events during runs, after each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from fedsim import analysis
from fedsim.records.recent_rows import Measured
from fedsim.runs.result import Progress, Watch

_FLUSH_S = 5.0


@contextmanager
def writing_events(out: Path) -> Iterator[Watch]:
    """Yield a watcher that writes each run's events to `<out>/<name of the run>`.

    Events after the last step of a run come from its tables. Raises ConfigError if TensorBoard is not installed,
    RunError if a file cannot be written.
    """
    analysis.require_tensorboard()
    events = _Events(out)
    try:
        yield events
    except BaseException:
        events.close()  # the tables may be incomplete
        raise
    events.finish()


def evaluation_of(measured: Measured) -> analysis.Evaluation:
    """Return an evaluation in the form in which the analysis reads it from the tables."""
    scores = measured.found
    return analysis.Evaluation(
        step=measured.step,
        time_us=measured.time_us,
        split=measured.split,
        client=scores.clients,
        n=scores.n,
        correct=scores.correct,
        accuracy=scores.accuracy,
        loss=scores.loss,
    )


class _Events:
    """Writes the events of the current run, one writer per run."""

    def __init__(self, out: Path) -> None:
        self.out, self.flushed = out, monotonic()
        self.run: Path | None = None
        self.writer: analysis.TensorBoardWriter | None = None

    def __call__(self, progress: Progress) -> None:
        if self.writer is None or progress.folder != self.run:
            self.finish()
            self.run = progress.folder
            self.writer = analysis.TensorBoardWriter(self.out / progress.spec.config.name)
            self.writer.catch_up(analysis.open_run(progress.folder))  # a resumed run already has rows
        for row in progress.recent_rows.steps:
            self.writer.step(row)
        for measured in progress.recent_rows.evaluations:
            self.writer.evaluation(evaluation_of(measured))
        if monotonic() - self.flushed >= _FLUSH_S:
            self.writer.flush()
            self.flushed = monotonic()

    def finish(self) -> None:
        """Write the rows that the current run recorded after its last step, and close its file."""
        if self.writer is not None and self.run is not None:
            self.writer.catch_up(analysis.open_run(self.run))
        self.close()

    def close(self) -> None:
        """Write pending events and close the file."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None
