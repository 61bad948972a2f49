"""The input of a server step: facts about its updates, without their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.server.rule import Floats, Ints
from fedsim.training.job import Cohort, Reports

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepInput:
    """Facts about the n updates of one step, in order of arrival, of which the first m count.

    The others came too late for their step: they refresh the history and have no weight as present rows.
    """

    step: int
    clients: Ints
    """[n] client of each update."""
    staleness: Ints
    """[n] server steps since the version at the dispatch of the update's job."""
    n_samples: Ints
    """[n] training samples of each client."""
    online: Ints
    """Clients that are online now, of all registered ones."""
    reports: Reports = field(default_factory=lambda: Reports.nothing(0))
    """[n] reports of the updates' jobs; the trainer fills them in."""
    present: int | None = None
    """m; None means n."""
    now_us: int = 0
    starts: Ints | None = None
    """[n] server step whose parameters each update's job started from; None: that of `staleness`."""
    needed: Ints | None = None
    """Versions that jobs may start from after this step, and those that jobs started from that still run, even if they
    will be lost, or wait for another step; None: any version."""
    local_steps: Ints | None = None
    """[n] minibatches that the updates' jobs trained on; None if it is not known."""
    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[n] numbers of the updates' jobs for error messages, or empty."""
    inclusion: Floats | None = None
    """[n] probability with which the selector included the client, NaN if unknown; None if all are."""
    audit: Cohort | None = None
    """Jobs that clients train from the current model for the records alone; see `fedsim.engine.audit`."""

    @property
    def m(self) -> int:
        """Number of updates that count in this step."""
        return len(self.clients) if self.present is None else self.present

    @property
    def start_versions(self) -> Ints:
        """[n] Server step whose parameters each update's job started from."""
        return self.step - self.staleness if self.starts is None else self.starts

    def still_needed(self, models: Mapping[int, T]) -> dict[int, T]:
        """Return those of the models, by version, that are needed after this step."""
        needed = set(models if self.needed is None else self.needed.tolist())
        return {version: model for version, model in models.items() if version in needed}

    def split(self) -> tuple[StepInput, StepInput]:
        """Return the updates that count in this step and those that came too late."""
        return self.part(slice(0, self.m)), self.part(slice(self.m, len(self.clients)))

    def usable(self, usable: NDArray[np.bool_]) -> StepInput:
        """Return the updates that the step may use, by a mask [n]."""
        if usable.all():
            return self
        return replace(self.part(np.flatnonzero(usable)), present=int(usable[: self.m].sum()))

    def part(self, which: slice | Ints) -> StepInput:
        """Return some of the updates, all of which count."""
        names = ["clients", "staleness", "n_samples"]
        names += ["jobs"] if len(self.jobs) else []
        names += [] if self.local_steps is None else ["local_steps"]
        names += ["inclusion"] if self.inclusion is not None else []
        names += ["starts"] if self.starts is not None else []
        columns = {name: getattr(self, name)[which] for name in names}
        return replace(self, **columns, reports=self.reports.part(which), present=None)

    def columns(self, arrived: int) -> dict[str, Any]:
        """Return the columns of `steps.parquet` about these updates, of `arrived` that came in time."""
        staleness = self.staleness[: self.m]
        return {
            "updates": self.m,
            "nonfinite": arrived - self.m,
            "mean_staleness": float(np.mean(staleness)) if self.m else math.nan,
        }

    def notes(self) -> dict[str, NDArray[Any]]:
        """Return the arrays [n] that the history keeps beside the rows."""
        known = {} if self.local_steps is None else {"local_steps": self.local_steps}
        unknown = np.full(len(self.clients), math.nan)
        return {
            "staleness": self.staleness,
            "inclusion": unknown if self.inclusion is None else self.inclusion,
            "n_samples": self.n_samples,
            "loss": self.reports.loss_before,
            "loss_after": self.reports.loss_after,
            "accuracy_after": self.reports.accuracy_after,
            **known,
        }
