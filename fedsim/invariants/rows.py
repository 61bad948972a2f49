"""Invariants of the rows of a step in `conflicts`: their clients, ages, and sums."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedsim.invariants.evidence import Evidence, Ints, Unchecked
from fedsim.invariants.finding import Violation, invariant, wrong
from fedsim.server.conflicts import ORTHOGONAL


def row_values(e: Evidence) -> Iterator[Violation]:
    """Steps and clients of rows exist, and cosines lie from -1 to 1."""
    rows = e.conflicts
    e.need_training()
    for name, mask in (
        ("step", (rows["step"] < 0) | (rows["step"] >= len(e.steps) + (not e.ended))),
        ("client", (rows["client"] < 0) | (rows["client"] >= e.clients)),
        ("age", rows["age"] < 0),
        ("block", rows["block"] < -1),
        ("cosine", np.abs(rows["cosine"]) > 1 + 1e-6),
        ("norm", ~(rows["norm"] >= 0)),
        ("weight", ~np.isfinite(rows["weight"])),
    ):
        yield from wrong(
            "conflicts",
            mask,
            f"a {name} in its range",
            lambda i, n=name: f"{n} = {rows[n][i]}",  # type: ignore[misc]
        )


def rows_of_a_step_are_its_updates(e: Evidence) -> Iterator[Violation]:
    """Rows of age 0 are the step's updates, client by client; no other row is of a client that has one."""
    whole, jobs = whole_of(e), e.jobs
    used = jobs["step"] >= 0
    if not e.ended:  # the rows of the last step may be missing
        used &= np.isin(jobs["step"], whole.step)
    # The parent of a fork may not have recorded conflicts.
    used &= (jobs["step"] >= e.changed_at) | np.isin(jobs["step"], whole.step)
    want = np.sort(jobs["step"][used] * e.clients + jobs["client"][used])
    present = np.flatnonzero(whole.age == 0)
    cells = whole.step * e.clients + whole.client
    present = present[np.argsort(cells[present], kind="stable")]
    if len(present) != len(want) or (cells[present] != want).any():
        same = min(len(present), len(want))
        at = int(np.argmax(np.append(cells[present][:same] != want[:same], True)))
        row = int(whole.rows[present[at]]) if at < len(present) else -1
        cell = (
            f"client {want[at] % e.clients} in step {want[at] // e.clients}"
            if at < len(want)
            else "no further row"
        )
        found = f"client {cells[present[at]] % e.clients}" if at < len(present) else "no further row"
        yield Violation("conflicts", row, f"a row of age 0 for {cell}", found)
    yield from _one_remembered_row_per_client(e, whole, cells, want)


def _one_remembered_row_per_client(
    e: Evidence, whole: Whole, cells: Ints, present: Ints
) -> Iterator[Violation]:
    """Check that each step has at most one remembered row per client, and none of a client with an update in it.

    `cells` number the step and client of each row of `whole`; `present` are those of the updates.
    """
    remembered = np.flatnonzero(whole.age > 0)
    _, first = np.unique(cells[remembered], return_index=True)
    again = np.zeros(len(e.conflicts), dtype=bool)
    again[whole.rows[remembered]] = True
    again[whole.rows[remembered[first]]] = np.isin(cells[remembered[first]], present)
    yield from wrong(
        "conflicts",
        again,
        "one remembered row per client, of clients that are absent",
        lambda i: f"client {e.conflicts['client'][i]} in step {e.conflicts['step'][i]} again",
    )


def ages_are_those_of_the_last_update(e: Evidence) -> Iterator[Violation]:
    """A remembered row is as old as the client's last update that the server took, and not older than the rule asks."""
    whole = whole_of(e)
    age, fits = _last_ages(e, whole)
    limit = e.algorithm.needs.memory
    mask = np.zeros(len(e.conflicts), dtype=bool)
    mask[whole.rows] = (whole.age > 0) & (~fits | (whole.age > limit))
    expected = np.zeros(len(mask), dtype=np.int64)
    expected[whole.rows] = age
    most = f", at most {limit:g}" if math.isfinite(limit) else ""
    yield from wrong(
        "conflicts",
        mask,
        lambda i: (
            f"age {expected[i]}{most} for client {e.conflicts['client'][i]} in step {e.conflicts['step'][i]}"
        ),
        lambda i: str(e.conflicts["age"][i]),
    )


def _last_ages(e: Evidence, whole: Whole) -> tuple[Ints, NDArray[np.bool_]]:
    """Return for each row the age of the client's last update, and whether the row's age agrees with the jobs."""
    jobs = e.jobs
    used, kept = jobs["status"] == "aggregated", jobs["status"] == "remembered"
    received, client = jobs["step"][used], jobs["client"][used]
    late = e.pacing.late == "history" or bool(
        kept.any()
    )  # the parent of a fork may have had late = "history"
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


