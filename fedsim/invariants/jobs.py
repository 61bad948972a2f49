"""Invariants of single jobs, given configuration and steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.engine.record_words import STATUSES
from fedsim.invariants.evidence import Evidence
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.worlds.job_outcomes import PHASES

_ARRIVED = ("aggregated", "remembered", "stale", "void", "nonfinite")


def job_values(e: Evidence) -> Iterator[Violation]:
    """Clients, steps and numbers of jobs exist; status and phase are known words."""
    jobs, steps = e.jobs, len(e.steps)
    last = steps if e.ended else steps + 1  # a failed run may lack its last step
    for name, low, high in (
        ("job", 0, len(jobs) - 1 if e.status != "running" else np.inf),
        ("client", 0, e.clients - 1),
        ("version", 0, last if e.status != "running" else np.inf),
        ("step", -1, last - 1 if e.status != "running" else np.inf),
        ("dispatch_us", 0, np.inf),
        ("attempt", 0, e.dropout.retries),
    ):
        values = jobs[name]
        yield from wrong(
            "jobs",
            (values < low) | (values > high),
            f"{name} from {low} to {high}",
            lambda i, n=name, v=values: f"{n} = {v[i]}",  # type: ignore[misc]
        )
    for name, words in (("status", STATUSES), ("phase", PHASES)):
        values = jobs[name]
        yield from wrong(
            "jobs",
            ~np.isin(values, words),
            f"one of {', '.join(w or 'nothing' for w in words)} in {name}",
            lambda i, v=values: repr(str(v[i])),  # type: ignore[misc]
        )


def each_job_ends_exactly_once(e: Evidence) -> Iterator[Violation]:
    """Each job has one row, and numbers count from 0 without a gap."""
    numbers = e.jobs["job"]
    again = np.ones(len(numbers), dtype=bool)
    again[np.unique(numbers, return_index=True)[1]] = False
    yield from wrong("jobs", again, "each job once", lambda i: f"job {numbers[i]} again")
    if e.status != "running":
        missing = np.setdiff1d(np.arange(len(numbers)), numbers)
        if len(missing):
            yield Violation(
                "jobs", -1, f"jobs 0 to {len(numbers) - 1}", f"no job {missing[0]}", len(missing) - 1
            )


def jobs_are_numbered_as_they_are_handed_out(e: Evidence) -> Iterator[Violation]:
    """A job with a larger number is not dispatched earlier, nor from an older model."""
    order = np.argsort(e.jobs["job"], kind="stable")
    for name in ("dispatch_us", "version"):
        values = e.jobs[name]
        back = np.zeros(len(order), dtype=bool)
        back[order[1:]] = np.diff(values[order]) < 0
        yield from wrong(
            "jobs",
            back,
            lambda i, n=name: f"{n} of job {e.jobs['job'][i]} at least that of the job before",  # type: ignore[misc]
            lambda i, v=values: str(v[i]),  # type: ignore[misc]
        )


def phases_follow_each_other(e: Evidence) -> Iterator[Violation]:
    """Download, computation and upload follow each other, and `phase` is where a job ended that did not arrive."""
    jobs = e.jobs
    dispatch, download, compute, end = (
        jobs[n] for n in ("dispatch_us", "download_us", "compute_us", "end_us")
    )
    phase, arrived = jobs["phase"], np.isin(jobs["status"], _ARRIVED)
    reached = np.where(compute >= 0, 3, np.where(download >= 0, 2, 1))
    ends = np.where(download >= 0, download, dispatch)
    after = np.where(compute >= 0, compute, ends)
    order = (dispatch <= ends) & (ends <= after) & (after <= end)
    yield from wrong(
        "jobs",
        ~order | ((download < 0) & (compute >= 0)),
        "dispatch <= download <= computation <= end",
        lambda i: f"{dispatch[i]}, {download[i]}, {compute[i]}, {end[i]} us",
    )
    expected_phase = np.array(PHASES)[reached]
    whole = (phase == "") & (reached == 3)
    fits = np.where(
        arrived, whole, (phase == expected_phase) | (whole & np.isin(jobs["status"], ("late", "unfinished")))
    )
    yield from wrong(
        "jobs",
        ~fits,
        lambda i: "an upload that ended, and no phase" if arrived[i] else f"phase {expected_phase[i]!s}",
        lambda i: f"phase {str(phase[i])!r}, download_us {download[i]}, compute_us {compute[i]}",
    )
    yield from _computing_times(e)


def _computing_times(e: Evidence) -> Iterator[Violation]:
    """Check that `computing_us` lasts from the end of the download to that of the computation, or of the job."""
    jobs = e.jobs
    download, compute, end = (jobs[name] for name in ("download_us", "compute_us", "end_us"))
    computing = np.where(download < 0, 0, np.where(compute >= 0, compute, end) - download)
    yield from wrong(
        "jobs",
        jobs["computing_us"] != computing,
        lambda i: f"computing_us = {computing[i]}, from the end of the download",
        lambda i: str(jobs["computing_us"][i]),
    )


def statuses_fit_the_pacing(e: Evidence) -> Iterator[Violation]:
    """A job ends only in a way that its pacing allows, and `step` is the step that used it."""
    jobs, pacing = e.jobs, e.pacing
    status, step = jobs["status"], jobs["step"]
    possible = {
        "late": pacing.cancels,
        "remembered": pacing.late == "history",
        "stale": pacing.max_staleness is not None,
        "void": pacing.minimum > 0 and pacing.late != "keep",
        "nonfinite": e.status != "planned",
    }
    for word, may in possible.items():
        if not may:
            yield from wrong(
                "jobs", status == word, f"no job that is {word}, with this pacing", lambda i: str(status[i])
            )
    yield from wrong(
        "jobs",
        (step >= 0) != (status == "aggregated"),
        "a step for jobs that are aggregated, and for no others",
        lambda i: f"status {status[i]!s}, step {step[i]}",
    )


def versions_are_those_of_the_dispatch(e: Evidence) -> Iterator[Violation]:
    """A job starts from the model that is current at its dispatch."""
    e.need_closed()
    times, version, dispatch = e.steps["time_us"], e.jobs["version"], e.jobs["dispatch_us"]
    low, high = np.searchsorted(times, dispatch, "left"), np.searchsorted(times, dispatch, "right")
    if not e.ended:  # the last step may be missing
        high = np.where(high == len(times), high + 1, high)
    yield from wrong(
        "jobs",
        (version < low) | (version > high),
        lambda i: (
            f"version {low[i]}" + (f" to {high[i]}" if high[i] > low[i] else "") + f" at {dispatch[i]} us"
        ),
        lambda i: f"version {version[i]}",
    )


def staleness_is_step_minus_version(e: Evidence) -> Iterator[Violation]:
    """`staleness` is `step - version`, at least 0, and above 0 only where steps keep running jobs."""
    jobs = e.jobs
    step, version, staleness = jobs["step"], jobs["version"], jobs["staleness"]
    want = np.where(step >= 0, step - version, -1)
    yield from wrong(
        "jobs",
        staleness != want,
        lambda i: f"staleness {want[i]} (step {step[i]}, version {version[i]})",
        lambda i: str(staleness[i]),
    )
    most = 0 if e.pacing.late != "keep" else np.inf
    used = step >= 0
    yield from wrong(
        "jobs",
        used & ((step < version) | (step - version > most)),
        "no update used before its version" if most else "no update that outlives its round",
        lambda i: f"step {step[i]}, version {version[i]}",
    )


def updates_are_used_when_they_are_there(e: Evidence) -> Iterator[Violation]:
    """An update is used by the first step after its arrival."""
    step, end = e.jobs["step"], e.jobs["end_us"]
    used = (step >= 0) & (step < len(e.steps))
    until = e.step_us(step)
    since = np.where(step > 0, e.step_us(np.maximum(step - 1, 0)), 0)
    yield from wrong(
        "jobs",
        used & ((end > until) | (end < since)),
        lambda i: f"an arrival from {since[i]} to {until[i]} us, for step {step[i]}",
        lambda i: f"end_us = {end[i]}",
    )


def no_update_is_too_stale(e: Evidence) -> Iterator[Violation]:
    """An update older than `max_staleness` at its arrival is `stale`, and no other is."""
    e.need_closed()
    limit = e.pacing.max_staleness
    if limit is None:
        return
    times, jobs = e.steps["time_us"], e.jobs
    status, end, version = jobs["status"], jobs["end_us"], jobs["version"]
    least, most = (np.searchsorted(times, end, side) - version for side in ("left", "right"))
    too_old = (status == "aggregated") & (least > limit)
    young = (status == "stale") & (most <= limit)
    if not e.ended:
        young &= most < limit  # the last step may be missing
    yield from wrong(
        "jobs",
        too_old | young,
        lambda i: f"stale jobs to be over {limit} steps old at their arrival, others not",
        lambda i: f"{status[i]!s} at {least[i]} to {most[i]} steps",
    )


def moved_bytes_are_those_of_the_payload(e: Evidence) -> Iterator[Violation]:
    """A job that ended a transfer moved all bytes of its payload, and any other job at most these."""
    jobs = e.jobs
    payload, sent = e.costs.work.download_bytes, e.costs.work.upload_bytes
    for name, whole, done in (
        ("download_bytes", payload[jobs["client"]], jobs["download_us"] >= 0),
        ("upload_bytes", sent[jobs["client"]], (jobs["phase"] == "") | np.isin(jobs["status"], _ARRIVED)),
    ):
        moved = jobs[name]
        yield from wrong(
            "jobs",
            np.where(done, moved != whole, (moved < 0) | (moved > whole)),
            lambda i, w=whole, d=done: f"{w[i]} bytes" if d[i] else f"0 to {w[i]} bytes",  # type: ignore[misc]
            lambda i, n=name, m=moved: f"{n} = {m[i]}",  # type: ignore[misc]
        )


INVARIANTS = (
    invariant(job_values, basic=True),
    invariant(each_job_ends_exactly_once, basic=True),
    invariant(jobs_are_numbered_as_they_are_handed_out),
    invariant(phases_follow_each_other),
    invariant(statuses_fit_the_pacing),
    invariant(versions_are_those_of_the_dispatch),
    invariant(staleness_is_step_minus_version),
    invariant(updates_are_used_when_they_are_there),
    invariant(no_update_is_too_stale),
    invariant(moved_bytes_are_those_of_the_payload),
)
