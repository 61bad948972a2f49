"""What a dashboard shows: where each run of an experiment stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from fedsim import analysis

METRICS = ("mean_percent", "worst10_percent", "angle_rad")


@dataclass(slots=True)
class Arm:
    """One run of the experiment, as far as it is known."""

    name: str
    state: Literal["waiting", "running", "ended"] = "waiting"
    done: float = 0.0
    """From 0 to 1, as `begun`: how much was done when this was first told of it."""
    begun: float = 0.0
    step: int = 0
    now_us: int = 0
    wall_s: float = 0.0
    evaluation: analysis.Evaluation | None = None
    """The last one that is known, of the global model."""
    values: dict[str, float] = field(default_factory=dict)
    """Of `METRICS`, at that evaluation; taken when it is painted."""

    def measure(self, found: analysis.Evaluation | None) -> None:
        """Note an evaluation."""
        self.evaluation, self.values = found, {}

    def metric(self, name: str) -> float:
        """Return a metric of the last evaluation, NaN before one."""
        if self.evaluation is None:
            return math.nan
        self.values = self.values or self.evaluation.summary(METRICS)
        return self.values[name]

    @property
    def to_go_s(self) -> float:
        """Seconds on the wall clock that are left if it goes on as it did; NaN if nothing says."""
        lately = self.done - self.begun
        return self.wall_s * (1 - self.done) / lately if lately > 0 else math.nan


@dataclass(slots=True)
class Picture:
    """All that a dashboard shows."""

    arms: list[Arm]
    started_s: float
    current: int = -1
    """Position of the arm that runs."""
    clients: int = 0
    online: int = 0
    in_flight: int = 0
    updates: int = 0
    """In the last step that is recorded."""
    lost: int = 0
    """Jobs since the run began, as `late`."""
    late: int = 0
    staleness: float = math.nan
    """Mean over the updates of the last step that is recorded, in steps."""
    accuracy: list[float] = field(default_factory=list)
    """Mean over clients at each evaluation of the run, in percent."""
    steps_per_s: float = math.nan
    memory_bytes: int = 0
    free_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def arm(self) -> Arm:
        """The one that runs."""
        return self.arms[self.current]

    @property
    def to_go_s(self) -> float:
        """Seconds until all arms have ended; those that wait are taken to last as long as the others on average."""
        whole = [a.wall_s for a in self.arms if a.state == "ended"] + [self.arm.wall_s + self.arm.to_go_s]
        waiting = sum(a.state == "waiting" for a in self.arms)
        return self.arm.to_go_s + waiting * sum(whole) / len(whole)
