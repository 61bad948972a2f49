"""Write TensorBoard's event files with the package `tensorboard`, without its writer thread and without TensorFlow.

The format is that of `tensorboard.compat.proto`: a summary has values under tags, at a step and a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.errors import RunError
from fedsim.common.extras import require

NAME = "events.out.tfevents.0.fedsim"
"""TensorBoard reads files with `tfevents` in their name."""


def require_tensorboard() -> None:
    """Raise ConfigError, with the command that installs it, if TensorBoard cannot be imported."""
    require("tensorboard", "tensorboard.summary.writer.record_writer")


class EventFile:
    """An open event file, which replaces an earlier one in the same folder.

    Raises ConfigError if TensorBoard is not installed, RunError if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / NAME
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter(self._path.open("wb"))
        self._write(0.0, file_version="brain.Event:2")

    def scalars(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Append the finite values, by tag."""
        self._summary(
            step, time_s, [{"tag": t, "simple_value": v} for t, v in values.items() if math.isfinite(v)]
        )

    def histogram(self, step: int, time_s: float, tag: str, values: Floats, edges: Floats) -> None:
        """Append a histogram of values between ascending edges [n + 1]; the last bin includes its upper edge."""
        counts, _ = np.histogram(values, edges)
        histogram = {
            "min": values.min(),
            "max": values.max(),
            "num": counts.sum(),
            "sum": values.sum(),
            "sum_squares": (values**2).sum(),
            "bucket_limit": edges[1:].tolist(),
            "bucket": counts.tolist(),
        }
        self._summary(step, time_s, [{"tag": tag, "histo": histogram}])

    def flush(self) -> None:
        """Write buffered events to the file."""
        with self._writing():
            self._records.flush()

    def close(self, complete: bool = True) -> None:
        """Write buffered events and close the file, which does not say whether the run is `complete`."""
        with self._writing():
            self._records.close()

    def _summary(self, step: int, time_s: float, values: list[dict[str, Any]]) -> None:
        if values:
            self._write(time_s, step=step, summary={"value": values})

    def _write(self, time_s: float, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        with self._writing():
            self._records.write(Event(wall_time=time_s, **content).SerializeToString())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self._path}: events cannot be written: {error.strerror or error}") from error
