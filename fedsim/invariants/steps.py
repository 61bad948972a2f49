"""Invariants of steps, given the jobs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.engine.record_words import STEP_STATUSES
from fedsim.invariants.evidence import Evidence
from fedsim.invariants.finding import Violation, between, first
from fedsim.worlds.interval_index import NEVER

_CAUSES = ("full", "deadline", "drained")
_COUNTS = (
    "updates", "remembered", "evicted", "lost", "late", "nonfinite", "waits", "online", "in_flight"
)  # fmt: skip


def values_of_steps_are_valid(e: Evidence) -> Iterator[Violation]:
    """Steps count from 0 without a gap; status and cause are known words, and counts are at least 0."""
    steps = e.steps
    for i, more in first(steps["step"] != np.arange(len(steps))):
        yield Violation("steps", i, f"step {i}", str(steps["step"][i]), more)
    for name, words in (("status", STEP_STATUSES), ("cause", _CAUSES)):
        for i, more in first(~np.isin(steps[name], words)):
            wanted = f"one of {', '.join(words)} in {name}"
            yield Violation("steps", i, wanted, repr(str(steps[name][i])), more)
    for name in _COUNTS:
        for i, more in first(steps[name] < 0):
            yield Violation("steps", i, f"{name} of at least 0", str(steps[name][i]), more)


def steps_and_evaluations_are_in_order_of_time(e: Evidence) -> Iterator[Violation]:
    """Steps and evaluations are in order of virtual time, and none is after the end of the run."""
    limit = e.manifest.get("virtual_us")
    last = NEVER if limit is None else int(limit)
    for table in (e.steps, e.evals):
        times = table["time_us"]
        back = np.diff(times, prepend=times[:1]) < 0
        for i, more in first(back | (times < 0) | (times > last)):
            wanted = f"a time from {times[i - 1] if i else 0} to {last} us"
            yield Violation(table.name, i, wanted, str(times[i]), more)
    number, start, end = (e.jobs[name] for name in ("job", "dispatch_us", "end_us"))
    for i, more in first((end > last) | (start > last)):
        recorded = f"job {number[i]} from {start[i]} to {end[i]} us"
        yield Violation("jobs", i, f"a job that ends by {last} us", recorded, more)


def updates_counts_the_jobs_that_a_step_used(e: Evidence) -> Iterator[Violation]:
    """`updates` counts the jobs aggregated by a step, and `mean_staleness` is the mean of theirs."""
    e.need_closed()
    n, jobs = len(e.steps), e.jobs
    used = (jobs["step"] >= 0) & (jobs["step"] < n)
    count = np.bincount(jobs["step"][used], minlength=n)
    yield from between(e.steps["updates"], count, count, "updates {}, the number of such jobs")
    total = np.bincount(jobs["step"][used], jobs["staleness"][used], minlength=n)
    mean = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    recorded = e.steps["mean_staleness"]
    for i, more in first(~np.isclose(recorded, mean, rtol=1e-12, atol=0, equal_nan=True)):
        yield Violation("steps", i, f"mean_staleness {mean[i]:.6g}", f"{recorded[i]:.6g}", more)


def lost_late_and_nonfinite_jobs_are_counted(e: Evidence) -> Iterator[Violation]:
    """`lost`, `late` and `nonfinite` of steps agree with the jobs, up to the unknown order of events at equal times."""
    e.need_closed()
    n, jobs, version = len(e.steps), e.jobs, e.jobs["version"]
    early, over = version < n, e.step_us(version)
    is_of = {name: jobs["status"] == name for name in ("lost", "late", "nonfinite")}
    if e.pacing.cancels:  # a step ends all jobs that started from its version
        for name, mask in is_of.items():
            count = np.bincount(version[early & mask], minlength=n)
            yield from between(e.steps[name], count, count, name + " {}, the number of such jobs")
        return
    yield from _so_far(e, "lost", e.seen_us[is_of["lost"]])
    exact = e.pacing.late == "keep"
    yield from _so_far(e, "nonfinite", jobs["end_us"][is_of["nonfinite"]], exact)
    least = most = np.zeros(n, dtype=np.int64)
    if e.pacing.late != "keep":
        least = np.bincount(version[early & (e.seen_us > over)], minlength=n)
        most = np.bincount(version[early & (e.seen_us >= over)], minlength=n)
    yield from between(e.steps["late"], least, most, "late {}")


def _so_far(e: Evidence, name: str, ends: Ints, exact: bool = True) -> Iterator[Violation]:
    """Compare sums up to each step with the numbers of jobs that had ended before, and by, its time."""
    times, ends = e.steps["time_us"], np.sort(ends)
    least = np.searchsorted(ends, times, "left") * exact
    most = np.searchsorted(ends, times, "right")
    return between(np.cumsum(e.steps[name]), least, most, name + " adding up to {} by then")


def cause_and_status_of_a_step_follow_from_its_updates(e: Evidence) -> Iterator[Violation]:
    """A full buffer, a deadline or the end of all jobs causes a step; fewer updates than `minimum` make it void."""
    e.need_closed()
    steps, pacing, most = e.steps, e.pacing, e.pacing.most_updates
    cause, arrived = steps["cause"], steps["updates"] + steps["nonfinite"]
    full, due, drained = (cause == word for word in _CAUSES)
    wrongly = full & ((arrived != most) | (pacing.buffer is None))
    # without a buffer all jobs with a place may arrive; with one, the last arrival makes the step `full`
    wrongly |= ~full & (arrived > most - (pacing.buffer is not None))
    for i, more in first(wrongly):
        wanted = f"{most} updates" if full[i] else f"fewer than the {most} of a full buffer"
        yield Violation("steps", i, wanted, f"{arrived[i]} ({cause[i]})", more)
    for i, more in first((due & (pacing.deadline_us is None)) | (drained & (pacing.refill == "arrival"))):
        yield Violation("steps", i, "a cause that this pacing has", str(cause[i]), more)
    keep, too_few = pacing.late == "keep", arrived < pacing.minimum
    status, void = steps["status"], steps["status"] == "void"
    for i, more in first(void != (~full & too_few & (not keep))):
        wanted = f"void with fewer than {pacing.minimum} updates, and not otherwise"
        yield Violation("steps", i, wanted, f"{status[i]} with {arrived[i]}", more)
    for i, more in first(due & too_few & keep):
        wanted = f"a deadline to wait for {pacing.minimum} updates"
        yield Violation("steps", i, wanted, str(arrived[i]), more)
    for i, more in first((status == "empty") != ((steps["updates"] == 0) & ~void)):
        recorded = f"{status[i]} with {steps['updates'][i]} updates"
        yield Violation("steps", i, "empty without updates, and not otherwise", recorded, more)


def void_jobs_arrived_for_a_void_step(e: Evidence) -> Iterator[Violation]:
    """Jobs that are `void` arrived for a void step, and were fewer than `minimum`."""
    e.need_closed()
    jobs, n = e.jobs, len(e.steps)
    void_jobs = (jobs["status"] == "void") & (jobs["version"] < n)
    count = np.bincount(jobs["version"][void_jobs], minlength=n)
    void = e.steps["status"] == "void"
    for i, more in first((count > 0) & (~void | (count >= e.pacing.minimum))):
        wanted = f"void jobs, fewer than {e.pacing.minimum}, for a void step only"
        yield Violation("steps", i, wanted, f"{count[i]} for a step that is {e.steps['status'][i]}", more)


def deadline_steps_occur_exactly_at_the_deadline(e: Evidence) -> Iterator[Violation]:
    """A deadline starts at the dispatch of the first job of a cohort, or at the previous step at the earliest."""
    e.need_closed()
    after = e.pacing.deadline_us
    if after is None:
        return
    times, cause = e.steps["time_us"], e.steps["cause"]
    n, due = len(times), cause == "deadline"
    if e.pacing.late == "keep":
        since = np.append(0, times[:-1])
        for i, more in first(due & (times - after < since)):
            wanted = f"a deadline at {since[i] + after} us at the earliest"
            yield Violation("steps", i, wanted, f"{times[i]} us", more)
        return
    start = np.full(n + 2, NEVER)
    np.minimum.at(start, np.minimum(e.jobs["version"], n + 1), e.jobs["dispatch_us"])
    ends = start[:n] + after
    forked = np.arange(n) == e.changed_at  # a fork's first deadline begins with it
    for i, more in first(~forked & np.where(due, times != ends, (times > ends) & (start[:n] < NEVER))):
        wanted = ("at" if due[i] else "by") + f" the deadline, {ends[i]} us"
        yield Violation("steps", i, wanted, f"{times[i]} us ({cause[i]})", more)


def norms_and_cosines_of_steps_are_in_range(e: Evidence) -> Iterator[Violation]:
    """Norms are at least 0 and finite, cosines from -1 to 1, and a step that is `still` has no length."""
    e.need_training()
    steps, status, length = e.steps, e.steps["status"], e.steps["direction_norm"]
    bad = {"direction_norm": ~np.isfinite(length) | (length < 0)}
    for name in ("mean_norm", "step_length", "kkt_residual", "block_conflicts_mean"):
        bad[name] = steps[name] < 0
    for name in ("smallest_cosine", "smallest_absent_cosine"):
        bad[name] = np.abs(steps[name]) > 1 + 1e-6
    for name, mask in bad.items():
        for i, more in first(mask):
            yield Violation("steps", i, f"a {name} in its range", str(steps[name][i]), more)
    for i, more in first((status != "applied") & (length != 0)):
        yield Violation("steps", i, f"no length of a step that is {status[i]}", str(length[i]), more)
    n, pairs = steps["updates"], steps["conflicts"]
    for name, most in (
        ("conflicts", n * (n - 1) // 2),
        ("model_conflicts", n),
        ("absent_conflicts", np.full(len(n), e.clients)),
    ):
        count = steps[name]
        for i, more in first((count > most) | (count < -1) | ((count < 0) != (pairs < 0))):
            wanted = f"0 to {most[i]}, or -1 without inner products"
            yield Violation("steps", i, wanted, f"{name} = {count[i]}", more)
