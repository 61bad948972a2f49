"""What the server is told of a step's updates: which count, which came too late, what is recorded of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports


def arrivals(**changed: Any) -> StepInput:
    """Four updates of clients 5, 3, 8 and 1; each has numbers of its own everywhere."""
    reports = [
        Report(loss_before=1.0 + i, loss_after=0.5 + i, accuracy_after=0.1 * i, loss_train=9.0 - i)
        for i in range(4)
    ]
    given: dict[str, Any] = {
        "step": 6,
        "clients": np.array([5, 3, 8, 1]),
        "staleness": np.array([0, 1, 4, 2]),
        "n_samples": np.array([10, 20, 30, 40]),
        "online": np.array([3, 7]),
        "reports": Reports.of(reports),
        "now_us": 99,
        "starts": np.array([6, 5, 0, 4]),
        "needed": np.array([2, 6]),
    }
    return StepInput(**given | changed)


def test_all_updates_count_unless_it_is_said_how_many_do() -> None:
    assert arrivals().m == 4
    assert arrivals(present=3).m == 3
    assert arrivals(present=0).m == 0


@pytest.mark.parametrize("present", [None, 4, 3, 1, 0])
def test_those_that_count_come_before_those_that_are_late(present: int | None) -> None:
    whole = arrivals(
        present=present, jobs=np.array([70, 71, 72, 73]), inclusion=np.array([0.1, np.nan, 0.3, 1.0])
    )
    m = 4 if present is None else present
    for part, which in zip(whole.split(), (slice(0, m), slice(m, 4)), strict=True):
        for name in ("clients", "staleness", "n_samples", "jobs", "inclusion", "starts"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[which])
        np.testing.assert_array_equal(part.reports.loss_before, whole.reports.loss_before[which])
        assert part.m == len(part.clients), "all of them count among themselves"
        assert (part.step, part.now_us, part.needed.tolist()) == (6, 99, [2, 6])
        assert part.online.tolist() == [3, 7]


@pytest.mark.parametrize(
    ("usable", "present", "clients", "m"),
    [
        ([True] * 4, 2, [5, 3, 8, 1], 2),
        ([False, True, True, True], 2, [3, 8, 1], 1),
        ([True, True, False, True], 2, [5, 3, 1], 2),
        ([False, True, False, True], None, [3, 1], 2),
        ([False] * 4, 3, [], 0),
    ],
)
def test_updates_that_cannot_be_used_are_left_out_where_they_are(
    usable: list[bool], present: int | None, clients: list[int], m: int
) -> None:
    found = arrivals(present=present).usable(np.array(usable))
    assert found.clients.tolist() == clients
    assert found.m == m
    assert found.reports.loss_before.tolist() == [1.0 + i for i in range(4) if usable[i]]
    assert len(found.jobs) == 0, "numbers of jobs that nobody gave"


def test_a_step_records_how_many_counted_and_how_old_they_were() -> None:
    assert arrivals(present=3).columns(5) == {
        "updates": 3,
        "nonfinite": 2,
        "mean_staleness": pytest.approx(5 / 3),
    }
    none = arrivals(present=0).columns(1)
    assert (none["updates"], none["nonfinite"]) == (0, 1)
    assert math.isnan(none["mean_staleness"])


def test_what_is_kept_beside_the_rows() -> None:
    notes = arrivals().notes()
    assert np.isnan(notes.pop("inclusion")).all(), "nobody stated it"
    assert {name: column.tolist() for name, column in notes.items()} == {
        "staleness": [0, 1, 4, 2],
        "n_samples": [10, 20, 30, 40],
        "loss": [1.0, 2.0, 3.0, 4.0],
        "loss_after": [0.5, 1.5, 2.5, 3.5],
        "accuracy_after": pytest.approx([0.0, 0.1, 0.2, 0.3]),
    }


def test_the_probability_of_a_choice_is_kept_beside_the_rows() -> None:
    stated = np.array([0.5, np.nan, 1.0, 0.25])
    np.testing.assert_array_equal(arrivals(inclusion=stated).notes()["inclusion"], stated)
    usable = arrivals(inclusion=stated).usable(np.array([True, False, False, True]))
    np.testing.assert_array_equal(usable.notes()["inclusion"], stated[[0, 3]])


def test_models_of_versions_that_no_job_needs_are_dropped() -> None:
    models = {0: "a", 2: "b", 5: "c", 6: "d"}
    assert arrivals().still_needed(models) == {2: "b", 6: "d"}
    assert arrivals(needed=np.array([], dtype=np.int64)).still_needed(models) == {}
    assert arrivals(needed=None).still_needed(models) == models


def test_jobs_start_from_their_versions_unless_said_otherwise() -> None:
    assert arrivals().start_versions.tolist() == [6, 5, 0, 4]
    assert arrivals(starts=None).start_versions.tolist() == [6, 5, 2, 4]


def test_what_is_not_said_of_a_step_is_nothing() -> None:
    """All updates count, every job that was started may still run, and nothing is reported or audited."""
    none = np.zeros(0, dtype=np.int64)
    plain = StepInput(3, none, none, none, online=none)
    assert (plain.present, plain.now_us, plain.starts, plain.needed) == (None, 0, None, None)
    assert len(plain.jobs) == len(plain.reports) == 0
    assert plain.audit is None
