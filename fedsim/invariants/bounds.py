"""Invariants of the number of jobs that run at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.invariants.evidence import Evidence
from fedsim.invariants.finding import Violation, between, first


def running_jobs_do_not_exceed_concurrency(e: Evidence) -> Iterator[Violation]:
    """No more than `concurrency` jobs have a place at once."""
    start, until, most = e.jobs["dispatch_us"], e.seen_us, e.pacing.concurrency
    if e.pacing.late == "history":  # a late job loses its place at the step that it was meant for
        until = np.minimum(until, e.step_us(e.jobs["version"]))
    lasting = np.flatnonzero(until > start)  # a job without duration frees its place at once
    times = np.concatenate([until[lasting], start[lasting]])
    change = np.repeat([-1, 1], len(lasting))
    order = np.lexsort((change, times))  # at equal times, jobs end before others start
    starts = order >= len(lasting)
    count = np.zeros(len(e.jobs), dtype=np.int64)
    count[lasting[order[starts] - len(lasting)]] = np.cumsum(change[order])[starts]
    for i, more in first(count > most):
        wanted = f"at most {most} jobs with a place at {start[i]} us"
        yield Violation("jobs", i, wanted, f"{count[i]} with job {e.jobs['job'][i]}", more)


def in_flight_counts_the_running_jobs(e: Evidence) -> Iterator[Violation]:
    """`in_flight` counts the jobs that run after a step; none does where a step cancels what runs."""
    e.need_closed()
    times, recorded = e.steps["time_us"], e.steps["in_flight"]
    if e.pacing.cancels:
        for i, more in first(recorded != 0):
            yield Violation("steps", i, "0 in flight, as steps cancel what runs", str(recorded[i]), more)
        return
    started = np.searchsorted(np.sort(e.jobs["version"]), np.arange(len(times)), "right")
    ended = np.sort(e.seen_us)
    least = started - np.searchsorted(ended, times, "right")
    most = started - np.searchsorted(ended, times, "left")
    yield from between(recorded, np.maximum(least, 0), most, "{} jobs in flight")
