"""Invariants of single jobs, given configuration and steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedsim.engine.record_words import STATUSES
from fedsim.invariants.evidence import Evidence
from fedsim.invariants.finding import Violation, first, range_text, repeated
from fedsim.worlds.job_outcomes import PHASES


def values_of_jobs_are_valid(e: Evidence) -> Iterator[Violation]:
    """Clients, steps and numbers of jobs exist, and shares are finite; status and phase are known words."""
    jobs, steps, closed = e.jobs, len(e.steps), e.status != "running"
    last = steps if e.ended else steps + 1  # a failed run may lack its last step
    for name, low, high in (
        ("job", 0, len(jobs) - 1 if closed else np.inf),
        ("client", 0, e.clients - 1),
        ("version", 0, last if closed else np.inf),
        ("step", -1, last - 1 if closed else np.inf),
        ("dispatch_us", 0, np.inf),
        ("attempt", 0, e.dropout.retries),
    ):
        values = jobs[name]
        for i, more in first((values < low) | (values > high)):
            yield Violation("jobs", i, f"{name} from {low} to {high}", f"{name} = {values[i]}", more)
    share = jobs["share"]
    for i, more in first(~(np.isfinite(share) & (share >= 0))):
        yield Violation("jobs", i, "a finite share of at least 0", f"share = {share[i]}", more)
    for name, words in (("status", STATUSES), ("phase", PHASES)):
        known = ", ".join(word or "nothing" for word in words)
        for i, more in first(~np.isin(jobs[name], words)):
            yield Violation("jobs", i, f"one of {known} in {name}", repr(str(jobs[name][i])), more)


def each_job_has_exactly_one_row(e: Evidence) -> Iterator[Violation]:
    """Each job has one row, and numbers count from 0 without a gap."""
    numbers = e.jobs["job"]
    for i, more in first(repeated(numbers)):
        yield Violation("jobs", i, "each job once", f"job {numbers[i]} again", more)
    missing = np.setdiff1d(np.arange(len(numbers)), numbers)
    if e.status != "running" and len(missing):
        wanted, absent = f"jobs 0 to {len(numbers) - 1}", f"no job {missing[0]}"
        yield Violation("jobs", -1, wanted, absent, len(missing) - 1)


def jobs_are_numbered_in_order_of_dispatch(e: Evidence) -> Iterator[Violation]:
    """A job with a larger number is not dispatched earlier, nor from an older model."""
    order = np.argsort(e.jobs["job"], kind="stable")
    for name in ("dispatch_us", "version"):
        values = e.jobs[name]
        back = np.zeros(len(order), dtype=bool)
        back[order[1:]] = np.diff(values[order]) < 0
        for i, more in first(back):
            wanted = f"{name} of job {e.jobs['job'][i]} at least that of the job before"
            yield Violation("jobs", i, wanted, str(values[i]), more)


def download_computation_and_upload_follow_each_other(e: Evidence) -> Iterator[Violation]:
    """Download, computation and upload follow each other, and `phase` is where a job ended that did not arrive."""
    jobs = e.jobs
    times = [jobs[name] for name in ("dispatch_us", "download_us", "compute_us", "end_us")]
    dispatch, download, compute, end = times
    ends = np.where(download >= 0, download, dispatch)
    after = np.where(compute >= 0, compute, ends)
    order = (dispatch <= ends) & (ends <= after) & (after <= end)
    for i, more in first(~order | ((download < 0) & (compute >= 0))):
        recorded = f"{dispatch[i]}, {download[i]}, {compute[i]}, {end[i]} us"
        yield Violation("jobs", i, "dispatch <= download <= computation <= end", recorded, more)
    phase, status = jobs["phase"], jobs["status"]
    reached = np.where(compute >= 0, 3, np.where(download >= 0, 2, 1))
    expected_phase = np.array(PHASES)[reached]
    whole = (phase == "") & (reached == 3)
    fits = (phase == expected_phase) | (whole & np.isin(status, ("late", "unfinished")))
    for i, more in first(~np.where(e.arrived, whole, fits)):
        wanted = "an upload that ended, and no phase" if e.arrived[i] else f"phase {expected_phase[i]}"
        recorded = f"phase {str(phase[i])!r}, download_us {download[i]}, compute_us {compute[i]}"
        yield Violation("jobs", i, wanted, recorded, more)
    computing = np.where(download < 0, 0, np.where(compute >= 0, compute, end) - download)
    for i, more in first(jobs["computing_us"] != computing):
        wanted = f"computing_us = {computing[i]}, from the end of the download"
        yield Violation("jobs", i, wanted, str(jobs["computing_us"][i]), more)


def the_pacing_allows_the_status_of_each_job(e: Evidence) -> Iterator[Violation]:
    """A job ends only in a way that its pacing allows, and `step` is the step that used it."""
    pacing, status, step = e.pacing, e.jobs["status"], e.jobs["step"]
    possible = {
        "late": pacing.cancels,
        "remembered": pacing.late == "history",
        "stale": _most_stale(e) is not None,
        "void": pacing.minimum > 0 and pacing.late != "keep",
        "nonfinite": e.status != "planned",
    }
    for word in (word for word, may_occur in possible.items() if not may_occur):
        for i, more in first(status == word):
            yield Violation("jobs", i, f"no job that is {word}, with this pacing", str(status[i]), more)
    for i, more in first((step >= 0) != (status == "aggregated")):
        wanted = "a step for jobs that are aggregated, and for no others"
        yield Violation("jobs", i, wanted, f"status {status[i]}, step {step[i]}", more)


def versions_of_jobs_are_current_at_dispatch(e: Evidence) -> Iterator[Violation]:
    """The version of a job is that of the model that is current at its dispatch."""
    e.need_closed()
    times, version, dispatch = e.steps["time_us"], e.jobs["version"], e.jobs["dispatch_us"]
    low, high = np.searchsorted(times, dispatch, "left"), np.searchsorted(times, dispatch, "right")
    if not e.ended:  # the last step may be missing
        high = np.where(high == len(times), high + 1, high)
    for i, more in first((version < low) | (version > high)):
        wanted = f"version {range_text(low[i], high[i])} at {dispatch[i]} us"
        yield Violation("jobs", i, wanted, f"version {version[i]}", more)


def staleness_is_step_minus_version(e: Evidence) -> Iterator[Violation]:
    """`staleness` is `step - version`, at least 0, and above 0 only where steps keep running jobs."""
    step, version, staleness = e.jobs["step"], e.jobs["version"], e.jobs["staleness"]
    want = np.where(step >= 0, step - version, -1)
    for i, more in first(staleness != want):
        wanted = f"staleness {want[i]} (step {step[i]}, version {version[i]})"
        yield Violation("jobs", i, wanted, str(staleness[i]), more)
    most = 0 if e.pacing.late != "keep" else np.inf
    for i, more in first((step >= 0) & ((step < version) | (step - version > most))):
        wanted = "no update used before its version" if most else "no update that outlives its round"
        yield Violation("jobs", i, wanted, f"step {step[i]}, version {version[i]}", more)


def inclusion_is_a_probability(e: Evidence) -> Iterator[Violation]:
    """`inclusion` is above 0 and at most 1, or NaN, and a repeated attempt keeps that of its choice."""
    stated = e.jobs["inclusion"]
    for i, more in first(~np.isnan(stated) & ~((stated > 0) & (stated <= 1))):
        yield Violation("jobs", i, "inclusion above 0 and at most 1, or NaN", str(stated[i]), more)
    again, before = (e.jobs["attempt"] > 0) & (e.before >= 0), stated[e.before]
    for i, more in first(again & (stated != before) & ~(np.isnan(stated) & np.isnan(before))):
        wanted = f"inclusion {before[i]}, as in the attempt before of client {e.jobs['client'][i]}"
        yield Violation("jobs", i, wanted, str(stated[i]), more)


def updates_are_used_by_the_first_step_after_arrival(e: Evidence) -> Iterator[Violation]:
    """An update is used by the first step after its arrival."""
    step, end = e.jobs["step"], e.jobs["end_us"]
    used = (step >= 0) & (step < len(e.steps))
    since, until = e.step_us(step - 1), e.step_us(step)
    for i, more in first(used & ((end > until) | (end < since))):
        wanted = f"an arrival from {since[i]} to {until[i]} us, for step {step[i]}"
        yield Violation("jobs", i, wanted, f"end_us = {end[i]}", more)


def updates_beyond_max_staleness_are_marked_stale(e: Evidence) -> Iterator[Violation]:
    """An update older at its arrival than `max_staleness`, or than the memory if late, is `stale`, and no other is."""
    e.need_closed()
    limit = _most_stale(e)
    if limit is None:
        return
    times, jobs = e.steps["time_us"], e.jobs
    status, end, version = jobs["status"], jobs["end_us"], jobs["version"]
    least, most = (np.searchsorted(times, end, side) - version for side in ("left", "right"))
    too_old = np.isin(status, ("aggregated", "remembered")) & (least > limit)
    young = (status == "stale") & (most <= limit)
    if not e.ended:
        young &= most < limit  # the last step may be missing
    for i, more in first(too_old | young):
        wanted = f"stale jobs to be over {limit:g} steps old at their arrival, others not"
        yield Violation("jobs", i, wanted, f"{status[i]} at {least[i]} to {most[i]} steps", more)


def _most_stale(e: Evidence) -> float | None:
    """Return the steps by which an update may be stale and still be of use; None if there is no limit.

    In runs with `late = "history"` updates of the step itself are not stale, and late ones must fit the rule's memory.
    """
    of_pacing = math.inf if e.pacing.max_staleness is None else e.pacing.max_staleness
    of_rule = e.algorithm.needs.memory if e.pacing.late == "history" else math.inf
    limit = min(of_pacing, of_rule)
    return None if math.isinf(limit) else limit


def finished_transfers_moved_the_whole_payload(e: Evidence) -> Iterator[Violation]:
    """A job that ended a transfer moved all bytes of its payload, and any other job at most these."""
    jobs, work = e.jobs, e.costs.work
    for name, payload, done in (
        ("download_bytes", work.download_bytes, jobs["download_us"] >= 0),
        ("upload_bytes", work.upload_bytes, (jobs["phase"] == "") | e.arrived),
    ):
        moved, whole = jobs[name], payload[jobs["client"]]
        for i, more in first(np.where(done, moved != whole, (moved < 0) | (moved > whole))):
            wanted = f"{whole[i]} bytes" if done[i] else f"0 to {whole[i]} bytes"
            yield Violation("jobs", i, wanted, f"{name} = {moved[i]}", more)
