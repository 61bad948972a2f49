"""Invariants of the successive jobs of a client, and of the world's effect on them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, first
from fedsim.records.file_names import CLIENTS
from fedsim.worlds.job_outcomes import PHASES


def a_client_has_one_job_at_a_time(e: Evidence) -> Iterator[Violation]:
    """A client gets a job only when the server knows that the client's previous job has ended."""
    jobs, before, dispatch = e.jobs, e.before, e.jobs["dispatch_us"]
    free = e.seen_us[before]
    # The client of a lost job is available from the next instant on, unless a step ends the round at that time.
    waits = (jobs["status"][before] == "lost") & (jobs["attempt"] == 0)
    if e.pacing.cancels:
        waits &= free < e.step_us(jobs["version"][before])
    early = (dispatch < free) | (waits & (dispatch == free))
    for i, more in first((before >= 0) & early):
        wanted = f"client {jobs['client'][i]} to be free at {free[i]} us, for job {jobs['job'][i]}"
        yield Violation("jobs", i, wanted, f"a dispatch at {dispatch[i]} us", more)


def repeated_attempts_follow_a_loss(e: Evidence) -> Iterator[Violation]:
    """An `attempt` follows the loss of the client's previous attempt, when the server learns of it."""
    jobs, before, attempt = e.jobs, e.before, e.jobs["attempt"]
    follows = (
        (before >= 0)
        & (jobs["status"][before] == "lost")
        & (attempt[before] == attempt - 1)
        & (jobs["dispatch_us"] == jobs["end_us"][before] + e.dropout.notice_us)
    )
    for i, more in first((attempt > 0) & ~follows):
        client = jobs["client"][i]
        wanted = f"attempt {attempt[i]} of client {client} when its loss of the one before is noticed"
        yield Violation("jobs", i, wanted, f"job {jobs['job'][i]} at {jobs['dispatch_us'][i]} us", more)


def the_sample_count_of_a_client_is_constant(e: Evidence) -> Iterator[Violation]:
    """The number of training samples of a client stays the same."""
    samples = e.jobs["n_samples"]
    for i, more in first(((e.before >= 0) & (samples[e.before] != samples)) | (samples < 0)):
        wanted = f"as many samples as in the jobs of client {e.jobs['client'][i]} before"
        yield Violation("jobs", i, wanted, str(samples[i]), more)


def the_sample_counts_of_clients_are_those_of_the_tables(e: Evidence) -> Iterator[Violation]:
    """Each client that may train has a row in `clients.parquet`, with the sample count of its jobs and evaluations."""
    client, samples = e.samples["client"], e.samples["n_samples"]
    if len(client) != e.clients:
        yield Violation(CLIENTS, -1, f"a row for each of {e.clients} clients", f"{len(client)} rows")
        return
    for i, more in first(client != np.arange(e.clients)):
        yield Violation(CLIENTS, i, f"client {i}", f"client {client[i]}", more)
    of_train = e.evals["split"] == "train"
    for table, who, n in (
        ("evals", e.evals["client"][of_train], e.evals["n"][of_train]),
        ("jobs", e.jobs["client"], e.jobs["n_samples"]),
    ):
        recorded = np.full(e.everybody, -1)
        recorded[who] = n
        recorded = recorded[: e.clients]
        for i, more in first((recorded >= 0) & (samples != recorded)):
            wanted = f"{recorded[i]} samples of client {i}, as in {table}"
            yield Violation(CLIENTS, i, wanted, str(samples[i]), more)
    for i, more in first(~(samples >= 0)):
        yield Violation(CLIENTS, i, "at least 0 samples", str(samples[i]), more)


def clients_are_online_at_dispatch(e: Evidence) -> Iterator[Violation]:
    """A client is online at the dispatch of its job."""
    jobs = e.jobs
    for i, more in first(~e.online_jobs):
        wanted = f"client {jobs['client'][i]} online at {jobs['dispatch_us'][i]} us"
        yield Violation("jobs", i, wanted, f"offline, and it was given job {jobs['job'][i]}", more)


