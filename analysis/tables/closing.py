"""Summary tables of finished runs: accuracy, fairness, lost jobs and time, one row per run; where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from fedsim.analysis.opening.run import UNSEEN_SPLITS, Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown
from fedsim.common.units import HOUR_US
from fedsim.engine.record_words import PERSONAL

ACCURACIES = {
    "mean %": "mean_percent",
    "std %": "std_percent",
    "worst 5 %": "worst5_percent",
    "worst 10 %": "worst10_percent",
    "best 5 %": "best5_percent",
    "angle rad": "angle_rad",
}
"""Heading of each column that is a metric of the last evaluation."""
_FLOOR = "std_floor_percent"
_NOISY = 0.5
"""A spread is said to be noisy if an equal model would show more than this share of it."""
_NAMED = 3
"""Most runs in one note; the others are counted."""
HEADINGS = ("run", *ACCURACIES, "steps", "jobs lost", "late", "empty steps", "virt. h", "wall s")


@dataclass(frozen=True, slots=True)
class Closing:
    """The final numbers of one run; metrics are NaN if the run was never evaluated on the split."""

    label: str
    status: str
    metrics: dict[str, float]
    """By name, those of `ACCURACIES` and `std_floor_percent`."""
    steps: int
    jobs: int
    lost: int
    late: int
    empty_steps: int
    virtual_us: int
    wall_s: float
    warning: str | None = None
    """Why the numbers say nothing about learning, as the manifest has it."""

    def cells(self) -> list[str]:
        """Return the row as texts, in the order of `HEADINGS`; a dash stands for a missing number."""
        share = f" ({100 * self.lost / self.jobs:.0f}%)" if self.jobs else ""
        counts = [str(self.steps), f"{self.lost}{share}", str(self.late), str(self.empty_steps)]
        remarks = [self.status] * (self.status != "done") + [self.warning or ""] * bool(self.warning)
        label = f"{self.label} [{', '.join(remarks)}]" if remarks else self.label
        hours = self.virtual_us / HOUR_US
        return [label, *self.accuracies(), *counts, _brief(hours, 2), _brief(self.wall_s, 1)]

    def accuracies(self) -> list[str]:
        """Return the metrics as texts, in the order of `ACCURACIES`."""
        return [fixed(self.metrics[m], digits_of(m)) for m in ACCURACIES.values()]


def with_status(run: Run) -> str:
    """Return the label of a run, with its status in brackets unless it is done."""
    return run.label if run.done else f"{run.label} [{run.status}]"


@arguments.checked
def closing(run: Run, split: str | None = None) -> Closing:
    """Return the final numbers of one run, counted from its tables."""
    evaluations = run.evaluations(split)
    names = [*ACCURACIES.values(), _FLOOR]
    jobs, steps = word_counts(run.jobs["status"]), word_counts(run.steps["status"])
    return Closing(
        label=run.label,
        status=run.status,
        metrics=evaluations[-1].summary(names) if evaluations else dict.fromkeys(names, math.nan),
        steps=len(run.steps),
        jobs=len(run.jobs),
        lost=jobs.get("lost", 0),
        late=jobs.get("late", 0),
        empty_steps=steps.get("empty", 0),
        virtual_us=run.virtual_us,
        wall_s=run.wall_s,
        warning=run.manifest.get("warning"),
    )


@arguments.checked
def closing_table(runs: Sequence[Run], split: str | None = None) -> Table:
    """Return a table for the terminal with one row per run: accuracy, fairness, lost jobs and time.

    Without a `split`, rows below a run show the clients' own models and its unseen clients. The table fits 80 columns
    with short labels; long labels and the share of lost jobs wrap, other numbers do not.
    """
    splits = ", ".join(dict.fromkeys(split or run.split for run in runs))
    caption = f"accuracy per client on the {splits} split; spread and tails are over clients"
    rows: list[list[str]] = []
    ends = [closing(run, split) for run in runs]
    for run, end in zip(runs, ends, strict=True):
        rows.append(end.cells())
        if split is None:
            below = {run.split + PERSONAL: "own", **UNSEEN_SPLITS}
            recorded = [name for name in below if name in run.recorded_splits]
            rows += ([f" {below[name]}", *closing(run, name).accuracies()] for name in recorded)
    labels = {row[0] for row in rows}
    if " own" in labels:
        caption += "; own: each client's personal model"
    if " unseen" in labels:
        caption += "; unseen: clients that never train; adapted: after they adapted the model"
    if note := noise_note(ends):
        caption += f"; {note}"
    return _table(rows, caption)


def _table(rows: Sequence[Sequence[str]], caption: str) -> Table:
    """Return rows of `HEADINGS` as a table."""
    table = ruled_table(caption=caption)
    for heading in HEADINGS:
        wraps = heading in ("run", "jobs lost")
        justify: Literal["left", "right"] = "left" if heading == "run" else "right"
        table.add_column(heading.replace(" ", "\n", 1), justify=justify, overflow="fold", no_wrap=not wraps)
    for label, *numbers in rows:
        table.add_row(shown(label), *numbers)
    return table


def noise_note(ends: Sequence[Closing]) -> str:
    """Return how much std the test sets alone would show, for runs where that is over half of the std; empty for none.

    It compares `std_percent` with `std_floor_percent`, in points.
    """
    pairs = ((end.label, end.metrics[_FLOOR], end.metrics["std_percent"]) for end in ends)
    noisy = [(label, floor, seen) for label, floor, seen in pairs if floor > _NOISY * seen > 0]
    if not noisy:
        return ""
    (first, floor, seen), others = noisy[0], noisy[1:]
    note = f"a perfectly equal model would show a std of {floor:.1f} points on these test sets; observed: {seen:.1f}"
    if len(ends) == 1:
        return note
    parts = [
        f"{note} with {first}",
        *(f"{f:.1f} of {s:.1f} with {name}" for name, f, s in others[: _NAMED - 1]),
    ]
    return ", ".join(parts + [f"{len(noisy) - _NAMED} more"] * (len(noisy) > _NAMED))


def unseen_splits(run: Run) -> list[str]:
    """Return the recorded splits of clients that never train, that of the global model first."""
    return [name for name in UNSEEN_SPLITS if name in run.recorded_splits]


@arguments.checked
def profile_table(run: Run) -> Table:
    """Return a table for the terminal of where the wall time of a run went: a block for each kind of process.

    The parts of a block add up to its first row: the run's wall time for the driver, the sum over all workers for
    workers.
    """
    table = ruled_table(f"where the time went: {run.label}", padding=1)
    for heading in ("part", "seconds", "share", "ms/step", "us/job"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    jobs = run.manifest.get("jobs")
    steps, n_jobs = run.manifest.get("steps") or 0, sum(jobs.values()) if isinstance(jobs, dict) else 0
    for name, parts in profile(run).items():
        total = sum(parts.values())
        table.add_row(shown(name), *_spent(total, total, steps, n_jobs), style="bold")
        for part, seconds in sorted(parts.items(), key=lambda each: -each[1]):
            table.add_row(shown(f"  {part}"), *_spent(seconds, total, steps, n_jobs))
    return table


@arguments.checked
def profile(run: Run) -> dict[str, dict[str, float]]:
    """Return the seconds by part of each kind of process of a run: `driver`, and with Ray `server` and `2 workers`.

    Time that no part covers is `engine` in the driver and `idle` in the others, from their start in this run. Empty if
    the manifest has no such times.
    """
    recorded = run.manifest.get("wall_s")
    if not isinstance(recorded, dict) or math.isnan(run.wall_s):
        return {}
    seconds = {"driver": {part: s for part, s in recorded.items() if part != "total"}}
    workers = run.manifest.get("workers_wall_s") or []
    if workers:
        name = f"{len(workers)} workers" if len(workers) > 1 else "worker"
        seconds |= {"server": run.manifest.get("server_wall_s") or {}, name: _summed(workers)}
    return seconds


def _summed(processes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Add up the seconds of several processes, part by part."""
    names = sorted({name for parts in processes for name in parts})
    return {name: math.fsum(parts.get(name, 0.0) for parts in processes) for name in names}


def _spent(seconds: float, total: float, steps: int, jobs: int) -> list[str]:
    share = f"{100 * seconds / total:.1f} %" if total else "–"
    per_step, per_job = (
        (1e3 * seconds / steps if steps else math.nan),
        (1e6 * seconds / jobs if jobs else math.nan),
    )
    return [f"{seconds:.3f}", share, fixed(per_step, 3), fixed(per_job, 1)]


def digits_of(metric: str) -> int:
    """Return the number of decimals of a metric of `ACCURACIES` in tables: percent have two, radians three."""
    return 3 if metric == "angle_rad" else 2


def fixed(value: float, digits: int, sign: str = "") -> str:
    """Write a number with `digits` decimals; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:{sign}.{digits}f}"


def _brief(value: float, digits: int) -> str:
    return fixed(value, digits if value < 100 else 0)
