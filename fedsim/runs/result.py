"""What a run tells: where it stands after each step, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim.engine.state import RunState
from fedsim.records.recent_rows import RecentRows
from fedsim.runs.build import RunSpec


@dataclass(frozen=True, slots=True)
class Progress:
    """What a watcher is told after each step."""

    spec: RunSpec
    folder: Path
    run_state: RunState
    accuracy: float
    """Mean accuracy over clients at the last evaluation that is known; NaN before."""
    recent_rows: RecentRows


def share_done(progress: Progress) -> float:
    """Return how much of a run is done, from 0 to 1, by whichever of its ends is nearest; 0 if nothing says."""
    run_state, stop = progress.run_state, progress.spec.plan.stop
    shares = [
        there / end
        for there, end in (
            (run_state.step, stop.steps),
            (run_state.now_us, stop.time_us),
            (run_state.moved_bytes, stop.moved_bytes),
        )
        if end
    ]
    return min(1.0, max(shares, default=0.0))


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    folder: Path
    status: Literal["done", "interrupted"]
    digest: str | None
    accuracy: float
    """Mean accuracy over clients at the last evaluation; NaN without one."""


Watch = Callable[[Progress], None]
