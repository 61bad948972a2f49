"""Export runs to Weights & Biases: the curves that TensorBoard gets, by server step and by virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.analysis.export.curves import Curves, export_each, name_of
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import RunError, short
from fedsim.common.extras import require


def require_wandb() -> None:
    """Raise ConfigError, with the command that installs it, if wandb cannot be imported."""
    require("wandb", "wandb")


@arguments.checked
class WandbWriter(Curves):
    """Sends the curves of one run to a new run of Weights & Biases, with the configuration of the run.

    Every point has `step` and `virtual_s`, virtual time in seconds. wandb's own environment variables apply, such as
    `WANDB_MODE=offline`. Raises ConfigError if wandb is not installed, RunError if it refuses the run.
    """

    def __init__(self, run: Run, project: str) -> None:
        sink = _WandbSink(run, project)
        super().__init__(sink)
        self.place = sink.place
        """The run's address, or its folder where wandb is offline."""


class _WandbSink:
    def __init__(self, run: Run, project: str) -> None:
        wandb = require("wandb", "wandb")
        self._histogram, self._project = wandb.Histogram, project
        with _refused(project):
            self._run = wandb.init(
                project=project,
                name=name_of(run),
                config=run.config,
                reinit="create_new",  # leaves a run of the user's own alone
                settings=wandb.Settings(console="off"),
            )
            self._run.define_metric("*", step_metric="step")
        self.place = str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._log(step, time_s, {tag: value for tag, value in values.items() if math.isfinite(value)})

    def histogram(self, step: int, time_s: float, tag: str, values: Floats, edges: Floats) -> None:
        self._log(step, time_s, {tag: self._histogram(np_histogram=np.histogram(values, edges))})

    def flush(self) -> None:
        """Do nothing: wandb sends in the background."""

    def close(self, complete: bool = True) -> None:
        with _refused(self._project):
            self._run.finish(exit_code=0 if complete else 1)

    def _log(self, step: int, time_s: float, values: Mapping[str, Any]) -> None:
        if values:
            with _refused(self._project):
                self._run.log({**values, "step": step, "virtual_s": time_s})


@arguments.checked
def export_wandb(runs: Sequence[Run], project: str) -> list[WandbWriter]:
    """Send each run's curves to a new run in a project of Weights & Biases, and return the closed writers.

    Raises ConfigError if wandb is not installed, RunError if it refuses a run.
    """
    return export_each(runs, lambda run: WandbWriter(run, project))


@contextmanager
def _refused(project: str) -> Iterator[None]:
    """Raise RunError for wandb's own errors."""
    wandb = require("wandb", "wandb")
    try:
        yield
    except (wandb.Error, ValueError, OSError) as error:
        raise RunError(f"Weights & Biases, project {project!r}: {short(str(error))}") from error
