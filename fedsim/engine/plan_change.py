"""Changes the plan or the world of a run under way, as a fork does: what jobs and events become under the new one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.engine.job_table import LANDED, RUNNING
from fedsim.engine.pacing import Pacing
from fedsim.engine.state import Kind, Plan, RunState
from fedsim.worlds.job_outcomes import without
from fedsim.worlds.world import World


def repace(run_state: RunState, before: Pacing, after: Pacing) -> None:
    """Apply another pacing to late jobs and to the deadline; a changed deadline starts anew."""
    table, late = run_state.job_table.table, np.array(run_state.overdue, dtype=np.int64)
    overdue = (table["status"] == RUNNING) & (table["version"] < run_state.step)
    run_state.overdue_running = int(overdue.sum()) if after.late == "history" else 0
    if after.late != "history":
        run_state.overdue = []
    if after.late == "keep":  # updates that came too late for their step count in the next one
        rows = np.array([*late, *run_state.buffer], dtype=np.int64)
        order = np.lexsort((table["id"][rows], table["client"][rows], table["end_us"][rows]))
        run_state.buffer = rows[order].tolist()
    elif after.late == "drop":
        run_state.moved_bytes += run_state.job_table.end(late, "late")
        run_state.late += len(late)
    if after.deadline_us != before.deadline_us:
        run_state.armed = False
        if after.deadline_us is not None and run_state.working:
            run_state.arm(after.deadline_us)


def keep_work(run_state: RunState, before: Floats, after: Floats) -> None:
    """Keep the work of jobs under way when a client's whole job changes from `before` [K] to `after` [K] samples."""
    table = run_state.job_table.table
    rows = np.flatnonzero(np.isin(table["status"], (RUNNING, LANDED)))
    clients = table["client"][rows]
    table["share"][rows] *= np.divide(before, after, out=np.ones(len(after)), where=after > 0)[clients]


def move_ends(run_state: RunState, world: World, plan: Plan, clients: Sequence[int]) -> None:
    """Compute the outcomes of these clients' running jobs anew, in the changed world."""
    table = run_state.job_table.table
    rows = np.flatnonzero((table["status"] == RUNNING) & np.isin(table["client"], np.asarray(clients)))
    kinds, moved = (Kind.ARRIVE, Kind.LOST), set(rows.tolist())
    run_state.heap = [event for event in run_state.heap if not (event[1] in kinds and event[3] in moved)]
    run_state.heap += [_new_end(run_state, world, plan, row) for row in rows.tolist()]
    heapq.heapify(run_state.heap)


def _new_end(run_state: RunState, world: World, plan: Plan, row: int) -> tuple[int, int, int, int]:
    """Compute the outcome of a job anew, and return the event of its end."""
    job = run_state.job_table.cohort(np.array([row]))
    work = plan.costs.of(job.clients, job.nths, job.shares)
    fates = world.outcomes(job.clients, int(job.dispatch_us[0]), work)
    if plan.droppers is not None:
        fates = without(fates, plan.droppers.drop(job))
    run_state.job_table.cut(np.array([row]), fates)
    client, end_us = int(job.clients[0]), int(fates.end_us[0])
    if fates.ok[0]:
        return end_us, int(Kind.ARRIVE), client, row
    noticed_us = end_us + plan.dropout.notice_us  # with a shorter notice it may lie before the fork
    return max(noticed_us, run_state.now_us), int(Kind.LOST), client, row
