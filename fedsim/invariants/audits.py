"""Invariants of the rows of audits, given steps and jobs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsim.invariants.evidence import Evidence
from fedsim.invariants.finding import Violation, first, repeated

_OF_HELD = ("weight", "cosine", "norm_ratio", "remembered_with_mean", "remembered_with_step")
"""Columns that are NaN for clients of which the server holds no update."""
_COSINES = ("cosine", "remembered_with_mean", "true_with_mean", "remembered_with_step", "true_with_step")
_NOT_NEGATIVE = ("norm_ratio", "true_norm", "loss_before", "loss_after")


def values_of_audit_rows_are_valid(e: Evidence) -> Iterator[Violation]:
    """Clients exist and occur once per audit, norms and losses are at least 0, and cosines lie from -1 to 1."""
    rows = e.audit
    absent = rows["age"] == -1
    bad = {
        "client": (rows["client"] < 0)
        | (rows["client"] >= e.clients)
        | repeated(rows["step"] * e.everybody + rows["client"]),
        "age": rows["age"] < -1,
        "present": rows["present"] != (rows["age"] == 0),
        "staleness": (rows["staleness"] < -1) | ((rows["staleness"] == -1) != absent),
        "age_us": (rows["age_us"] < -1) | ((rows["age_us"] == -1) != absent),
    }
    bad |= {name: rows[name] < 0 for name in _NOT_NEGATIVE}
    bad |= {name: np.abs(rows[name]) > 1 + 1e-6 for name in _COSINES}
    for name, mask in bad.items():
        for i, more in first(mask):
            recorded = f"{name} = {rows[name][i]} (age {rows['age'][i]})"
            yield Violation("audit", i, f"a {name} in its range", recorded, more)
    for name in _OF_HELD:
        for i, more in first(absent & ~np.isnan(rows[name])):
            wanted = f"no {name} without an update that the server holds"
            yield Violation("audit", i, wanted, str(rows[name][i]), more)


def audits_take_place_at_the_configured_steps(e: Evidence) -> Iterator[Violation]:
    """Audits take place at every `audit.every`-th step, at its time, and take at most `audit.clients` clients."""
    e.need_closed()
    step, time, config = e.audit["step"], e.audit["time_us"], e.config.audit
    last = len(e.steps) - e.ended  # a failed run may lack its last step
    for i, more in first((step < 1) | (step > last) | (step % config.every != 0)):
        wanted = f"a step up to {last} that is a multiple of {config.every}"
        yield Violation("audit", i, wanted, f"step {step[i]}", more)
    due = e.step_us(np.maximum(step, 0))
    for i, more in first((step < len(e.steps)) & (time != due)):
        yield Violation("audit", i, f"the time of step {step[i]}, {due[i]} us", f"{time[i]} us", more)
    audited, start, count = np.unique(step, return_index=True, return_counts=True)
    for k, more in first(count > config.clients):
        wanted = f"at most {config.clients} clients in the audit of step {audited[k]}"
        yield Violation("audit", int(start[k]), wanted, str(count[k]), more)


def audited_updates_are_those_of_jobs(e: Evidence) -> Iterator[Violation]:
    """An update that an audit compares is that of a job of the client, as old and as stale as the job says."""
    e.need_closed()
    rows, jobs = e.audit, e.jobs
    used, late = jobs["status"] == "aggregated", jobs["status"] == "remembered"
    received = np.where(late, jobs["version"], jobs["step"])
    staleness = np.where(late, 0, jobs["staleness"])
    known = set(zip(*(c[used | late].tolist() for c in (jobs["client"], received, staleness)), strict=True))
    client, step, age, age_us = (rows[name] for name in ("client", "step", "age", "age_us"))
    asked = zip(client.tolist(), (step - age).tolist(), rows["staleness"].tolist(), strict=True)
    held = age >= 0
    for i, more in first(held & ~np.array([each in known for each in asked], dtype=bool)):
        wanted = f"an update of client {client[i]} that the server took {age[i]} steps before step {step[i]}"
        yield Violation("audit", i, wanted, f"none of staleness {rows['staleness'][i]}", more)
    taken = np.isin(step * e.clients + client, jobs["step"][used] * e.clients + jobs["client"][used])
    for i, more in first(taken & (age != 0)):
        wanted = f"age 0 of client {client[i]}, whose update step {step[i]} used"
        yield Violation("audit", i, wanted, f"age {age[i]}", more)
    if late.any():  # arrivals of late updates are not recorded
        return
    since = e.step_us(np.maximum(step, 0)) - e.step_us(np.maximum(step - age, 0))
    for i, more in first(held & (step < len(e.steps)) & (age_us != since)):
        yield Violation("audit", i, f"age_us = {since[i]}", str(age_us[i]), more)
