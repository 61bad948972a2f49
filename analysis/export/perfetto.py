"""Export the virtual timeline of a run for Perfetto: a microsecond of the trace is one of virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.errors import FolderError
from fedsim.common.files import write_atomically
from fedsim.common.paths import as_path
from fedsim.common.units import show_us
from fedsim.records.chrome_trace import ChromeTrace, writing

SERVER = (1, 1)
"""Process and thread ids of steps and evaluations."""
CLIENTS, FIRST_CLIENT = 2, 10
"""Process id of the clients, and thread id of client 0; client n has thread id 10 + n."""
COLOURS = {
    "aggregated": "good",
    "remembered": "olive",
    "late": "bad",
    "lost": "terrible",
    "stale": "bad",
    "void": "bad",
    "nonfinite": "terrible",
    "unfinished": "grey",
}
"""Colours by status of a job for Chrome's older viewer; Perfetto derives its own from a span's name."""
_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Exported:
    """Numbers of clients, jobs, steps and evaluations in an exported trace."""

    clients: int
    jobs: int
    steps: int
    evaluations: int


@arguments.checked
def export_perfetto(
    run: Run, out: Path | str, *, clients: int | None = None, from_us: int = 0, to_us: int | None = None
) -> Exported:
    """Write each client's jobs, phase by phase, and the server's steps and evaluations on the axis of virtual time.

    Args:
        clients: number of clients to write, those with the most jobs; all by default.
        from_us, to_us: the stretch to write: whole jobs that overlap it, and steps and evaluations within it.

    Raises FolderError if the stretch has neither a job nor a step.
    """
    end_us = np.iinfo(np.int64).max if to_us is None else to_us
    if end_us < from_us:
        raise FolderError(
            f"{run.folder}: expected a stretch of time, found one from {show_us(from_us)} to {show_us(end_us)}"
        )
    jobs = _chosen(_overlapping(run.jobs, from_us, end_us), clients)
    steps = run.steps.filter(_within(run.steps["time_us"], from_us, end_us))
    evaluations = [e for e in run.evaluations() if from_us <= e.time_us <= end_us]
    if not len(jobs) and not len(steps):
        raise FolderError(
            f"{run.folder}: no job and no step to write, of {len(run.jobs):,} and {len(run.steps):,}"
        )
    write_atomically(as_path(out, "out"), lambda beside: _write(beside, run, jobs, steps, evaluations))
    return Exported(len(np.unique(jobs["client"].to_numpy())), len(jobs), len(steps), len(evaluations))


def _write(out: Path, run: Run, jobs: pa.Table, steps: pa.Table, evaluations: Sequence[Evaluation]) -> None:
    with writing(out, {"run": run.label, "time": "virtual"}) as trace:
        trace.process(SERVER[0], "server")
        trace.thread(*SERVER, "steps")
        trace.process(CLIENTS, "clients")
        for client in np.unique(jobs["client"].to_numpy()).tolist():
            name = f", {run.names[client]}" if run.names else ""
            trace.thread(CLIENTS, FIRST_CLIENT + client, f"client {client}{name}")
        for batch in steps.to_batches(max_chunksize=_BATCH):
            _write_steps(trace, batch)
        for evaluation in evaluations:
            _write_evaluation(trace, evaluation)
        for batch in jobs.to_batches(max_chunksize=_BATCH):
            _write_jobs(trace, batch)


def _within(times: pa.ChunkedArray, from_us: int, to_us: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(times, from_us), pc.less_equal(times, to_us))


def _overlapping(jobs: pa.Table, from_us: int, to_us: int) -> pa.Table:
    started = pc.less_equal(jobs["dispatch_us"], to_us)
    return jobs.filter(pc.and_(started, pc.greater_equal(jobs["end_us"], from_us)))


def _chosen(jobs: pa.Table, clients: int | None) -> pa.Table:
    """Return the jobs of the clients with the most jobs; ties go to the lower number."""
    counts = np.bincount(jobs["client"].to_numpy())
    if clients is None or clients >= np.count_nonzero(counts):
        return jobs
    most = np.argsort(-counts, kind="stable")[:clients]
    return jobs.filter(pc.is_in(jobs["client"], value_set=pa.array(most, pa.int32())))


def _write_jobs(trace: ChromeTrace, batch: pa.RecordBatch) -> None:
    """Write a span for each phase that a job reached, with the job's status in its name, which decides its colour."""
    numbers = ("job", "client", "version", "step", "staleness", "n_samples")
    about = zip(*(batch[name].to_pylist() for name in numbers), strict=True)
    status = batch["status"].cast(pa.string()).to_pylist()
    for values, ended, spans in zip(about, status, _phases(batch), strict=True):
        job, client, version, step, staleness, n_samples = values
        args = {
            "job": job,
            "version": version,
            "step": step,
            "staleness": staleness,
            "n_samples": n_samples,
        }
        for phase, start, stop in spans:
            track, name = (CLIENTS, FIRST_CLIENT + client), f"{phase} {ended}"
            trace.span(track, name, start, stop - start, cat=phase, cname=COLOURS[ended], args=args)


def _phases(batch: pa.RecordBatch) -> Iterator[list[tuple[str, int, int]]]:
    """Yield for each job the phases that it reached, with their starts and ends."""
    times: list[Ints] = [
        batch[name].to_numpy() for name in ("dispatch_us", "download_us", "compute_us", "end_us")
    ]
    for dispatch, download, compute, end in zip(*(column.tolist() for column in times), strict=True):
        if download < 0:
            yield [("download", dispatch, end)]
        elif compute < 0:
            yield [("download", dispatch, download), ("compute", download, end)]
        else:
            yield [
                ("download", dispatch, download),
                ("compute", download, compute),
                ("upload", compute, end),
            ]


def _write_steps(trace: ChromeTrace, steps: pa.RecordBatch) -> None:
    """Write an instant for each step, and the numbers of clients online and jobs in flight as counters."""
    columns = ("cause", "updates", "remembered", "lost", "late", "mean_staleness", "direction_norm")
    for step in steps.select(["step", "time_us", "status", "online", "in_flight", *columns]).to_pylist():
        name = f"step {step['step']}" + ("" if step["status"] == "applied" else f" {step['status']}")
        trace.instant(SERVER, name, step["time_us"], _known({key: step[key] for key in columns}))
        trace.counter(
            SERVER,
            "clients",
            step["time_us"],
            {"online": step["online"], "in flight": step["in_flight"]},
        )


def _write_evaluation(trace: ChromeTrace, evaluation: Evaluation) -> None:
    """Write an instant for an evaluation, and the mean accuracy as a curve."""
    measured = _known(evaluation.summary(("mean_percent", "std_percent", "worst10_percent")))
    trace.instant(
        SERVER, f"evaluation {evaluation.split}", evaluation.time_us, {"step": evaluation.step} | measured
    )
    if "mean_percent" in measured:
        trace.counter(SERVER, "accuracy", evaluation.time_us, {"mean %": measured["mean_percent"]})


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without NaN and infinities, which JSON cannot express."""
    return {k: v for k, v in values.items() if not (isinstance(v, float) and not math.isfinite(v))}
