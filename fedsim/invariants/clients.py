"""Invariants of the successive jobs of a client, and of the world's effect on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.worlds.job_outcomes import PHASES

_ARRIVED = ("aggregated", "remembered", "stale", "void", "nonfinite")


def a_client_has_one_job_at_a_time(e: Evidence) -> Iterator[Violation]:
    """A client gets a job only when the server knows that the client's previous job has ended."""
    jobs = e.jobs
    before, after = e.pairs()
    free = np.empty(len(jobs), dtype=np.int64)
    free[after] = e.seen_us[before]
    late = np.zeros(len(jobs), dtype=bool)
    late[after] = jobs["dispatch_us"][after] < free[after]
    # The client of a lost job is available from the next instant on, unless a step ends the round at that time.
    waits = (jobs["status"][before] == "lost") & (jobs["attempt"][after] == 0)
    if e.pacing.cancels:
        waits &= e.seen_us[before] < e.step_us(jobs["version"][before])
    late[after] |= waits & (jobs["dispatch_us"][after] == free[after])
    yield from wrong(
        "jobs",
        late,
        lambda i: f"client {jobs['client'][i]} to be free at {free[i]} us, for job {jobs['job'][i]}",
        lambda i: f"a dispatch at {jobs['dispatch_us'][i]} us",
    )


def lost_work_is_given_once_more(e: Evidence) -> Iterator[Violation]:
    """An `attempt` follows the loss of the client's previous attempt, when the server learns of it."""
    jobs = e.jobs
    attempt, status = jobs["attempt"], jobs["status"]
    before, after = e.pairs()
    follows = np.zeros(len(jobs), dtype=bool)
    follows[after] = (
        (status[before] == "lost")
        & (attempt[before] == attempt[after] - 1)
        & (jobs["dispatch_us"][after] == jobs["end_us"][before] + e.dropout.notice_us)
    )
    yield from wrong(
        "jobs",
        (attempt > 0) & ~follows,
        lambda i: (
            f"attempt {attempt[i]} of client {jobs['client'][i]} when its loss of the one before is noticed"
        ),
        lambda i: f"job {jobs['job'][i]} at {jobs['dispatch_us'][i]} us",
    )


def a_client_has_its_samples(e: Evidence) -> Iterator[Violation]:
    """The number of training samples of a client stays the same."""
    jobs = e.jobs
    before, after = e.pairs()
    other = np.zeros(len(jobs), dtype=bool)
    other[after] = jobs["n_samples"][before] != jobs["n_samples"][after]
    yield from wrong(
        "jobs",
        other | (jobs["n_samples"] < 0),
        lambda i: f"as many samples as in the jobs of client {jobs['client'][i]} before",
        lambda i: str(jobs["n_samples"][i]),
    )


def no_job_for_an_offline_client(e: Evidence) -> Iterator[Violation]:
    """A client is online at the dispatch of its job."""
    jobs = e.jobs
    yield from wrong(
        "jobs",
        ~e.online_jobs,
        lambda i: f"client {jobs['client'][i]} online at {jobs['dispatch_us'][i]} us",
        lambda i: f"offline, and it was given job {jobs['job'][i]}",
    )


def no_work_while_offline(e: Evidence) -> Iterator[Violation]:
    """Work stops when its client leaves, or continues as `dropout.leave` says; a fault always ends it."""
    jobs, leave = e.jobs, e.world.leave
    rows = np.flatnonzero(e.online_jobs)
    who, start, end = (jobs[name][rows] for name in ("client", "dispatch_us", "end_us"))
    limit = e.world.fault_us(who, start)
    if leave == "abort":
        limit = np.minimum(limit, e.world.leaves_us(who, start))
    wrongly = np.zeros(len(jobs), dtype=bool)
    wrongly[rows] = end > limit
    arrived = np.isin(jobs["status"][rows], _ARRIVED)
    if leave in ("pause_resume", "end_instant"):
        at_end = e.world.online_at(who, np.maximum(end - 1, start)) | e.world.online_at(who, end)
        wrongly[rows] |= arrived & ~at_end
    bound = np.zeros(len(jobs), dtype=np.int64)
    bound[rows] = limit
    yield from wrong(
        "jobs",
        wrongly,
        lambda i: (
            f"job {jobs['job'][i]} to end while its client is there ({leave}), by {bound[i]} us at the latest"
        ),
        lambda i: f"{jobs['status'][i]!s} at {jobs['end_us'][i]} us",
    )


