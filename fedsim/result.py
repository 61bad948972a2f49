"""What a run tells: where it stands after each step, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.course import Course
from fedsim.news import News
from fedsim.setup import Setup


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told after each step."""

    setup: Setup
    folder: Path
    course: Course
    accuracy: float
    """Mean accuracy over clients at the last evaluation that is known; NaN before."""
    news: News


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    folder: Path
    status: Literal["done", "interrupted"]
    digest: str | None
    accuracy: float
    """Mean accuracy over clients at the last evaluation; NaN without one."""


Watch = Callable[[Progress], None]