def no_more_is_remembered_than_there_can_be(e: Evidence) -> Iterator[Violation]:
    """At most as many rows are remembered as clients sent updates before, and as `memory.slots` allows."""
    e.need_closed()
    e.need_training()
    jobs, n = e.jobs, len(e.steps)
    took = np.isin(jobs["status"], ("aggregated", "remembered"))
    first = np.full(e.clients, n)
    np.minimum.at(first, jobs["client"][took], np.maximum(jobs["step"], jobs["version"])[took])
    seen = np.searchsorted(np.sort(first), np.arange(n), "left" if e.pacing.late != "history" else "right")
    if not e.algorithm.needs.memory:
        seen = np.zeros(n, dtype=np.int64)
    slots = e.config.memory.slots
    most = seen if slots is None else np.minimum(seen, slots)
    yield from wrong(
        "steps",
        e.steps["remembered"] > most,
        lambda i: f"at most {most[i]} remembered rows",
        lambda i: str(e.steps["remembered"][i]),
    )
    if slots is None and e.changed_at < 0:  # the steps of a fork's parent may have been larger
        yield from wrong(
            "steps",
            e.steps["evicted"] > 0,
            "no row evicted, as memory.slots is not set",
            lambda i: str(e.steps["evicted"][i]),
        )


def a_whole_memory_forgets_nobody(e: Evidence) -> Iterator[Violation]:
    """A rule with an unlimited memory has a row of every client that sent an update before."""
    if math.isfinite(e.algorithm.needs.memory) or e.config.memory.slots or e.config.algorithm.memory:
        raise Unchecked("the memory is limited")
    whole, jobs = whole_of(e), e.jobs
    # The parent of a fork may have had a rule without memory.
    took = (jobs["status"] == "aggregated") & (jobs["step"] >= e.changed_at)
    n = len(e.steps) + 1
    first = np.full(e.clients, n)
    np.minimum.at(first, jobs["client"][took], jobs["step"][took])
    distinct = np.unique(whole.step * e.clients + whole.client) // e.clients
    count = np.bincount(distinct, minlength=n)[: len(e.steps)]
    seen = np.searchsorted(np.sort(first), np.arange(len(e.steps)), "right")
    least = (count > 0) & (count < seen)  # late rows may add more
    yield from wrong(
        "steps",
        least,
        lambda i: f"rows of the {seen[i]} clients whose updates were taken so far, in conflicts",
        lambda i: str(count[i]),
    )


def rows_add_up_to_the_step(e: Evidence) -> Iterator[Violation]:
    """Conflicts, cosines and weights of a step are those of its rows."""
    whole, steps = whole_of(e), e.steps
    n = len(steps)
    inside = whole.step < n
    present = (whole.age == 0) & inside
    clash = whole.cosine < -ORTHOGONAL
    has_rows = np.bincount(whole.step[inside], minlength=n) > 0
    counts = {
        "model_conflicts": np.bincount(whole.step[present & clash], minlength=n),
        "absent_conflicts": np.bincount(whole.step[~present & inside & clash], minlength=n),
    }
    for name, count in counts.items():
        recorded = steps[name]
        yield from wrong(
            "steps",
            has_rows & (recorded != count),
            lambda i, c=count, v=name: f"{v} {c[i]}, as rows in conflicts say",  # type: ignore[misc]
            lambda i, t=recorded: str(t[i]),  # type: ignore[misc]
        )
    for name, mask, values, take in (
        ("smallest_cosine", present, whole.cosine, np.fmin),
        ("smallest_absent_cosine", ~present & inside, whole.cosine, np.fmin),
        ("max_weight", inside, whole.weight, np.fmax),
    ):
        worst = np.full(n, np.nan)
        take.at(worst, whole.step[mask], values[mask])
        recorded = steps[name]
        yield from wrong(
            "steps",
            has_rows & ~np.isclose(recorded, worst, rtol=1e-12, atol=0, equal_nan=True),
            lambda i, w=worst, v=name: f"{v} {w[i]:.6g}, as rows in conflicts say",  # type: ignore[misc]
            lambda i, t=recorded: f"{t[i]:.6g}",  # type: ignore[misc]
        )


class Whole:
    """The rows of the whole model, block -1."""

    def __init__(self, e: Evidence) -> None:
        table = e.conflicts
        self.rows: Ints = np.flatnonzero(table["block"] == -1)
        self.step, self.client, self.age = (table[n][self.rows] for n in ("step", "client", "age"))
        self.weight, self.cosine, self.norm = (table[n][self.rows] for n in ("weight", "cosine", "norm"))


def whole_of(e: Evidence) -> Whole:
    """Return the rows of the whole model. Raises Unchecked if nothing was trained or conflicts are not recorded."""
    e.need_training()
    return Whole(e)


INVARIANTS = (
    invariant(row_values, basic=True),
    invariant(rows_of_a_step_are_its_updates),
    invariant(ages_are_those_of_the_last_update),
    invariant(no_more_is_remembered_than_there_can_be),
    invariant(a_whole_memory_forgets_nobody),
    invariant(rows_add_up_to_the_step),
)
