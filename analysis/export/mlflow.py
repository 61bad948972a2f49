"""Export runs to MLflow: the curves that TensorBoard gets, by server step and by virtual time.

MLflow has no histograms, so that of the clients' accuracies is left out.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsim.analysis.export.curves import Curves, export_each, name_of
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import RunError, short
from fedsim.common.extras import require
from fedsim.common.files import make_directory

EXPERIMENT = "fedsim"
"""The experiment of runs where the variable `MLFLOW_EXPERIMENT_NAME` names none."""
_METRICS, _PARAMS = 1_000, 100
"""The most that MLflow takes at once."""
_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
"""MLflow's variable for how often it asks a server again; its default of 7 takes minutes."""


def require_mlflow() -> None:
    """Raise ConfigError, with the command that installs it, if MLflow cannot be imported."""
    require("mlflow", "mlflow")


@arguments.checked
class MLflowWriter(Curves):
    """Sends the curves of one run to a new run of MLflow, with the configuration of the run as parameters.

    `store` is a tracking URI, or a folder for a database `mlflow.db`. A point's time is virtual time since 1970, so
    the axis `Time (Relative)` shows virtual time. Raises ConfigError if MLflow is not installed, RunError if the store
    refuses the run.
    """

    def __init__(self, run: Run, store: str) -> None:
        sink = _MLflowSink(run, store)
        super().__init__(sink)
        self.place = f"{store}, run {sink.run_id}"


class _MLflowSink:
    def __init__(self, run: Run, store: str) -> None:
        entities = require("mlflow", "mlflow.entities")
        self._metric, self._waiting, self._store = entities.Metric, list[Any](), store
        params = [entities.Param(key, text) for key, text in _flat(run.config)]
        with _refused(store):
            self._client = _client(store)
            experiment = self._experiment(None if tracking_uri(store) == store else Path(store))
            self.run_id = self._client.create_run(experiment, run_name=name_of(run)).info.run_id
            for first in range(0, len(params), _PARAMS):
                self._client.log_batch(self.run_id, params=params[first : first + _PARAMS])

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        when_ms = round(time_s * 1000)
        finite = ((tag, float(value)) for tag, value in values.items() if math.isfinite(value))
        self._waiting += [self._metric(tag, value, when_ms, step) for tag, value in finite]
        if len(self._waiting) >= _METRICS:
            self.flush()

    def histogram(self, step: int, time_s: float, tag: str, values: Floats, edges: Floats) -> None:
        """Do nothing: MLflow has no histograms."""

    def flush(self) -> None:
        with _refused(self._store):
            for first in range(0, len(self._waiting), _METRICS):
                self._client.log_batch(self.run_id, metrics=self._waiting[first : first + _METRICS])
        self._waiting = []

    def close(self, complete: bool = True) -> None:
        self.flush()
        with _refused(self._store):
            self._client.set_terminated(self.run_id, "FINISHED" if complete else "KILLED")

    def _experiment(self, folder: Path | None) -> str:
        """Return the id of the experiment, which is made in the store if it is new."""
        name = _experiment_name()
        if (found := self._client.get_experiment_by_name(name)) is not None:
            return str(found.experiment_id)
        place = None if folder is None else (folder / "artifacts").resolve().as_uri()
        return str(self._client.create_experiment(name, artifact_location=place))


@arguments.checked
def check_store(store: str) -> None:
    """Raise RunError unless a store answers.

    A server is asked twice, or as often as the variable `MLFLOW_HTTP_REQUEST_MAX_RETRIES` says.
    """
    given = os.environ.get(_RETRIES)
    os.environ[_RETRIES] = given or "1"
    try:
        with _refused(store):
            _client(store).get_experiment_by_name(_experiment_name())
    finally:
        if given is None:
            del os.environ[_RETRIES]


def _client(store: str) -> Any:
    return require("mlflow", "mlflow").MlflowClient(tracking_uri=tracking_uri(store))


def _experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


@contextmanager
def _refused(store: str) -> Iterator[None]:
    """Raise RunError for MLflow's own errors."""
    try:
        yield
    except require("mlflow", "mlflow.exceptions").MlflowException as error:
        raise RunError(f"MLflow, {store}: {short(str(error))}") from error


@arguments.checked
def tracking_uri(store: str) -> str:
    """Return a tracking URI as it is; for a folder, which is made, that of its database `mlflow.db`."""
    if store == "databricks" or re.match(r"[\w+.-]{2,}:", store):
        return store
    folder = Path(store).resolve()
    make_directory(folder)
    return f"sqlite:///{folder / 'mlflow.db'}"


@arguments.checked
def export_mlflow(runs: Sequence[Run], store: str) -> list[MLflowWriter]:
    """Send each run's curves to a new run of MLflow in a store, and return the closed writers.

    Raises ConfigError if MLflow is not installed, RunError if the store refuses a run.
    """
    return export_each(runs, lambda run: MLflowWriter(run, store))


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a configuration with dots, such as `algorithm.name`, and their values as text."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, str(value)
