"""What is left to say, or to do, when a process of a run is lost and no other can take its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import LethalJob
from fedsim.config.run import RunConfig
from fedsim.engine.state import RunState

_AHEAD = 2
"""Steps by which a job may be under way before the step that is being recorded."""


def reproduction(folder: Path, step: int, config: RunConfig) -> str:
    """Return the command that trains again, in one process, all that the run in `folder` had trained by `step`.

    A fork does not begin at the start: it goes on, and trains what was under way. Rows that a GPU leaves to the host
    are on the processor with all others.
    """
    if config.parent is not None and config.parent.forked_step is not None:
        return shlex.join(("fedsim", "resume", str(folder), "--workers", "0", "--device", "cpu"))
    history = config.memory.history
    on_host = history.removeprefix("host_")
    rows = [] if on_host == history else ["--set", f"memory.history={on_host}"]
    told = [
        *("fedsim", "run", str(folder / "config.resolved.toml")),
        *("--workers", "0", "--device", "cpu", "--set", f"stop.steps={step + _AHEAD}", *rows),
        *("--out", str(folder / "reproduced"), "--force"),
    ]
    return shlex.join(told)


@contextmanager
def saying_how_to_reproduce(folder: Path, run_state: RunState, config: RunConfig) -> Iterator[None]:
    """Add to the error of a job that kills its process the command that lets one watch it do so."""
    try:
        yield
    except LethalJob as error:
        command = reproduction(folder, run_state.step, config)
        raise LethalJob(f"{error}. This reproduces it in one process: {command}") from error
