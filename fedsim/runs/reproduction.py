"""The command that repeats, in one process, the job that killed a worker."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import LethalJob
from fedsim.config.run import RunConfig
from fedsim.records.file_names import CONFIG
from fedsim.records.recorder import Recorder

_AHEAD = 2
"""Steps by which a job may run ahead of the last recorded step."""


def reproduction(folder: Path, step: int, config: RunConfig) -> str:
    """Return the command that trains again, in one process, all that the run in `folder` had trained by `step`.

    A fork cannot be run from the start: the command resumes it, which trains the jobs under way, on the GPU if it keeps
    a part of the history on the host. Of another run such a history becomes the same history of a run on the CPU.
    """
    if config.is_fork:
        place = () if config.memory.on_host else ("--device", "cpu")
        return shlex.join(("fedsim", "resume", str(folder), "--workers", "0", *place))
    history = config.memory.history
    on_host = history.removeprefix("host_")
    rows = [] if on_host == history else ["--set", f"memory.history={on_host}"]
    words = [
        *("fedsim", "run", str(folder / CONFIG)),
        *("--workers", "0", "--device", "cpu", "--set", f"stop.steps={step + _AHEAD}", *rows),
        *("--out", str(folder / "reproduced"), "--force"),
    ]
    return shlex.join(words)


@contextmanager
def saying_how_to_reproduce(folder: Path, recorder: Recorder, config: RunConfig) -> Iterator[None]:
    """Add the command that reproduces the failure to the error of a job that kills its process."""
    try:
        yield
    except LethalJob as error:
        command = reproduction(folder, recorder.steps, config)
        raise LethalJob(f"{error}. This reproduces it in one process: {command}") from error
