"""Invariants of steps, given the jobs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedsim.engine.record_words import STEP_STATUSES
from fedsim.invariants.evidence import Evidence, Ints
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.worlds.interval_index import NEVER

_CAUSES = ("full", "deadline", "drained")
_COUNTS = (
    "updates", "remembered", "evicted", "lost", "late", "nonfinite", "waits", "online", "in_flight"
)  # fmt: skip


def step_values(e: Evidence) -> Iterator[Violation]:
    """Steps count from 0 without a gap; status and cause are known words, and counts are at least 0."""
    steps = e.steps
    yield from wrong(
        "steps",
        steps["step"] != np.arange(len(steps)),
        lambda i: f"step {i}",
        lambda i: str(steps["step"][i]),
    )
    for name, words in (("status", STEP_STATUSES), ("cause", _CAUSES)):
        yield from wrong(
            "steps",
            ~np.isin(steps[name], words),
            f"one of {', '.join(words)} in {name}",
            lambda i, n=name: repr(str(steps[n][i])),  # type: ignore[misc]
        )
    for name in _COUNTS:
        yield from wrong(
            "steps",
            steps[name] < 0,
            f"{name} of at least 0",
            lambda i, n=name: str(steps[n][i]),  # type: ignore[misc]
        )


def time_never_goes_back(e: Evidence) -> Iterator[Violation]:
    """Steps and evaluations are in order of virtual time, and none is after the end of the run."""
    limit = e.manifest.get("virtual_us")
    last = NEVER if limit is None else int(limit)
    for table in (e.steps, e.evals):
        times = table["time_us"]
        back = np.diff(times, prepend=times[:1]) < 0
        yield from wrong(
            table.name,
            back | (times < 0) | (times > last),
            lambda i, t=times: f"a time from {t[i - 1] if i else 0} to {last} us",  # type: ignore[misc]
            lambda i, t=times: str(t[i]),  # type: ignore[misc]
        )
    yield from wrong(
        "jobs",
        (e.jobs["end_us"] > last) | (e.jobs["dispatch_us"] > last),
        f"a job that ends by {last} us",
        lambda i: f"job {e.jobs['job'][i]} from {e.jobs['dispatch_us'][i]} to {e.jobs['end_us'][i]} us",
    )


def updates_are_the_jobs_that_a_step_used(e: Evidence) -> Iterator[Violation]:
    """`updates` counts the jobs aggregated by a step, and `mean_staleness` is the mean of theirs."""
    e.need_closed()
    n, jobs = len(e.steps), e.jobs
    used = (jobs["step"] >= 0) & (jobs["step"] < n)
    count = np.bincount(jobs["step"][used], minlength=n)
    yield from _counted("updates", e.steps["updates"], count)
    total = np.bincount(jobs["step"][used], jobs["staleness"][used], minlength=n)
    mean = np.divide(total, count, out=np.full(n, np.nan), where=count > 0)
    recorded = e.steps["mean_staleness"]
    yield from wrong(
        "steps",
        ~np.isclose(recorded, mean, rtol=1e-12, atol=0, equal_nan=True),
        lambda i: f"mean_staleness {mean[i]:.6g}",
        lambda i: f"{recorded[i]:.6g}",
    )


def lost_late_and_nonfinite_jobs_are_counted(e: Evidence) -> Iterator[Violation]:
    """`lost`, `late` and `nonfinite` of steps agree with the jobs, up to the unknown order of events at equal times."""
    e.need_closed()
    n, jobs, times = len(e.steps), e.jobs, e.steps["time_us"]
    status, version = jobs["status"], jobs["version"]
    early = version < n
    if e.pacing.cancels:  # a step ends all jobs that started from its version
        for name in ("lost", "late", "nonfinite"):
            count = np.bincount(version[early & (status == name)], minlength=n)
            yield from _counted(name, e.steps[name], count)
        return
    yield from _so_far("lost", e.steps["lost"], times, e.seen_us[status == "lost"])
    exact = e.pacing.late == "keep"
    yield from _so_far("nonfinite", e.steps["nonfinite"], times, jobs["end_us"][status == "nonfinite"], exact)
    over = e.step_us(version)
    least, most = (
        np.bincount(version[early & mask], minlength=n) for mask in (e.seen_us > over, e.seen_us >= over)
    )
    if e.pacing.late == "keep":
        least = most = np.zeros(n, dtype=np.int64)
    recorded = e.steps["late"]
    yield from wrong(
        "steps",
        (recorded < least) | (recorded > most),
        lambda i: f"late {_range(least[i], most[i])}",
        lambda i: str(recorded[i]),
    )


def _counted(name: str, recorded: Ints, count: Ints) -> Iterator[Violation]:
    yield from wrong(
        "steps",
        recorded != count,
        lambda i: f"{name} {count[i]}, the number of such jobs",
        lambda i: str(recorded[i]),
    )


def _so_far(name: str, recorded: Ints, times: Ints, ends: Ints, exact: bool = True) -> Iterator[Violation]:
    """Compare sums up to each step with the numbers of jobs that had ended before, and by, its time."""
    total, ends = np.cumsum(recorded), np.sort(ends)
    least = np.searchsorted(ends, times, "left") * exact
    most = np.searchsorted(ends, times, "right")
    yield from wrong(
        "steps",
        (total < least) | (total > most),
        lambda i: f"{name} adding up to {_range(least[i], most[i])} by then",
        lambda i: str(total[i]),
    )


def _range(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def steps_have_their_cause(e: Evidence) -> Iterator[Violation]:
    """A full buffer, a deadline or the end of all jobs causes a step; fewer updates than `minimum` make it void."""
    e.need_closed()
    steps, pacing = e.steps, e.pacing
    cause, arrived, most = steps["cause"], steps["updates"] + steps["nonfinite"], pacing.most_updates
    full, drained = cause == "full", cause == "drained"
    wrongly = (full & (arrived != most)) | (full & (pacing.buffer is None))
    # without a buffer all jobs with a place may arrive; with one, the last arrival makes the step `full`
    wrongly |= ~full & (arrived > most - (pacing.buffer is not None))
    yield from wrong(
        "steps",
        wrongly,
        lambda i: f"{most} updates" if full[i] else f"fewer than the {most} of a full buffer",
        lambda i: f"{arrived[i]} ({cause[i]!s})",
    )
    yield from wrong(
        "steps",
        ((cause == "deadline") & (pacing.deadline_us is None)) | (drained & (pacing.refill == "arrival")),
        "a cause that this pacing has",
        lambda i: str(cause[i]),
    )
    yield from _void_and_empty(e, arrived)


def _void_and_empty(e: Evidence, arrived: Ints) -> Iterator[Violation]:
    """Check which steps are void or empty; `arrived` counts the updates of each step, those left out included."""
    steps, pacing = e.steps, e.pacing
    cause, status = steps["cause"], steps["status"]
    full, void = cause == "full", status == "void"
    too_few = ~full & (arrived < pacing.minimum) & ((pacing.late != "keep") | (cause == "deadline"))
    yield from wrong(
        "steps",
        void != (too_few & (pacing.late != "keep")),
        lambda i: f"void with fewer than {pacing.minimum} updates, and not otherwise",
        lambda i: f"{status[i]!s} with {arrived[i]}",
    )
    if pacing.late == "keep":
        yield from wrong(
            "steps", too_few, f"a deadline to wait for {pacing.minimum} updates", lambda i: f"{arrived[i]}"
        )
    yield from wrong(
        "steps",
        (status == "empty") != ((steps["updates"] == 0) & ~void),
        "empty without updates, and not otherwise",
        lambda i: f"{status[i]!s} with {steps['updates'][i]} updates",
    )


def void_updates_are_those_of_a_void_step(e: Evidence) -> Iterator[Violation]:
    """Jobs that are `void` arrived for a void step, and were fewer than `minimum`."""
    e.need_closed()
    jobs, n = e.jobs, len(e.steps)
    void_jobs = (jobs["status"] == "void") & (jobs["version"] < n)
    count = np.bincount(jobs["version"][void_jobs], minlength=n)
    void = e.steps["status"] == "void"
    yield from wrong(
        "steps",
        (count > 0) & (~void | (count >= e.pacing.minimum)),
        lambda i: f"void jobs, fewer than {e.pacing.minimum}, for a void step only",
        lambda i: f"{count[i]} for a step that is {e.steps['status'][i]!s}",
    )


def deadlines_are_kept(e: Evidence) -> Iterator[Violation]:
    """A deadline starts at the dispatch of the first job of a cohort, or at the previous step at the earliest."""
    e.need_closed()
    after = e.pacing.deadline_us
    if after is None:
        return
    times, due = e.steps["time_us"], e.steps["cause"] == "deadline"
    if e.pacing.late == "keep":
        since = np.concatenate([[0], times[:-1]])
        yield from wrong(
            "steps",
            due & (times - after < since),
            lambda i: f"a deadline at {since[i] + after} us at the earliest",
            lambda i: f"{times[i]} us",
        )
        return
    first = np.full(len(times) + 2, NEVER)
    np.minimum.at(first, np.minimum(e.jobs["version"], len(times) + 1), e.jobs["dispatch_us"])
    ends = first[: len(times)] + after
    anew = np.arange(len(times)) == e.changed_at  # a fork's first deadline begins with it
    yield from wrong(
        "steps",
        ~anew & np.where(due, times != ends, (times > ends) & (first[: len(times)] < NEVER)),
        lambda i: ("at" if due[i] else "by") + f" the deadline, {ends[i]} us",
        lambda i: f"{times[i]} us ({e.steps['cause'][i]!s})",
    )


def numbers_of_a_step_are_in_range(e: Evidence) -> Iterator[Violation]:
    """Norms are at least 0 and finite, cosines from -1 to 1, and a step that is `still` has no length."""
    steps, status = e.steps, e.steps["status"]
    e.need_training()
    bad: dict[str, NDArray[np.bool_]] = {"direction_norm": ~np.isfinite(steps["direction_norm"])}
    for name in ("direction_norm", "mean_norm", "step_length", "kkt_residual", "block_conflicts_mean"):
        bad[name] = bad.get(name, np.zeros(len(steps), dtype=bool)) | (steps[name] < 0)
    for name in ("smallest_cosine", "smallest_absent_cosine"):
        bad[name] = np.abs(steps[name]) > 1 + 1e-6
    for name, mask in bad.items():
        yield from wrong(
            "steps",
            mask,
            f"a {name} in its range",
            lambda i, n=name: str(steps[n][i]),  # type: ignore[misc]
        )
    length = steps["direction_norm"]
    moved = np.isin(status, ("applied", "still"))
    yield from wrong(
        "steps",
        ((status == "still") & (length != 0)) | (~moved & (length != 0)),
        lambda i: f"no length of a step that is {status[i]!s}",
        lambda i: str(length[i]),
    )
    yield from _conflict_counts(e)


def _conflict_counts(e: Evidence) -> Iterator[Violation]:
    """Check that counts of conflicts lie between 0 and the numbers of pairs, updates and clients, or are all -1."""
    steps = e.steps
    n, pairs = steps["updates"], steps["conflicts"]
    for name, most in (
        ("conflicts", n * (n - 1) // 2),
        ("model_conflicts", n),
        ("absent_conflicts", np.full(len(n), e.clients)),
    ):
        yield from wrong(
            "steps",
            (steps[name] > most) | (steps[name] < -1) | ((steps[name] < 0) != (pairs < 0)),
            lambda i, m=most: f"0 to {m[i]}, or -1 without inner products",  # type: ignore[misc]
            lambda i, v=name: f"{v} = {steps[v][i]}",  # type: ignore[misc]
        )


INVARIANTS = (
    invariant(step_values, basic=True),
    invariant(time_never_goes_back),
    invariant(updates_are_the_jobs_that_a_step_used),
    invariant(lost_late_and_nonfinite_jobs_are_counted),
    invariant(steps_have_their_cause),
    invariant(void_updates_are_those_of_a_void_step),
    invariant(deadlines_are_kept),
    invariant(numbers_of_a_step_are_in_range),
)
