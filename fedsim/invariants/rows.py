"""Invariants of the rows of a step in `conflicts`: their clients, ages, and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedsim.common.arrays import Ints, Mask
from fedsim.invariants.evidence import Evidence, Unchecked
from fedsim.invariants.finding import Violation, first, repeated
from fedsim.server.conflicts import ORTHOGONAL


def values_of_conflict_rows_are_valid(e: Evidence) -> Iterator[Violation]:
    """Steps and clients of rows exist, and cosines lie from -1 to 1."""
    rows = e.conflicts
    e.need_training()
    weight = rows["weight"]
    by_column = np.isnan(weight) if e.algorithm.columns is not None else False
    for name, mask in (
        ("step", (rows["step"] < 0) | (rows["step"] >= len(e.steps) + (not e.ended))),
        ("client", (rows["client"] < 0) | (rows["client"] >= e.clients)),
        ("age", rows["age"] < 0),
        ("block", rows["block"] < -1),
        ("cosine", np.abs(rows["cosine"]) > 1 + 1e-6),
        ("norm", ~(rows["norm"] >= 0)),
        ("weight", ~(np.isfinite(weight) | by_column)),
    ):
        for i, more in first(mask):
            yield Violation("conflicts", i, f"a {name} in its range", f"{name} = {rows[name][i]}", more)


def conflict_rows_of_age_0_are_the_updates_of_the_step(e: Evidence) -> Iterator[Violation]:
    """Rows of age 0 are the step's updates, client by client; no other row is of a client that has one."""
    whole, jobs = e.whole, e.jobs
    used = jobs["step"] >= 0
    if not e.ended:  # the rows of the last step may be missing
        used &= np.isin(jobs["step"], whole.step)
    # The parent of a fork may not have recorded conflicts.
    used &= (jobs["step"] >= e.changed_at) | np.isin(jobs["step"], whole.step)
    want = np.sort(jobs["step"][used] * e.clients + jobs["client"][used])
    cells = whole.step * e.clients + whole.client
    present = np.flatnonzero(whole.age == 0)
    present = present[np.argsort(cells[present], kind="stable")]
    updates = cells[present]
    if not np.array_equal(updates, want):
        k, wanted, recorded = _first_difference(updates, want, e.clients)
        row = int(whole.rows[present[k]]) if k < len(updates) else -1
        yield Violation("conflicts", row, f"a row of age 0 for {wanted}", recorded)
    remembered = np.flatnonzero(whole.age > 0)
    for k, more in first(repeated(cells[remembered]) | np.isin(cells[remembered], want)):
        at = remembered[k]
        recorded = f"client {whole.client[at]} in step {whole.step[at]} again"
        wanted = "one remembered row per client, of clients that are absent"
        yield Violation("conflicts", int(whole.rows[at]), wanted, recorded, more)


def _first_difference(updates: Ints, want: Ints, clients: int) -> tuple[int, str, str]:
    """Return the first place at which the cells differ, and in words what was wanted and what was recorded there."""
    same = min(len(updates), len(want))
    k = int(np.argmax(np.append(updates[:same] != want[:same], True)))
    wanted = recorded = "no further row"
    if k < len(want):
        wanted = f"client {want[k] % clients} in step {want[k] // clients}"
    if k < len(updates):
        recorded = f"client {updates[k] % clients}"
    return k, wanted, recorded


def remembered_updates_are_the_last_of_their_clients(e: Evidence) -> Iterator[Violation]:
    """A remembered row is as old as the client's last update that the server took, and not older than the rule asks."""
    whole, limit = e.whole, e.algorithm.needs.memory
    age, fits = _last_ages(e)
    for k, more in first((whole.age > 0) & (~fits | (whole.age > limit))):
        most = f", at most {limit:g}" if math.isfinite(limit) else ""
        wanted = f"age {age[k]}{most} for client {whole.client[k]} in step {whole.step[k]}"
        yield Violation("conflicts", int(whole.rows[k]), wanted, str(whole.age[k]), more)


