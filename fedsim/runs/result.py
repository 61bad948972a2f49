"""What `fedsim.simulate`, `resume`, `fork` and `replay` return."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedsim import analysis


@dataclass(frozen=True, slots=True)
class Result:
    """A run that is done or was interrupted."""

    folder: Path
    status: Literal["done", "interrupted"]
    """`interrupted` after Ctrl-C."""
    digest: str | None
    accuracy: float
    """Mean accuracy over clients at the last evaluation; NaN without one."""
    asked_to_stop: bool = False
    """Whether Ctrl-C or a signal asked to stop, be it after the last step of a run that is done."""

    @property
    def run(self) -> analysis.Run:
        """The run's tables, pictures and metrics, opened from its folder as they are now."""
        return analysis.open_run(self.folder)

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run."""
        return analysis.run_html(self.run)
