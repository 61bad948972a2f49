"""TensorBoard while runs go on: what was recorded since is written after each step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from fedsim import analysis
from fedsim.analysis.export.event_file import check_installed
from fedsim.analysis.export.tensorboard import Board
from fedsim.records.recent_rows import Measured
from fedsim.runs.result import Progress, Watch

_FLUSH_S = 5.0


@contextmanager
def writing_events(out: Path) -> Iterator[Watch]:
    """Yield a watcher that writes each run's events to `<out>/<name of the run>`.

    What is recorded after the last step of a run is taken from its tables. Raises ConfigError if TensorBoard is not
    installed, RunError if a file cannot be written.
    """
    check_installed()
    boards = _Boards(out)
    try:
        yield boards
    except BaseException:
        boards.close()  # the tables may not be whole
        raise
    boards.finish()


def evaluation_of(measured: Measured) -> analysis.Evaluation:
    """Return an evaluation as the analysis reads it from the tables."""
    found = measured.found
    return analysis.Evaluation(
        step=measured.step,
        time_us=measured.time_us,
        split=measured.split,
        client=found.clients,
        n=found.n,
        correct=found.correct,
        accuracy=found.accuracy,
        loss=found.loss,
    )


class _Boards:
    """Has the board of the run that is going on."""

    def __init__(self, out: Path) -> None:
        self.out, self.flushed = out, monotonic()
        self.run: Path | None = None
        self.board: Board | None = None

    def __call__(self, progress: Progress) -> None:
        if self.board is None or progress.folder != self.run:
            self.finish()
            self.run, self.board = progress.folder, Board(self.out / progress.setup.config.name)
            self.board.catch_up(analysis.open(progress.folder))  # a run that is resumed has rows
        for row in progress.recent_rows.steps:
            self.board.step(row)
        for measured in progress.recent_rows.evaluations:
            self.board.evaluation(evaluation_of(measured))
        if monotonic() - self.flushed >= _FLUSH_S:
            self.board.flush()
            self.flushed = monotonic()

    def finish(self) -> None:
        """Write what the run that ended recorded at its end."""
        if self.board is not None and self.run is not None:
            self.board.catch_up(analysis.open(self.run))
        self.close()

    def close(self) -> None:
        """Write what was told."""
        if self.board is not None:
            self.board.close()
        self.board = None
