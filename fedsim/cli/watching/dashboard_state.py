"""The state that a dashboard shows: the progress of each run of an experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from fedsim import analysis

METRICS = ("mean_percent", "worst10_percent", "angle_rad")


@dataclass(slots=True)
class Arm:
    """One run of the experiment."""

    name: str
    state: Literal["waiting", "running", "ended"] = "waiting"
    done: float = 0.0
    """Share of the run that is done, from 0 to 1."""
    share_at_start: float = 0.0
    """Share that was done when the dashboard first saw the run: above 0 for a resumed run."""
    step: int = 0
    now_us: int = 0
    wall_s: float = 0.0
    evaluation: analysis.Evaluation | None = None
    """The last evaluation of the global model."""
    values: dict[str, float] = field(default_factory=dict)
    """`METRICS` at that evaluation; computed when they are painted."""

    def measure(self, evaluation: analysis.Evaluation | None) -> None:
        """Set the last evaluation."""
        self.evaluation, self.values = evaluation, {}

    def metric(self, name: str) -> float:
        """Return a metric of the last evaluation, NaN before one."""
        if self.evaluation is None:
            return math.nan
        self.values = self.values or self.evaluation.summary(METRICS)
        return self.values[name]

    @property
    def to_go_s(self) -> float:
        """Estimated seconds on the wall clock until the run ends, at its speed so far; NaN before any progress."""
        lately = self.done - self.share_at_start
        return self.wall_s * (1 - self.done) / lately if lately > 0 else math.nan


@dataclass(slots=True)
class Picture:
    """Everything that a dashboard shows."""

    arms: list[Arm]
    started_s: float
    current: int = -1
    """Position of the arm that runs."""
    clients: int = 0
    online: int = 0
    in_flight: int = 0
    updates: int = 0
    """Updates in the last recorded step."""
    lost: int = 0
    """Jobs lost since the run began."""
    late: int = 0
    """Jobs late since the run began, or was resumed."""
    staleness: float = math.nan
    """Mean staleness of the updates of the last recorded step, in steps."""
    accuracy: list[float] = field(default_factory=list)
    """Mean accuracy over clients at each evaluation of the run, in percent."""
    steps_per_s: float = math.nan
    memory_bytes: int = 0
    free_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def arm(self) -> Arm:
        """The arm that runs."""
        return self.arms[self.current]

    @property
    def to_go_s(self) -> float:
        """Estimated seconds until all arms have ended; a waiting arm counts as long as the others on average."""
        lengths_s = [a.wall_s for a in self.arms if a.state == "ended"] + [self.arm.wall_s + self.arm.to_go_s]
        waiting = sum(a.state == "waiting" for a in self.arms)
        return self.arm.to_go_s + waiting * sum(lengths_s) / len(lengths_s)
