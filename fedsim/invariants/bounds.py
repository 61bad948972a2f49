"""Invariants of the number of jobs that run at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.invariants.evidence import Evidence, Ints
from fedsim.invariants.finding import Violation, invariant, wrong


def _places_until(e: Evidence) -> Ints:
    """Return until when each job has a place: a late job loses it at the step that it was meant for."""
    if e.pacing.late == "history":
        return np.minimum(e.seen_us, e.step_us(e.jobs["version"]))
    return e.seen_us


def never_more_jobs_than_places(e: Evidence) -> Iterator[Violation]:
    """No more than `concurrency` jobs have a place at once."""
    start, until, most = e.jobs["dispatch_us"], _places_until(e), e.pacing.concurrency
    lasting = np.flatnonzero(until > start)  # a job without duration frees its place at once
    times = np.concatenate([until[lasting], start[lasting]])
    change = np.repeat([-1, 1], len(lasting))
    order = np.lexsort((change, times))  # at equal times, jobs end before others start
    at_once = np.cumsum(change[order])
    over = np.zeros(len(e.jobs), dtype=bool)
    count = np.zeros(len(e.jobs), dtype=np.int64)
    starts = order >= len(lasting)
    rows = lasting[order[starts] - len(lasting)]
    over[rows], count[rows] = at_once[starts] > most, at_once[starts]
    yield from wrong(
        "jobs",
        over,
        lambda i: f"at most {most} jobs with a place at {start[i]} us",
        lambda i: f"{count[i]} with job {e.jobs['job'][i]}",
    )


def as_many_run_as_the_step_says(e: Evidence) -> Iterator[Violation]:
    """`in_flight` counts the jobs that run after a step; none does where a step cancels what runs."""
    e.need_closed()
    times, recorded = e.steps["time_us"], e.steps["in_flight"]
    if e.pacing.cancels:
        yield from wrong(
            "steps", recorded != 0, "0 in flight, as steps cancel what runs", lambda i: str(recorded[i])
        )
        return
    started = np.searchsorted(np.sort(e.jobs["version"]), np.arange(len(times)), "right")
    ended = np.sort(e.seen_us)
    least = started - np.searchsorted(ended, times, "right")
    most = started - np.searchsorted(ended, times, "left")
    yield from wrong(
        "steps",
        (recorded < least) | (recorded > most),
        lambda i: (
            f"{max(least[i], 0)}" + (f" to {most[i]}" if most[i] > least[i] else "") + " jobs in flight"
        ),
        lambda i: str(recorded[i]),
    )


INVARIANTS = (invariant(never_more_jobs_than_places), invariant(as_many_run_as_the_step_says))
