"""Policies for updates that hold NaN or infinity, or are longer than a limit.

- `skip_and_record`: such updates fill their place in the buffer, and the step leaves them out and records them as
  `nonfinite`.
- `clip`: the server shortens long updates to the limit and leaves out those that are not finite.
- `stop`: the run ends with an error that names step, client, job and value.

Norms are computed in float64, and only if there is a limit. A job's place in time never depends on its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import RunError
from fedsim.training.job import update_norm

if TYPE_CHECKING:
    import torch  # a configuration is read without it

    from fedsim.server.gram import Rows
    from fedsim.server.rule import Ints
    from fedsim.server.step_input import StepInput

Policy = Literal["skip_and_record", "clip", "stop"]


@dataclass(frozen=True, slots=True)
class UpdateScreening:
    """A policy, and the norm above which an update is too long."""

    policy: Policy = "skip_and_record"
    limit: float | None = None


SKIP = UpdateScreening()


@dataclass(frozen=True, slots=True)
class Screened:
    """The updates of a step after the policy."""

    rows: Rows
    """[n] x [P] all updates, the clipped ones shortened."""
    usable: NDArray[np.bool_]
    """[n] whether the step may use each of them."""
    clipped: int = 0
    """Number of updates that were shortened."""

    def usable_of(self, rows: Rows) -> Rows:
        """Return those of n rows whose updates the step may use."""
        if self.usable.all():
            return rows
        return [row for row, usable in zip(rows, self.usable.tolist(), strict=True) if usable]


def screen(screening: UpdateScreening, arrivals: StepInput, rows: Rows) -> Screened:
    """Apply the policy to rows [n] x [P]; `arrivals.reports` tells which of them are finite.

    Raises RunError with policy `stop`.
    """
    finite = arrivals.reports.finite
    if screening.policy == "stop" and not finite.all():
        i = int(np.argmin(finite))
        raise RunError(f"{_named(arrivals, i)} {_not_finite(rows[i])}; [bad_updates] policy is 'stop'")
    if screening.limit is None:
        return Screened(rows, finite)
    norms = np.array(
        [update_norm(row) if ok else np.inf for row, ok in zip(rows, finite.tolist(), strict=True)]
    )
    long = finite & (norms > screening.limit)
    if not long.any():
        return Screened(rows, finite)
    if screening.policy == "stop":
        raise _too_long(arrivals, int(np.argmax(long)), norms, screening.limit)
    if screening.policy == "skip_and_record":
        return Screened(rows, finite & ~long)
    factors = np.divide(screening.limit, norms, out=np.ones(len(norms)), where=long).tolist()
    cut = [row if factor == 1.0 else row * factor for row, factor in zip(rows, factors, strict=True)]
    return Screened(cut, finite, int(long.sum()))


def _too_long(arrivals: StepInput, i: int, norms: NDArray[np.float64], limit: float) -> RunError:
    return RunError(
        f"{_named(arrivals, i)} has norm {norms[i]:.6g}: expected at most {limit:.6g}, the limit of [bad_updates], "
        "whose policy is 'stop'"
    )


def diverged(problem: str, step: int, rule: str, clients: Ints, rows: Rows, hint: str = "") -> RunError:
    """Return the error for a step whose result is not finite although its rows [m] x [P] are, with what may help."""
    norms = np.array([update_norm(row) for row in rows])
    i = int(np.argmax(norms))
    return RunError(
        f"step {step}, rule {rule!r}: {problem}; the longest update of the step is client {clients[i]}'s, with norm "
        f"{norms[i]:.6g}. {hint}Where updates grow, a smaller train.lr or a limit in [bad_updates] helps"
    )


def _named(arrivals: StepInput, i: int) -> str:
    job = f" (job {arrivals.jobs[i]})" if len(arrivals.jobs) else ""
    return f"step {arrivals.step}: the update of client {arrivals.clients[i]}{job}"


def _not_finite(row: torch.Tensor) -> str:
    bad = (~row.isfinite()).nonzero()[:, 0]
    if not len(bad):
        return "came with a vector that is not finite"
    first = int(bad[0])
    return f"is not finite: entry {first} is {float(row[first])}, one of {len(bad)} such entries out of {len(row)}"
