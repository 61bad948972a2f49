"""Send the curves of runs to TensorBoard, Weights & Biases or MLflow while the runs go on.

    with WandbLogger("fair-phones") as logger:
        fedsim.simulate(configs, watch=logger)

Leaving the `with` block sends what an interrupted run recorded after its last step, and ends the tracker's run. A
tracker that fails after it took its first run ends no run: the warning `Untracked` says why, and nothing more is sent.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from fedsim import analysis
from fedsim.analysis.export.mlflow import check_store
from fedsim.common import arguments
from fedsim.common.errors import RunError, Untracked
from fedsim.common.paths import as_path
from fedsim.records.manifest import read_manifest
from fedsim.records.recent_rows import Measured
from fedsim.runs.progress import Progress
from fedsim.runs.spec import RunSpec

_FLUSH_S = 5.0


class Logger(ABC):
    """Sends the curves of each run in turn, within five seconds of a step; for `watch=` of `fedsim.simulate`."""

    def __init__(self) -> None:
        self._flushed, self._folder = monotonic(), Path()
        self._spec: RunSpec | None = None
        self._curves: analysis.Curves | None = None
        self._opened = self._lost = False
        """Whether the tracker took a run, and whether it failed since then."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._curves is not None:
            if read_manifest(self._folder).get("status") == "done":  # another run, or what follows, failed
                self.close()
            else:
                with self._unless_lost():
                    self._end(self._curves, complete=False)  # the tables may be incomplete

    def __call__(self, progress: Progress) -> None:
        """Send what a run has recorded since the last call. Raises RunError if the tracker refuses its first run."""
        if not self._lost:
            with self._unless_lost():
                self._send(progress)

    def _send(self, progress: Progress) -> None:
        curves = self._curves if progress.spec is self._spec else None
        if curves is None:
            curves = self._curves_of(progress)
        for row in progress.recent_rows.steps:
            curves.step(row)
        for measured in progress.recent_rows.evaluations:
            curves.evaluation(evaluation_of(measured))
        if monotonic() - self._flushed >= _FLUSH_S:
            curves.flush()
            self._flushed = monotonic()

    def _curves_of(self, progress: Progress) -> analysis.Curves:
        """Return the curves of a run that was not followed at the last call: new ones, unless it was resumed."""
        folder, run = progress.folder, analysis.open_run(progress.folder)
        self._spec, before = progress.spec, self._curves
        if before is not None and folder == self._folder:
            if run.manifest.get("resumed"):
                return before
            self._end(before, complete=False)  # a run took its place
        else:
            self._complete()
        self._folder = folder
        curves = self._curves = self._open(run, progress.spec.config.name)
        self._opened = True
        curves.catch_up(run)  # a resumed run already has rows
        return curves

    def close(self) -> None:
        """Send the rows of the current run that it did not report, as after an interrupt, and end the tracker's run."""
        with self._unless_lost():
            self._complete()

    def _complete(self) -> None:
        if (curves := self._curves) is not None:
            run = analysis.open_run(self._folder)
            curves.catch_up(run)
            self._end(curves, complete=run.done)

    @contextmanager
    def _unless_lost(self) -> Iterator[None]:
        """Warn of an error of a tracker that took a run before, in place of raising it, and send it nothing more."""
        try:
            yield
        except RunError as error:
            if not self._opened:
                raise
            self._curves, self._lost = None, True
            afterwards = "nothing more is sent; `fedsim export` sends runs when they are done"
            warnings.warn(f"{error}; {afterwards}", Untracked, stacklevel=4)

    def _end(self, curves: analysis.Curves, complete: bool) -> None:
        self._curves = None
        curves.close(complete)

    @abstractmethod
    def _open(self, run: analysis.Run, name: str) -> analysis.Curves: ...


@arguments.checked
class TensorBoardLogger(Logger):
    """Writes each run's events to `<out>/<name of the run>`.

    Raises ConfigError if TensorBoard is not installed, RunError if a file cannot be written.
    """

    def __init__(self, out: Path | str) -> None:
        analysis.require_tensorboard()
        super().__init__()
        self._out = as_path(out, "out")

    def _open(self, run: analysis.Run, name: str) -> analysis.Curves:
        return analysis.TensorBoardWriter(self._out / name)


@arguments.checked
class WandbLogger(Logger):
    """Sends each run to a run of its own in a project of Weights & Biases.

    wandb's environment variables apply: `WANDB_MODE=offline`, `WANDB_ENTITY`, `WANDB_DIR`. Raises ConfigError if wandb
    is not installed, RunError if it refuses the first run.
    """

    def __init__(self, project: str) -> None:
        analysis.require_wandb()
        super().__init__()
        self._project = project

    def _open(self, run: analysis.Run, name: str) -> analysis.Curves:
        return analysis.WandbWriter(run, self._project)


@arguments.checked
class MLflowLogger(Logger):
    """Sends each run to a run of its own in MLflow: at a tracking URI, or in a folder with a database `mlflow.db`.

    The experiment is that of `MLFLOW_EXPERIMENT_NAME`, by default `fedsim`. Raises ConfigError if MLflow is not
    installed, RunError if the store does not answer or refuses the first run.
    """

    def __init__(self, store: str) -> None:
        analysis.require_mlflow()
        check_store(store)
        super().__init__()
        self._store = store

    def _open(self, run: analysis.Run, name: str) -> analysis.Curves:
        return analysis.MLflowWriter(run, self._store)


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
