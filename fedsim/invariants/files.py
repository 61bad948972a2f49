"""Invariants of manifest and model: configuration, counts, digest, and why the run ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

from fedsim import plugins
from fedsim.common.arrays import Ints, Mask
from fedsim.common.units import show_us
from fedsim.engine.state import LOSS, Stop
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, differs, first
from fedsim.records.digest import digest
from fedsim.records.file_names import CONFIG, MANIFEST, MODEL


def the_digest_matches_tables_and_model(e: Evidence) -> Iterator[Violation]:
    """The digest in the manifest is that of the rows of the tables and of the model."""
    recorded = e.manifest.get("digest")
    if e.status != "done":
        raise Unchecked(f"a run that is {e.status!r} has no digest")
    computed = digest(e.folder, {name: torch.from_numpy(array) for name, array in e.model.items()})
    if recorded != computed:
        yield Violation(MANIFEST, -1, f"digest {computed}, that of the tables and {MODEL}", str(recorded))


def the_model_is_finite(e: Evidence) -> Iterator[Violation]:
    """The final parameters of the global model are finite."""
    for name, values in e.model.items():
        if name.startswith("personal"):
            continue  # a client's own training may diverge
        for i, more in first(~np.isfinite(values)):
            yield Violation(MODEL, -1, f"finite numbers in {name}", f"{values.flat[i]} at {i}", more)


def the_manifest_has_the_counts_of_the_tables(e: Evidence) -> Iterator[Violation]:
    """Steps, jobs by status and waits in the manifest are those of the tables."""
    e.need_closed()
    manifest, steps = e.manifest, len(e.steps)
    missing = int(manifest.get("steps") or 0) - steps
    if missing not in ((0,) if e.ended else (0, 1)):  # a failed run may lack its last step
        yield Violation(MANIFEST, -1, f"steps = {steps}, the rows of the table", str(manifest.get("steps")))
    by_status = dict(sorted(Counter(e.jobs["status"].tolist()).items()))
    for name, count in (("jobs", by_status), ("waits", int(e.steps["waits"].sum()))):
        if manifest.get(name) != count:
            yield Violation(MANIFEST, -1, f"{name} = {count}", str(manifest.get(name)))


def the_manifest_agrees_with_the_configuration(e: Evidence) -> Iterator[Violation]:
    """Name, seed, rule, selector and pacing in the manifest are those of the configuration."""
    config = e.config
    for name, value in (
        ("name", config.name),
        ("seed", config.seed),
        ("rule", config.algorithm.name),
        ("selector", config.selection.name),
        ("pacing", config.pacing.preset),
    ):
        recorded = e.manifest.get(name)
        if recorded not in (None, value):
            yield Violation(MANIFEST, -1, f"{name} = {value}, as in {CONFIG}", str(recorded))


def the_run_ends_by_its_first_fulfilled_stop_rule(e: Evidence) -> Iterator[Violation]:
    """`ended_by` names the rule of `[stop]` that the tables fulfil, and no other was fulfilled before."""
    e.need_closed()
    stop, why = e.config.stop.stop(), str(e.manifest.get("ended_by"))
    now, n = int(e.manifest.get("virtual_us") or 0), len(e.steps)
    rules = {"steps": stop.steps, "time": stop.time_us, "bytes": stop.moved_bytes, "target": stop.target}
    rules |= {"patience": stop.patience, "wall": stop.wall_s, "world": 0}
    if e.status in ("interrupted", "failed"):
        rules = {"interrupt": 0} if e.status == "interrupted" else {"error": 0}
    if rules.get(why) is None:
        known = ", ".join(name for name, limit in rules.items() if limit is not None)
        yield Violation(MANIFEST, -1, f"ended_by {known}", why)
        return
    if (stop.steps is not None and n > stop.steps) or (why == "steps" and n != stop.steps):
        yield Violation("steps", -1, f"{stop.steps} steps", str(n))
    if (stop.time_us is not None and now > stop.time_us) or (why == "time" and now != stop.time_us):
        yield Violation(MANIFEST, -1, f"virtual_us = {stop.time_us}, the end", str(now))
    if stop.moved_bytes is not None and why != "steps" and e.ended:
        yield from _moved_until_the_end(e, stop.moved_bytes, why, now)


def _moved_until_the_end(e: Evidence, limit: int, why: str, now: int) -> Iterator[Violation]:
    """The run ends by its bytes if as many moved, and not otherwise."""
    status, moved = e.jobs["status"], e.jobs["download_bytes"] + e.jobs["upload_bytes"]
    counts = (status != "unfinished") & ~((status == "lost") & (e.seen_us > now))
    total = int(moved[counts].sum())
    if (why == "bytes") != (total >= limit):
        bound = "at least" if why == "bytes" else "less than"
        yield Violation("jobs", -1, f"{bound} the {limit} bytes of stop.bytes moved", str(total))


def target_and_patience_end_the_run_when_fulfilled(e: Evidence) -> Iterator[Violation]:
    """With `target` or `patience`, the run ends at the first evaluation that fulfils it, and not otherwise."""
    e.need_end()
    stop, why = e.config.stop.stop(), e.manifest.get("ended_by")
    _need_values(e, stop)
    times, values = _measured(e, stop)
    hit = _fulfilled(values, stop)
    if not hit.any():
        if why in ("target", "patience"):
            wanted = f"{why} reached by the last evaluation"
            yield Violation("evals", -1, wanted, f"{stop.metric} {values[-1]}")
        return
    i = int(hit.argmax())
    now = int(e.manifest.get("virtual_us") or 0)
    if now != times[i]:  # several steps of one instant may each be evaluated
        wanted = f"the run to end with evaluation {i}, {stop.metric} {values[i]}, at {show_us(int(times[i]))}"
        yield Violation(MANIFEST, -1, wanted, show_us(now))


def _need_values(e: Evidence, stop: Stop) -> None:
    """Raise Unchecked unless the records hold all values of the metric that could have ended the run."""
    if stop.metric is None:
        raise Unchecked("[stop] has neither target nor patience")
    if e.changed_at >= 0:
        raise Unchecked("the run is a fork, and its parent may have evaluated differently")
    e.need_training()
    if e.config.evaluate.clients is not None:
        raise Unchecked(
            "the final evaluation of all clients may replace the evaluation of some clients that ended the run"
        )


def _fulfilled(values: list[float], stop: Stop) -> Mask:
    """Return for each evaluation whether the watched metric ends the run."""
    best, unimproved, reached = math.nan, 0, False
    hit = np.zeros(len(values), dtype=bool)
    for i, value in enumerate(values):
        best, unimproved = (value, 0) if stop.improves(value, best) else (best, unimproved + 1)
        reached |= stop.reaches(value) or (stop.patience is not None and unimproved >= stop.patience)
        hit[i] = reached
    return hit


def _measured(e: Evidence, stop: Stop) -> tuple[Ints, list[float]]:
    """Return the times of the evaluations of the global model in microseconds, and the watched metric of each."""
    watched = e.evals["split"] == (stop.split or e.config.evaluate.split)
    names = ("step", "time_us", "accuracy", "loss", "n")
    step, time, accuracy, loss, n = (e.evals[name][watched] for name in names)
    start = np.flatnonzero(differs(step, time))
    parts = [slice(a, b) for a, b in pairwise([*start.tolist(), len(step)])]
    if stop.metric == LOSS:
        return time[start], [float(np.average(loss[part], weights=n[part])) for part in parts]
    measure = plugins.factory("metric", str(stop.metric))
    values = [
        math.nan if np.isnan(accuracy[part]).any() else float(measure(accuracy[part], n[part]))
        for part in parts
    ]
    return time[start], values
