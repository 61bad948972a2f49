"""Jobs as columns: each has a row of its own from its dispatch until it is taken away, written whole or one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsim.engine.job_table import FREE, LANDED, RUNNING, JobTable
from fedsim.engine.record_words import STATUSES
from fedsim.training.job import Cohort, Report, Reports
from fedsim.worlds.job_outcomes import Outcomes


def fates(k: int, first: int = 0) -> Outcomes:
    """Fates of k jobs, every number of which is another."""
    n = first + np.arange(k)
    return Outcomes(n % 2 == 0, 100 + n, 200 + n, 300 + n, (n % 4).astype(np.int8), 1000 + n, 5000 + 10 * n)


def opened(job_table: JobTable, k: int, first: int = 0) -> list[int]:
    n = first + np.arange(k)
    jobs = Cohort(n, 50 + n, 7 + n, np.full(k, 3), 0.1 * (1 + n), np.full(k, 99))
    rows = job_table.open(jobs, 1, fates(k, first))
    return [int(row) for row in rows]


def opened_one(job_table: JobTable, n: int) -> int:
    """Enter the same job as `opened` does, of share 1."""
    fate = (200 + n, 300 + n, 100 + n, n % 2 == 0, n % 4, 1000 + n, 5000 + 10 * n)
    return job_table.open_one((n, 50 + n, 7 + n, 3), 1, 99, fate)


def test_a_job_is_what_was_entered_and_runs() -> None:
    job_table = JobTable()
    rows = opened(job_table, 3, first=4)
    told = {
        "id": [4, 5, 6],
        "client": [54, 55, 56],
        "nth": [11, 12, 13],
        "version": [3] * 3,
        "share": pytest.approx([0.5, 0.6, 0.7]),
        "attempt": [1] * 3,
        "dispatch_us": [99] * 3,
        "download_us": [204, 205, 206],
        "compute_us": [304, 305, 306],
        "end_us": [104, 105, 106],
        "ok": [1, 0, 1],
        "phase": [0, 1, 2],
        "downloaded_bytes": [1004, 1005, 1006],
        "uploaded_bytes": [5040, 5050, 5060],
        "status": [RUNNING] * 3,
        "step": [-1] * 3,
    }
    assert {name: job_table.table[rows][name].tolist() for name in told} == told
    assert np.isnan([job_table.table[rows][name] for name in ("loss_before", "loss_train")]).all()
    assert [job_table.number("client", row) for row in rows] == [54, 55, 56]
    cohort = job_table.cohort(np.array(rows))
    assert (cohort.ids.tolist(), cohort.clients.tolist(), cohort.nths.tolist()) == (
        [4, 5, 6],
        [54, 55, 56],
        [11, 12, 13],
    )
    assert (cohort.versions.tolist(), cohort.dispatch_us.tolist()) == ([3] * 3, [99] * 3)
    assert cohort.shares.tolist() == pytest.approx([0.5, 0.6, 0.7])


def test_a_job_that_is_entered_alone_is_that_of_a_cohort_of_one() -> None:
    job_table = JobTable()
    one, of_many = opened_one(job_table, 4), opened(job_table, 1, first=4)[0]
    job_table.table["share"][of_many] = 1.0
    np.testing.assert_equal(job_table.table[one].tolist(), job_table.table[of_many].tolist())


@pytest.mark.parametrize("alone", [True, False])
def test_there_is_room_for_any_number_of_jobs_and_none_is_lost(alone: bool) -> None:
    job_table = JobTable(2)
    rows = (
        [opened_one(job_table, n) for n in range(9)]
        if alone
        else [*opened(job_table, 1), *opened(job_table, 8, first=1)]
    )
    assert len(set(rows)) == 9
    assert job_table.table["id"][rows].tolist() == list(range(9))
    assert (job_table.table["status"] == RUNNING).sum() == 9
    assert job_table.running().tolist() == rows
    job_table.land(rows[8])
    assert job_table.number("status", rows[8]) == LANDED == job_table.table["status"][rows[8]]
    assert job_table.running().tolist() == rows[:8]


def test_running_jobs_are_in_order_of_dispatch_whatever_rows_they_have() -> None:
    job_table = JobTable(4)
    first = opened(job_table, 3)
    job_table.end(first[:2], "lost")
    job_table.take()
    later = opened(job_table, 2, first=3)
    assert set(later) & set(first), "a row that was freed is used again"
    assert job_table.table["id"][job_table.running()].tolist() == [2, 3, 4]


@pytest.mark.parametrize("some", [[1], [2, 0], [0, 1, 2], []])
def test_jobs_end_in_the_order_that_is_told_and_with_the_bytes_that_they_moved(some: list[int]) -> None:
    job_table = JobTable()
    rows = np.array(opened(job_table, 3))
    ending = rows[some]
    assert job_table.end(ending, "aggregated", 6) == sum(1000 + n + 5000 + 10 * n for n in some)
    assert job_table.ended == ending.tolist()
    assert job_table.table["status"][ending].tolist() == [STATUSES.index("aggregated")] * len(some)
    assert job_table.table["step"][ending].tolist() == [6] * len(some)
    others = np.setdiff1d(rows, ending)
    assert (job_table.table["status"][others] == RUNNING).all()


@pytest.mark.parametrize("k", [1, 2])
def test_a_job_that_ends_otherwise_was_used_by_no_step(k: int) -> None:
    job_table = JobTable()
    rows = np.array(opened(job_table, k))
    job_table.end(rows, "lost")
    assert job_table.table["step"][rows].tolist() == [-1] * k


@pytest.mark.parametrize(("count", "taken"), [(None, [2, 0, 1]), (2, [2, 0]), (0, []), (9, [2, 0, 1])])
def test_jobs_are_taken_in_the_order_of_their_end_and_their_rows_are_free_then(
    count: int | None, taken: list[int]
) -> None:
    job_table = JobTable(4)
    rows = np.array(opened(job_table, 3))
    job_table.end(rows[[2, 0]], "late", 5)
    job_table.end(rows[[1]], "lost")
    found = job_table.take(count)
    assert found["id"].tolist() == taken
    assert job_table.ended == rows[[2, 0, 1]].tolist()[len(taken) :]
    assert (job_table.table["status"] == FREE).sum() == 1 + len(taken)
    assert job_table.take(0)["id"].tolist() == []
    more = opened(job_table, 1 + len(taken), first=10)
    assert len(job_table.table) == 4, "it did not have to grow"
    assert found["id"].tolist() == taken, "what was taken is a copy"
    assert not set(more) & set(job_table.ended)


def test_what_jobs_report_is_entered_and_those_that_are_not_finite_were_used_by_no_step() -> None:
    job_table = JobTable()
    rows = np.array(opened(job_table, 3))
    job_table.end(rows, "aggregated", 6)
    reports = [Report(loss_before=1.0 + i, loss_train=5.0 + i, finite=i != 1) for i in range(3)]
    job_table.hear(rows, Reports.of(reports))
    found = job_table.take()
    assert found["loss_before"].tolist() == [1, 2, 3]
    assert found["loss_train"].tolist() == [5, 6, 7]
    assert [STATUSES[status] for status in found["status"]] == ["aggregated", "nonfinite", "aggregated"]
    assert found["step"].tolist() == [6, -1, 6]


def test_a_job_that_is_stopped_has_done_what_it_had_done() -> None:
    job_table = JobTable()
    rows = np.array(opened(job_table, 3))
    job_table.cut(rows[[2, 0]], fates(2, first=20))
    assert job_table.table["end_us"][rows].tolist() == [121, 101, 120]
    assert job_table.table["uploaded_bytes"][rows].tolist() == [5210, 5010, 5200]
    assert job_table.table["client"][rows].tolist() == [50, 51, 52]


def test_a_job_table_that_is_restored_goes_on_as_the_one_that_was_saved() -> None:
    def go_on(job_table: JobTable) -> list[Any]:
        more = opened(job_table, 3, first=20)
        job_table.end(more[1:], "aggregated", 8)
        return [
            more,
            job_table.ended,
            job_table.running().tolist(),
            job_table.take().tolist(),
            opened_one(job_table, 30),
        ]

    job_table = JobTable(8)
    rows = opened(job_table, 6)
    job_table.end(rows[1:4], "late", 2)
    job_table.take(2)
    again = JobTable.restored({name: column.copy() for name, column in job_table.state().items()})
    assert repr(go_on(again)) == repr(go_on(job_table))
