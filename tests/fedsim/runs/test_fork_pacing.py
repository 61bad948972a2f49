"""Branching a run with another pacing: what is in flight, what waits and what is remembered find their place in it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.config.run import RunConfig
from fedsim.engine.job_table import RUNNING
from fedsim.invariants import check
from fedsim.records.checkpoint import checkpoints, read
from fedsim.records.manifest import read_manifest
from fedsim.runs.fork import At
from forked_runs import ALL_KEPT, PEACEFUL, branch, table
from small import run, small
from timelines import trace_of


@pytest.mark.parametrize(
    ("pacing", "size"),
    [
        ('{preset="fedbuff", concurrency=10, buffer=2}', 2),
        ('{preset="sync", clients=2}', 2),
        ('{preset="periodic", concurrency=3, deadline="1min"}', 3),
        ('{preset="deadline", clients=2, deadline="1min", late="history"}', 2),
    ],
)
def test_updates_that_wait_are_used_in_steps_of_the_smaller_buffer(
    tmp_path: Path, pacing: str, size: int
) -> None:
    buffered = {"preset": "fedbuff", "concurrency": 10, "buffer": 8}
    parent = run(small(world=PEACEFUL, pacing=buffered, algorithm={"name": "fedfv"}, **ALL_KEPT), tmp_path)
    jobs = table(parent.folder, "jobs")
    waiting = jobs[jobs.step == 3].sort_values("end_us")
    at = At(time_us=int(waiting.end_us.iloc[5]))
    child = branch(parent.folder, at, f"pacing={pacing}", "stop.steps=12", out=tmp_path / "child")
    steps, new = table(child.folder, "steps"), table(child.folder, "jobs")
    assert steps.updates[3] == size
    assert steps.updates[3:].max() == size
    first = new[new.job.isin(waiting.job[:6])].set_index("job")
    late = {"sync": "late", "deadline": "remembered"}.get(pacing.split('"')[1], "aggregated")
    assert first.status[waiting.job[:6]].tolist() == [*["aggregated"] * size, *[late] * (6 - size)]


LATE: dict[str, Any] = {
    "world": PEACEFUL,
    "pacing": {"preset": "deadline", "clients": 4, "deadline": "15s"},
    "stop": {"steps": 20},
}


@pytest.mark.parametrize("after", ["keep", "drop", "history"])
@pytest.mark.parametrize("before", ["keep", "history"])
def test_late_jobs_are_counted_as_the_new_pacing_counts_them(tmp_path: Path, before: str, after: str) -> None:
    parent = run(small(**LATE | {"pacing": LATE["pacing"] | {"late": before}}), tmp_path)
    seen = []

    def watch(progress: Any) -> None:
        run_state = progress.run_state
        if len(seen) == 12:  # the call at the end, when nothing is under way any more
            return
        jobs = run_state.job_table.table
        old = (jobs["status"] == RUNNING) & (jobs["version"] <= run_state.step - 1)
        assert run_state.overdue_running == (np.count_nonzero(old) if after == "history" else 0)
        seen.append(run_state.working)

    child = branch(parent.folder, At(step=8), f"pacing.late={after}", out=tmp_path / "child", watch=watch)
    assert read_manifest(child.folder)["ended_by"] == "steps"
    assert len(seen) == 12
    assert all(
        b <= max(a, 4) for a, b in itertools.pairwise(seen)
    )  # a parent may have more of them under way
    assert seen[-1] <= 4
    jobs = table(child.folder, "jobs")
    new = jobs[jobs.version > 8]
    assert new.groupby("version").size().max() <= 4
    assert new[new.status == "remembered"].empty == (after != "history")
    if before == "history" and after == "history":
        assert child.digest == parent.digest


@pytest.mark.parametrize(("change", "seconds"), [("pacing.minimum=1", None), ("pacing.deadline=1s", 1)])
def test_a_deadline_stays_unless_it_changes_and_begins_anew_then(
    tmp_path: Path, change: str, seconds: int | None
) -> None:
    parent = run(small(**LATE | {"pacing": LATE["pacing"] | {"late": "drop"}}), tmp_path)
    steps = table(parent.folder, "steps")
    number = int(np.flatnonzero((steps.cause == "deadline") & (steps.step > 3))[0])
    due_us = int(steps.time_us[number])
    child = branch(parent.folder, At(time_us=due_us - 5_000_000), change, out=tmp_path / "child")
    found, forked_us = (
        table(child.folder, "steps").loc[number],
        read_manifest(child.folder)["parent"]["forked_us"],
    )
    assert found.cause == "deadline"
    assert found.time_us == (due_us if seconds is None else forked_us + seconds * 1_000_000)


@pytest.mark.parametrize(("after", "status"), [("keep", "aggregated"), ("drop", "late")])
def test_late_updates_that_wait_for_a_step_go_the_way_of_the_new_pacing(
    tmp_path: Path, after: str, status: str
) -> None:
    parent = run(small(**LATE | {"pacing": LATE["pacing"] | {"late": "history"}}), tmp_path)
    jobs, steps = table(parent.folder, "jobs"), table(parent.folder, "steps").time_us.to_numpy()
    overdue = jobs[(jobs.status == "remembered") & (jobs.version > 3)].iloc[0]
    assert overdue.end_us not in steps
    at = At(time_us=int(overdue.end_us))
    child = branch(parent.folder, at, f"pacing.late={after}", out=tmp_path / "child")
    found = table(child.folder, "jobs")
    assert found.status[found.job == overdue.job].tolist() == [status]


@pytest.mark.parametrize("rung", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", ["fedlf", "fedfv"])
def test_a_smaller_step_and_memory_take_over_what_they_have_room_for(
    tmp_path: Path, rule: str, rung: str
) -> None:
    config = {"algorithm": {"name": rule}, "memory": {"history": rung}}
    parent = run(small(pacing={"preset": "sync", "clients": 8}, **config), tmp_path)
    child = branch(parent.folder, At(step=4), "pacing.clients=2", "memory.slots=5", out=tmp_path / "child")
    steps = table(child.folder, "steps")
    assert steps.updates[4:].max() == 2
    assert 0 < steps.remembered[4] <= 5


def test_clients_that_went_on_from_a_void_update_start_again_from_before(tmp_path: Path) -> None:
    """Asynchronous pacing lets a client work on while its update waits; what steps drop goes back job by job."""
    jitter = {"payload": "5 MB", "compute_scale": 10, "jitter": {"compute": 1.5}}
    pacing = {"preset": "fedbuff", "concurrency": 6, "buffer": 6}
    parent = run(small(pacing=pacing, client={"name": "ditto"}, cost=jitter), tmp_path)
    jobs, steps = table(parent.folder, "jobs"), table(parent.folder, "steps").time_us.to_numpy()
    used = jobs[jobs.status == "aggregated"]
    twice = used[used.duplicated(["step", "client"])]  # in order of arrival: the second of two
    at_us = next(job.end_us for job in twice.itertuples() if job.end_us < steps[job.step])
    sets = ("pacing.preset=deadline", "pacing.clients=6", "pacing.deadline=1s", "pacing.minimum=6")
    child = branch(parent.folder, At(time_us=int(at_us)), *sets, out=tmp_path / "child")
    found = table(child.folder, "jobs")
    void = found[found.status == "void"]
    assert void.client.duplicated().any()
    assert (found[found.status == "late"].version == 0).any()


def test_more_clients_may_be_needed_at_once_where_more_stay_online(tmp_path: Path) -> None:
    rare = {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "2min", "mean_off": "30min"}}
    parent, needed = run(small(world=rare), tmp_path).folder, "pacing.least_candidates=8"
    with pytest.raises(
        ConfigError, match="expected at most 3, as many clients as this world ever has online"
    ):
        branch(parent, At(step=3), needed, out=tmp_path)
    child = branch(parent, At(step=3), needed, keep_online=range(12), out=tmp_path)
    assert len(table(child.folder, "steps")) == 8


H = 3600 * US


def by_day(folder: Path, hours: list[tuple[int, int]], **changes: Any) -> RunConfig:
    """Return a run whose 12 clients are online in these hours of each day, and work two or three minutes on a job."""
    sessions = {client: [(a * 3600.0, b * 3600.0) for a, b in hours] for client in range(12)}
    trace_of([1.0] * 12, 24 * 3600.0, sessions, after_end="repeat").write(folder / "day.parquet")
    return small(world={"trace": str(folder / "day.parquet")}, cost={"payload": "100 B"}, **changes)


def test_clients_that_are_kept_online_start_at_the_time_of_the_fork(tmp_path: Path) -> None:
    """The run waits from 1 h to 10 h, and nothing happens at 3 h itself."""
    parent = run(by_day(tmp_path, [(0, 1), (10, 11)], stop={"steps": 40}), tmp_path / "p")
    child = branch(parent.folder, At(time_us=3 * H), keep_online=range(12), out=tmp_path / "c")
    before, after = (table(result.folder, "jobs").dispatch_us for result in (parent, child))
    assert sorted(before[before > H])[0] == 10 * H
    assert sorted(after[after > H])[0] == 3 * H
    assert read_manifest(child.folder)["parent"]["forked_us"] == 3 * H
    assert not list(check(child.folder).violations)


def test_a_job_that_is_paused_goes_on_at_the_time_of_the_fork(tmp_path: Path) -> None:
    config = by_day(tmp_path, [(0, 1), (10, 11)], stop={"steps": 40}, dropout={"leave": "pause_resume"})
    parent = run(config, tmp_path / "p")
    child = branch(parent.folder, At(time_us=3 * H), keep_online=range(12), out=tmp_path / "c")
    before, after = (table(result.folder, "steps").time_us for result in (parent, child))
    assert before[before > 2 * H].iloc[0] > 10 * H, "a job is paused overnight"
    assert after[after > H].iloc[0] == before[before > 2 * H].iloc[0] - 7 * H


@pytest.mark.parametrize(
    ("change", "hour"),
    [
        ("pacing.deadline=6h", 24),
        ('pacing={preset="sync", clients=4}', 18),
        ('pacing={preset="fedbuff", concurrency=4, buffer=2}', 18),
    ],
)
def test_updates_that_wait_for_a_deadline_do_not_wait_for_ever_when_it_changes(
    tmp_path: Path, change: str, hour: int
) -> None:
    pacing = {"preset": "periodic", "concurrency": 4, "deadline": "12h"}
    parent = run(by_day(tmp_path, [(0, 24)], pacing=pacing, stop={"steps": 4}), tmp_path / "p")
    child = branch(parent.folder, At(time_us=18 * H), change, out=tmp_path / "c")
    assert read_manifest(child.folder)["ended_by"] == "steps"
    assert table(child.folder, "steps").time_us[:2].tolist() == [12 * H, hour * H]


def test_places_that_a_fork_adds_are_filled_at_once(tmp_path: Path) -> None:
    pacing = {"preset": "fedbuff", "concurrency": 1, "buffer": 1}
    parent = run(by_day(tmp_path, [(0, 24)], pacing=pacing), tmp_path / "p")
    at = int(table(parent.folder, "jobs").dispatch_us[3]) + 1
    child = branch(parent.folder, At(time_us=at), "pacing.concurrency=3", out=tmp_path / "c")
    assert (table(child.folder, "jobs").dispatch_us == at).sum() == 2


def test_a_fork_has_wall_time_of_its_own(tmp_path: Path) -> None:
    parent = run(small(**ALL_KEPT), tmp_path / "p")
    child = branch(parent.folder, At(step=4), "stop.wall=1h", out=tmp_path / "c")
    spent = [[read(c.path)["spent_s"] for c in checkpoints(result.folder)] for result in (parent, child)]
    assert spent[0][4] > 0
    assert spent[1][0] == 0.0