def _last_ages(e: Evidence) -> tuple[Ints, Mask]:
    """Return for each row the age of the client's last update, and whether the row's age agrees with the jobs."""
    jobs, whole = e.jobs, e.whole
    used, kept = jobs["status"] == "aggregated", jobs["status"] == "remembered"
    received, client = jobs["step"][used], jobs["client"][used]
    # The parent of a fork may have had late = "history".
    late = e.pacing.late == "history" or bool(kept.any())
    if late:
        received = np.append(received, jobs["version"][kept])
        client = np.append(client, jobs["client"][kept])
    width = len(e.steps) + 2
    cells = np.sort(client * width + received)
    ask = whole.client * width + whole.step
    before = np.maximum(np.searchsorted(cells, ask, "left") - 1, 0)
    last = cells[before] if len(cells) else np.full(len(ask), -1)
    age = np.where(last // width == whole.client, whole.step - last % width, -1)
    if late:  # arrivals of late updates are not recorded: the age may be that of an earlier update
        return age, np.isin(ask - whole.age, cells) & (whole.age >= age)
    fits = whole.age == age
    if e.config.algorithm.memory:
        received_us = e.step_us(np.maximum(whole.step - whole.age, 0))
        fits &= received_us >= e.step_us(whole.step) - e.config.algorithm.memory
    return age, fits


def remembered_updates_do_not_exceed_clients_seen_and_slots(e: Evidence) -> Iterator[Violation]:
    """At most as many rows are remembered as clients sent updates before, and as `memory.slots` allows."""
    e.need_closed()
    e.need_training()
    jobs, n = e.jobs, len(e.steps)
    took = np.isin(jobs["status"], ("aggregated", "remembered"))
    since = np.full(e.clients, n)
    np.minimum.at(since, jobs["client"][took], np.maximum(jobs["step"], jobs["version"])[took])
    seen = np.searchsorted(np.sort(since), np.arange(n), "left" if e.pacing.late != "history" else "right")
    if not e.algorithm.needs.memory:
        seen = np.zeros(n, dtype=np.int64)
    slots = e.config.memory.slots
    most = seen if slots is None else np.minimum(seen, slots)
    remembered, evicted = e.steps["remembered"], e.steps["evicted"]
    for i, more in first(remembered > most):
        yield Violation("steps", i, f"at most {most[i]} remembered rows", str(remembered[i]), more)
    if slots is None and e.changed_at < 0:  # the steps of a fork's parent may have been larger
        for i, more in first(evicted > 0):
            yield Violation("steps", i, "no row evicted, as memory.slots is not set", str(evicted[i]), more)


def an_unlimited_history_keeps_the_last_update_of_every_client(e: Evidence) -> Iterator[Violation]:
    """A rule with an unlimited memory has a row of every client that sent an update before."""
    if math.isfinite(e.algorithm.needs.memory) or e.config.memory.slots or e.config.algorithm.memory:
        raise Unchecked("the memory is limited")
    whole, jobs, n = e.whole, e.jobs, len(e.steps)
    # The parent of a fork may have had a rule without memory.
    took = (jobs["status"] == "aggregated") & (jobs["step"] >= e.changed_at)
    since = np.full(e.clients, n + 1)
    np.minimum.at(since, jobs["client"][took], jobs["step"][took])
    distinct = np.unique(whole.step * e.clients + whole.client) // e.clients
    count = np.bincount(distinct, minlength=n)[:n]
    seen = np.searchsorted(np.sort(since), np.arange(n), "right")
    for i, more in first((count > 0) & (count < seen)):  # late rows may add more
        wanted = f"rows of the {seen[i]} clients whose updates were taken so far, in conflicts"
        yield Violation("steps", i, wanted, str(count[i]), more)


def columns_of_a_step_agree_with_its_conflict_rows(e: Evidence) -> Iterator[Violation]:
    """Conflicts, cosines and weights of a step are those of its rows."""
    whole, steps, n = e.whole, e.steps, len(e.steps)
    inside = whole.step < n
    present, absent = inside & (whole.age == 0), inside & (whole.age != 0)
    clash = whole.cosine < -ORTHOGONAL
    # A rule that combines columns has no largest weight, though rows that it leaves out weigh 0.
    weight = whole.weight if e.algorithm.columns is None else np.full(len(whole.weight), np.nan)
    has_rows = np.bincount(whole.step[inside], minlength=n) > 0
    for name, mask in (("model_conflicts", present & clash), ("absent_conflicts", absent & clash)):
        count = np.bincount(whole.step[mask], minlength=n)
        for i, more in first(has_rows & (steps[name] != count)):
            wanted = f"{name} {count[i]}, as rows in conflicts say"
            yield Violation("steps", i, wanted, str(steps[name][i]), more)
    for name, mask, values, take in (
        ("smallest_cosine", present, whole.cosine, np.fmin),
        ("smallest_absent_cosine", absent, whole.cosine, np.fmin),
        ("max_weight", inside, weight, np.fmax),
    ):
        extreme = np.full(n, np.nan)
        take.at(extreme, whole.step[mask], values[mask])
        agrees = np.isclose(steps[name], extreme, rtol=1e-12, atol=0, equal_nan=True)
        for i, more in first(has_rows & ~agrees):
            wanted = f"{name} {extreme[i]:.6g}, as rows in conflicts say"
            yield Violation("steps", i, wanted, f"{steps[name][i]:.6g}", more)
