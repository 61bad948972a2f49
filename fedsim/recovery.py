"""What is left to say, or to do, when a process of a run is lost and no other can take its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.course import Course
from fedsim.errors import LethalJob

_AHEAD = 2
"""Steps by which a job may be under way before the step that is being recorded."""


def reproduction(folder: Path, step: int) -> str:
    """Return the command that trains again, in one process, all that the run in `folder` had trained by `step`."""
    told = [
        *("fedsim", "run", str(folder / "config.resolved.toml")),
        *("--workers", "0", "--device", "cpu", "--set", f"stop.steps={step + _AHEAD}"),
        *("--out", str(folder / "reproduced"), "--force"),
    ]
    return shlex.join(told)


@contextmanager
def saying_how_to_reproduce(folder: Path, course: Course) -> Iterator[None]:
    """Add to the error of a job that kills its process the command that lets one watch it do so."""
    try:
        yield
    except LethalJob as error:
        raise LethalJob(
            f"{error}. This reproduces it in one process: {reproduction(folder, course.step)}"
        ) from error
