"""The progress of a run, which a watcher gets after each step, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim import analysis
from fedsim.engine.state import RunState
from fedsim.records.recent_rows import RecentRows
from fedsim.runs.build import RunSpec


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run after a server step."""

    spec: RunSpec
    folder: Path
    run_state: RunState
    accuracy: float
    """Mean accuracy over clients at the last recorded evaluation; NaN before the first."""
    recent_rows: RecentRows


def share_done(progress: Progress) -> float:
    """Return the share of a run that is done, from 0 to 1, by the nearest of its limits; 0 if none of them is set."""
    run_state, stop = progress.run_state, progress.spec.plan.stop
    shares = [
        reached / limit
        for reached, limit in (
            (run_state.step, stop.steps),
            (run_state.now_us, stop.time_us),
            (run_state.moved_bytes, stop.moved_bytes),
        )
        if limit
    ]
    return min(1.0, max(shares, default=0.0))


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    folder: Path
    status: Literal["done", "interrupted"]
    """`interrupted` after Ctrl-C."""
    digest: str | None
    accuracy: float
    """Mean accuracy over clients at the last evaluation; NaN without one."""

    @property
    def run(self) -> analysis.Run:
        """The run's tables, pictures and metrics, opened from its folder as they are now."""
        return analysis.open_run(self.folder)

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run."""
        return analysis.run_html(self.run)


Watch = Callable[[Progress], None]