def jobs_do_their_share(e: Evidence) -> Iterator[Violation]:
    """The share of its local steps that a job does is the drawn one, or with a deadline fewer whole epochs."""
    jobs, share = e.jobs, e.jobs["share"]
    drawn = e.costs.shares(jobs["client"], e.nths)
    fits = share == drawn
    if e.dropout.partial and e.pacing.deadline_us is not None:
        epochs = np.arange(1, e.costs.epochs) / e.costs.epochs
        fits |= np.isin(share, epochs) & (share < drawn)
    yield from wrong(
        "jobs", ~fits, lambda i: f"share {drawn[i]} of job {jobs['job'][i]}", lambda i: str(share[i])
    )


def jobs_end_as_the_world_says(e: Evidence) -> Iterator[Violation]:
    """World and costs determine when each phase of a job ends, whether it is lost, and how many bytes it moved."""
    try:
        rows, fates = e.fates
    except TraceError as error:
        yield Violation("jobs", -1, "a world that knows what becomes of each job", str(error))
        return
    for name, want in (
        ("end_us", fates.end_us),
        ("download_us", fates.download_us),
        ("compute_us", fates.compute_us),
        ("phase", np.array(PHASES)[fates.phase]),
        ("download_bytes", fates.downloaded_bytes),
        ("upload_bytes", fates.uploaded_bytes),
    ):
        got, mask = e.jobs[name], np.zeros(len(e.jobs), dtype=bool)
        mask[rows] = got[rows] != want
        expected = np.empty(len(got), dtype=want.dtype)
        expected[rows] = want
        yield from wrong(
            "jobs",
            mask,
            lambda i, n=name, t=expected: f"{n} = {t[i]} of job {e.jobs['job'][i]}",  # type: ignore[misc]
            lambda i, n=name, g=got: f"{n} = {g[i]}",  # type: ignore[misc]
        )
    status = e.jobs["status"][rows]
    ok, stopped = np.isin(status, _ARRIVED), np.isin(status, ("late", "unfinished"))
    other = np.zeros(len(e.jobs), dtype=bool)
    other[rows] = (ok != fates.ok) & ~(stopped & (ok <= fates.ok))
    yield from wrong(
        "jobs",
        other,
        lambda i: f"job {e.jobs['job'][i]} to " + ("be lost" if e.jobs["status"][i] != "lost" else "arrive"),
        lambda i: str(e.jobs["status"][i]),
    )


def as_many_are_online_as_the_world_says(e: Evidence) -> Iterator[Violation]:
    """`online` counts the clients that are online at a step."""
    times, recorded = e.steps["time_us"], e.steps["online"]
    if e.world.after_end == "error" and (times >= e.world.horizon_us).any():
        raise Unchecked("steps lie beyond the end of the trace")
    want = np.array([int(e.world.online(t).sum()) for t in times.tolist()], dtype=np.int64)
    yield from wrong(
        "steps",
        recorded != want,
        lambda i: f"{want[i]} clients online at {times[i]} us",
        lambda i: str(recorded[i]),
    )


INVARIANTS = (
    invariant(a_client_has_one_job_at_a_time),
    invariant(lost_work_is_given_once_more),
    invariant(a_client_has_its_samples),
    invariant(no_job_for_an_offline_client),
    invariant(no_work_while_offline),
    invariant(jobs_do_their_share),
    invariant(jobs_end_as_the_world_says),
    invariant(as_many_are_online_as_the_world_says),
)
