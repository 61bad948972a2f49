"""What makes the numbers of runs doubtful: early ends, short worlds, extreme weights, updates left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow.parquet as pq

from fedsim.analysis.opening.evaluation import on_common_clients
from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.analysis.report.sentences import listed
from fedsim.analysis.statistics.waste import USED
from fedsim.common.arrays import Floats
from fedsim.common.units import HOUR_US, US, show_us
from fedsim.records.file_names import WORLD

EXTREME_WEIGHT = 1e4
"""Above this largest weight of a step, rounding errors of the updates decide its direction."""
_SAME = 0.01
"""Ends that differ by less than this share are equal."""
_FEW = 3
"""Up to so many runs are named one by one."""
_LAST = 6
"""Evaluations at the end of a run that show how much its accuracy still moves."""
_ENOUGH = 3
"""Updates per client from which on few have no part by chance: 5 % of those that are chosen uniformly."""
_EARLY = {
    "wall": "was ended by the wall clock, so another machine ends elsewhere",
    "world": "ended early, when nothing more could happen in its world",
}


def examine(run: Run) -> tuple[str, ...]:
    """Return what is doubtful about a run: a text for each check, empty where nothing is."""
    return tuple(check(run) for check, _ in _CHECKS)


def doubts(examined: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield a clause for each doubt about runs, from what `examine` says of each by name."""
    for i, (check, several) in enumerate(_CHECKS):
        found = {name: texts[i] for name, texts in examined.items() if texts[i]}
        if len(found) > _FEW:
            yield f"{len(found)} of {len(examined)} runs {several}"
        elif check is _absent and len(set(found.values())) == 1:  # the usual case: the world leaves them out
            yield f"{listed(list(found))} {next(iter(found.values()))}"
        else:
            yield from (f"{name} {text}" for name, text in found.items())


def last_changes(run: Run, statistic: Callable[[Floats], float]) -> Floats:
    """Return by how much a statistic of accuracies [K] changes between the last evaluations; empty if they are few."""
    last = [e.accuracy[~np.isnan(e.accuracy)] for e in on_common_clients(run.evaluations()[-_LAST:])]
    values = [statistic(accuracy) for accuracy in last if len(accuracy)]
    return np.abs(np.diff(values)) if len(values) >= _LAST else np.zeros(0)


def _incomplete(run: Run) -> str:
    if run.done:
        return ""
    error = run.manifest.get("error")
    return f"is not complete ({run.status}{f': {error}' if error else ''})"


def _early(run: Run) -> str:
    return _EARLY.get(str(run.manifest.get("ended_by")), "") if run.done else ""


def _never_evaluated(run: Run) -> str:
    return "" if run.evaluations() else f"was never evaluated on the {run.split} split"


def _outlived(run: Run) -> str:
    """Return by how much a run was longer than its world, which then repeats or stays as it ended."""
    path = run.folder / WORLD
    try:
        metadata = pq.read_schema(path).metadata or {}
        horizon_us = int(metadata[b"fedsim.horizon_us"])
    except (OSError, ValueError, KeyError):  # the figure of participation says what is wrong with the file
        return ""
    if run.virtual_us <= horizon_us:
        return ""
    return f"ran for {hours(run.virtual_us)} in a world of {hours(horizon_us)}"


def _learned_nothing(run: Run) -> str:
    warning = run.manifest.get("warning")
    return f"says nothing about learning ({warning})" if warning else ""


def _nonfinite(run: Run) -> str:
    left_out = word_counts(run.jobs["status"]).get("nonfinite", 0)
    return f"left out {left_out:,} updates that were not finite or too long" if left_out else ""


def _absent(run: Run) -> str:
    """Return how many clients a run used no update of, if it used enough for all to have a part by chance."""
    status, clients = np.asarray(run.jobs["status"].cast("string")), run.training_clients or 0
    used = run.jobs["client"].to_numpy()[np.isin(status, USED)]
    absent = clients - len(np.unique(used))
    if absent <= 0 or len(used) < _ENOUGH * clients:
        return ""
    return f"used no update of {absent:,} of the {clients:,} clients"


def _unattacked(run: Run) -> str:
    """Return whether no client of an adversary had a job while the adversary is active."""
    tables, idle = run.config.get("adversary", []), []
    clients, times_us, versions = (run.jobs[name].to_numpy() for name in ("client", "dispatch_us", "version"))
    each = tables if isinstance(tables, list) else [tables]
    for table, adversary in zip(each, run.manifest.get("adversaries") or [], strict=False):
        first, end = table.get("steps", (0, np.inf))
        active = (times_us >= table.get("after", 0) * US) & (times_us < table.get("until", np.inf) * US)
        active &= (versions >= first) & (versions < end) & np.isin(clients, adversary["clients"])
        if not active.any():
            idle.append(str(adversary["name"]))
    return f"was not attacked: no client of {' or '.join(idle)} had a job in its time" if idle else ""


def _extreme(run: Run) -> str:
    weights = run.steps["max_weight"].to_numpy()
    steps = int((weights > EXTREME_WEIGHT).sum())
    if not steps:
        return ""
    return (
        f"has a weight above {EXTREME_WEIGHT:,.0f} in {steps:,} of {len(weights):,} steps,"
        " whose direction rounding decides"
    )


def _unrepeatable(run: Run) -> str:
    device = str(run.manifest.get("device") or "cpu")
    if device != "cpu":
        return f"was computed on {device}, and its digest holds on that kind of device only"
    resumed = run.manifest.get("resumed") or []
    if any(isinstance(each, Mapping) and each.get("changed") for each in resumed):
        return (
            "was resumed with other versions or files, so its digest may not be that of an uninterrupted run"
        )
    return ""


def different_ends(runs: Sequence[Run]) -> str:
    """Return a clause if runs stopped after different virtual times and different numbers of steps; else `""`."""
    done = [run for run in runs if run.done]
    times, steps = [run.virtual_us for run in done], [len(run.steps) for run in done]
    if len(done) < 2 or not (_apart(times) and _apart(steps)):
        return ""
    return (
        f"the runs end after {hours(min(times))} to {hours(max(times))} and {min(steps):,} to {max(steps):,} steps,"
        " so their ends compare different amounts of work"
    )


def _apart(values: Sequence[int]) -> bool:
    return max(values) - min(values) > _SAME * max(values)


def hours(time_us: int) -> str:
    """Return a virtual time in hours, such as `24 h`; below one hour as `fedsim.common.units.show_us` does."""
    return f"{time_us / HOUR_US:,.4g} h" if time_us >= HOUR_US else show_us(time_us)


_CHECKS: tuple[tuple[Callable[[Run], str], str], ...] = (
    (_incomplete, "are not complete"),
    (_never_evaluated, "were never evaluated"),
    (_learned_nothing, "say nothing about learning"),
    (_nonfinite, "left out updates that were not finite or too long"),
    (_absent, "used no update of some of their clients"),
    (_unattacked, "were not attacked by an adversary, whose clients had no job in its time"),
    (_outlived, "were longer than their worlds"),
    (_early, "ended early"),
    (_extreme, f"have steps with a weight above {EXTREME_WEIGHT:,.0f}, whose direction rounding decides"),
    (_unrepeatable, "have digests that do not hold on every machine"),
)
"""What to look for in a run, and what to say if it holds for many."""
