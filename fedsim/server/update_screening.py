"""What the server does about updates that hold NaN or infinity, or are longer than a limit.

- `skip_and_record`: they take their place in the buffer, are left out of the step and recorded as `nonfinite`.
- `clip`: those that are too long are shortened to the limit; those that are not finite are left out.
- `stop`: the run ends with an error that names step, client, job and value.

Norms are taken in float64, and only where there is a limit. A job's place in time never depends on its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import RunError

if TYPE_CHECKING:
    import torch  # a configuration is read without it

    from fedsim.server.step_input import StepInput

Policy = Literal["skip_and_record", "clip", "stop"]


@dataclass(frozen=True, slots=True)
class UpdateScreening:
    """A policy, and the norm above which an update is too long."""

    policy: Policy = "skip_and_record"
    limit: float | None = None


SKIP = UpdateScreening()


@dataclass(frozen=True, slots=True)
class Judged:
    """What the policy makes of a step's updates."""

    rows: Sequence[torch.Tensor] | torch.Tensor
    """All of them [n] x [P], the clipped ones shortened."""
    usable: NDArray[np.bool_]
    """[n] Which may be used."""
    clipped: int = 0


def judge(how: UpdateScreening, arrivals: StepInput, rows: Sequence[torch.Tensor] | torch.Tensor) -> Judged:
    """Apply the policy to rows [n] x [P], of which `arrivals.reports` says whether they are finite.

    Raises RunError with policy `stop`.
    """
    finite = arrivals.reports.finite
    if how.policy == "stop" and not finite.all():
        i = int(np.argmin(finite))
        raise RunError(f"{_named(arrivals, i)} {_not_finite(rows[i])}; [bad_updates] policy is 'stop'")
    if how.limit is None:
        return Judged(rows, finite)
    norms = np.array([_norm(row) if ok else np.inf for row, ok in zip(rows, finite.tolist(), strict=True)])
    long = finite & (norms > how.limit)
    if not long.any():
        return Judged(rows, finite)
    if how.policy == "stop":
        i = int(np.argmax(long))
        raise RunError(
            f"{_named(arrivals, i)} has norm {norms[i]:.6g}: expected at most {how.limit:.6g}, the limit of "
            "[bad_updates], whose policy is 'stop'"
        )
    if how.policy == "clip":
        factors = np.divide(how.limit, norms, out=np.ones(len(norms)), where=long).tolist()
        cut = [row if factor == 1.0 else row * factor for row, factor in zip(rows, factors, strict=True)]
        return Judged(cut, finite, int(long.sum()))
    return Judged(rows, finite & ~long)


def diverged(
    what: str, step: int, rule: str, clients: NDArray[np.int64], rows: Sequence[torch.Tensor] | torch.Tensor
) -> RunError:
    """Return the error of a step whose outcome is not finite, though its rows [m] x [P] are."""
    norms = np.array([_norm(row) for row in rows])
    i = int(np.argmax(norms))
    return RunError(
        f"step {step}, rule {rule!r}: {what}; the longest update of the step is client {clients[i]}'s, with norm "
        f"{norms[i]:.6g}. Where updates grow, a smaller train.lr or a limit in [bad_updates] helps"
    )


def _named(arrivals: StepInput, i: int) -> str:
    job = f" (job {arrivals.jobs[i]})" if len(arrivals.jobs) else ""
    return f"step {arrivals.step}: the update of client {arrivals.clients[i]}{job}"


def _not_finite(row: torch.Tensor) -> str:
    bad = (~row.isfinite()).nonzero()[:, 0]
    first = int(bad[0])
    return f"is not finite: entry {first} is {float(row[first])}, one of {len(bad)} such entries out of {len(row)}"


def _norm(row: torch.Tensor) -> float:
    """A fresh tensor in float64: neither overflow nor where the row lies in memory moves the last bit."""
    return float(row.double().norm())
