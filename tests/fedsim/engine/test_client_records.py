"""What the server notes about its clients."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.engine.client_records import ClientRecords
from fedsim.engine.selector import View
from fedsim.training.job import Cohort, Job, Report, Reports

THREE = np.arange(3)


def jobs(numbers: list[int], clients: list[int]) -> Cohort:
    return Cohort.of([Job(number, client, 0, 0) for number, client in zip(numbers, clients, strict=True)])


def test_at_first_nothing_is_known() -> None:
    known = ClientRecords.of(3)
    assert not known.busy.any()
    for name in ("dispatched", "received", "lost"):
        assert getattr(known, name).tolist() == [0, 0, 0]
    for name in ("last_step", "last_dispatch", "last_duration_us", "last_staleness"):
        assert getattr(known, name).tolist() == [-1, -1, -1]
    for name in ("last_loss", "last_loss_rms", "last_batch_rms", "accuracy"):
        assert np.isnan(getattr(known, name)).all()


def test_its_columns_are_those_of_a_view_and_cannot_be_written_to() -> None:
    columns = ClientRecords.of(3).columns()
    assert set(columns) <= set(View.__dataclass_fields__)
    for column in columns.values():
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_columns_are_views_that_follow() -> None:
    known = ClientRecords.of(3)
    columns = known.columns()
    known.dispatch(1, step=4)
    assert columns["dispatched"].tolist() == [0, 1, 0]
    assert columns["last_dispatch"].tolist() == [-1, 4, -1]


def test_a_job_is_given_and_ends_in_one_of_two_ways() -> None:
    known = ClientRecords.of(3)
    known.dispatch(THREE, step=0)
    assert (known.dispatched.tolist(), known.last_dispatch.tolist()) == ([1, 1, 1], [0, 0, 0])
    known.land(0, duration_us=70)
    known.lose(2)
    assert known.busy.tolist() == [False, True, False]
    assert known.received.tolist() == [1, 0, 0]
    assert known.lost.tolist() == [0, 0, 1]
    assert known.last_duration_us.tolist() == [70, -1, -1]
    known.use(np.array([0]), step=5, staleness=np.array([2]))
    assert (known.last_step[0], known.last_staleness[0]) == (5, 2)


def test_the_last_report_counts_and_silence_changes_nothing() -> None:
    known = ClientRecords.of(3)
    reports = [Report(loss_train=2.0, loss_rms=3.0), Report(loss_before=1.0, loss_train=9.0, loss_rms=4.0)]
    known.hear(jobs([0, 1], [0, 1]), Reports.of(reports))
    assert known.last_loss[:2].tolist() == [2.0, 1.0], "the loss before training where it is reported"
    later = [Report(), Report(loss_train=5.0), Report(loss_train=6.0, loss_rms=7.0, batch_rms=8.0)]
    known.hear(jobs([2, 3, 4], [1, 0, 1]), Reports.of(later))
    assert known.last_loss[:2].tolist() == [5.0, 6.0]
    assert (known.last_loss_rms[1], known.last_batch_rms[1]) == (7.0, 8.0)
    assert math.isnan(known.last_loss[2])


def test_of_two_jobs_of_a_client_the_later_one_counts_in_any_order() -> None:
    """An update that came too late for its step stands behind those that came in time, and may be the older one."""
    known = ClientRecords.of(3)
    reports = [Report(loss_train=2.0), Report(loss_train=9.0)]
    known.hear(jobs(numbers=[7, 4], clients=[1, 1]), Reports.of(reports))
    assert known.last_loss[1] == 2.0
