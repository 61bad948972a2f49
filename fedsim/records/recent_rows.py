"""What was recorded since the watcher of a run was last told: for dashboards, which look while the run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.training.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluation with when and on what it was made."""

    step: int
    time_us: int
    split: str
    found: Evaluation


@dataclass(frozen=True, slots=True)
class RecentRows:
    """Rows in the order in which they were recorded: those of a step follow one step after it.

    A run that goes back to a checkpoint tells what follows again.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    """By name, the columns of `steps.parquet`."""
    evaluations: list[Measured] = field(default_factory=list)