def work_while_offline_follows_dropout_leave(e: Evidence) -> Iterator[Violation]:
    """Work stops when its client leaves, or continues as `dropout.leave` says; a fault always ends it."""
    jobs, leave, rows = e.jobs, e.world.leave, np.flatnonzero(e.online_jobs)
    who, start, end = (jobs[name][rows] for name in ("client", "dispatch_us", "end_us"))
    limit = e.world.fault_us(who, start)
    if leave == "abort":
        limit = np.minimum(limit, e.world.leaves_us(who, start))
    wrongly = end > limit
    if leave in ("pause_resume", "end_instant"):
        at_end = e.world.online_at(who, np.maximum(end - 1, start)) | e.world.online_at(who, end)
        wrongly |= e.arrived[rows] & ~at_end
    for k, more in first(wrongly):
        i = int(rows[k])
        ending = f"end while its client is there ({leave}), by {limit[k]} us at the latest"
        recorded = f"{jobs['status'][i]} at {end[k]} us"
        yield Violation("jobs", i, f"job {jobs['job'][i]} to {ending}", recorded, more)


def jobs_do_their_drawn_share_of_local_steps(e: Evidence) -> Iterator[Violation]:
    """The share of its local steps that a job does is the drawn one, or with a deadline fewer whole epochs."""
    jobs, share = e.jobs, e.jobs["share"]
    drawn = e.costs.shares(jobs["client"], e.nths)
    fits = share == drawn
    if e.dropout.partial and e.pacing.deadline_us is not None:
        # Completeness may draw more than the usual epochs.
        most = math.ceil(drawn.max(initial=0) * e.costs.epochs)
        epochs = np.arange(1, most) / e.costs.epochs
        fits |= np.isin(share, epochs) & (share < drawn)
    for i, more in first(~fits):
        yield Violation("jobs", i, f"share {drawn[i]} of job {jobs['job'][i]}", str(share[i]), more)


def jobs_end_as_world_and_costs_determine(e: Evidence) -> Iterator[Violation]:
    """World and costs determine when each phase of a job ends, whether it is lost, and how many bytes it moved."""
    try:
        rows, fates = e.fates
    except TraceError as error:
        yield Violation("jobs", -1, "a world that knows what becomes of each job", str(error))
        return
    number, status = e.jobs["job"][rows], e.jobs["status"][rows]
    for name, want in (
        ("end_us", fates.end_us),
        ("download_us", fates.download_us),
        ("compute_us", fates.compute_us),
        ("phase", np.array(PHASES)[fates.phase]),
        ("download_bytes", fates.downloaded_bytes),
        ("upload_bytes", fates.uploaded_bytes),
    ):
        recorded = e.jobs[name][rows]
        for k, more in first(recorded != want):
            wanted = f"{name} = {want[k]} of job {number[k]}"
            yield Violation("jobs", int(rows[k]), wanted, f"{name} = {recorded[k]}", more)
    ok, stopped = e.arrived[rows], np.isin(status, ("late", "unfinished"))
    for k, more in first((ok != fates.ok) & ~(stopped & (ok <= fates.ok))):
        ending = "be lost" if status[k] != "lost" else "arrive"
        yield Violation("jobs", int(rows[k]), f"job {number[k]} to {ending}", str(status[k]), more)


def the_online_count_matches_the_world(e: Evidence) -> Iterator[Violation]:
    """`online` counts the clients that are online at a step."""
    times, recorded = e.steps["time_us"], e.steps["online"]
    if e.world.after_end == "error" and (times >= e.world.horizon_us).any():
        raise Unchecked("steps lie beyond the end of the trace")
    want = np.array([int(e.world.online(t).sum()) for t in times.tolist()], dtype=np.int64)
    for i, more in first(recorded != want):
        yield Violation("steps", i, f"{want[i]} clients online at {times[i]} us", str(recorded[i]), more)
