"""The rows recorded since an observer last asked, for dashboards of a running run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.training.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluation with its step, time and split."""

    step: int
    time_us: int
    split: str
    found: Evaluation


@dataclass(frozen=True, slots=True)
class RecentRows:
    """Rows in the order of recording, which happens one step after the step.

    A run that returns to a checkpoint records the rows after it again.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    """The columns of `steps.parquet` by name."""
    evaluations: list[Measured] = field(default_factory=list)
