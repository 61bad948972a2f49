"""Branching a run: without changes it is the parent, with changes it is the parent until then."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from test_resume import BUFFERED, CASES, stopped_at

from fedsim.checkpoint import checkpoints
from fedsim.course import Course, Kind
from fedsim.errors import CheckpointError, ConfigError, TraceError
from fedsim.forking import At, fork
from fedsim.ledger import RUNNING
from fedsim.manifest import read_manifest
from fedsim.pool import RayPool
from fedsim.result import Result
from fedsim.simulation import resume
from fedsim.trace import read_trace
from fedsim.world import World
from small import run, small


def branch(parent: Path, at: At, *sets: str, out: Path, **options: Any) -> Result:
    return fork(parent, at, sets, out=out, **({"workers": 0} | options))


@pytest.mark.parametrize("case", CASES)
def test_without_changes_it_is_the_parent(tmp_path: Path, case: str) -> None:
    parent = run(small(**CASES[case]), tmp_path)
    manifest = read_manifest(parent.folder)
    for number, at in enumerate((At(step=manifest["steps"] // 2), At(time_us=manifest["virtual_us"] // 3))):
        child = branch(parent.folder, at, out=tmp_path / str(number))
        assert child.digest == parent.digest


def test_it_goes_on_from_a_checkpoint_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = run(small(checkpoint={"every_steps": 2, "keep": "all"}), tmp_path)
    read = []
    from fedsim import forking

    monkeypatch.setattr(
        forking.checkpoint,
        "read",
        lambda path, owner, before=forking.checkpoint.read: read.append(path.name) or before(path, owner),
    )
    assert branch(parent.folder, At(step=5), out=tmp_path / "a").digest == parent.digest
    assert read[-1].startswith("00000004-")
    assert len(checkpoints(parent.folder)) == 4  # the parent stays as it is


@pytest.mark.parametrize("checkpoints_kept", [False, True])
def test_by_time_it_leaves_after_the_last_instant_before(tmp_path: Path, checkpoints_kept: bool) -> None:
    kept = {"checkpoint": {"every_steps": 2, "keep": "all"}} if checkpoints_kept else {}
    parent = run(small(pacing=BUFFERED, **kept), tmp_path)
    steps, jobs = (pq.read_table(parent.folder / f"{table}.parquet") for table in ("steps", "jobs"))
    instants = np.unique(
        [*steps["time_us"].to_pylist(), *jobs["dispatch_us"].to_pylist(), *jobs["end_us"].to_pylist()]
    )
    for at in (instants[1] - 1, instants[len(instants) // 2], instants[len(instants) // 2] + 1):
        child = branch(
            parent.folder, At(time_us=int(at)), "selection.name=round_robin", out=tmp_path / str(at)
        )
        origin = read_manifest(child.folder)["parent"]
        assert origin["forked_us"] == instants[instants <= at].max()
        assert origin["forked_step"] == np.count_nonzero(np.array(steps["time_us"]) <= at)
        new = pq.read_table(child.folder / "jobs.parquet").to_pandas()
        old = jobs.to_pandas()
        before = old.job[old.dispatch_us <= at].tolist()
        facts = ["client", "version", "dispatch_us"]
        pd.testing.assert_frame_equal(
            new[new.job.isin(before)].sort_values("job")[facts].reset_index(drop=True),
            old[old.job.isin(before)].sort_values("job")[facts].reset_index(drop=True),
        )


def test_events_that_no_longer_count_do_not_put_off_a_fork() -> None:
    course = Course(3, begun=True, armed=True, deadlines=2)
    course.heap = [(4, int(Kind.WAKE), -1, -1), (5, int(Kind.DEADLINE), -1, 1), (9, int(Kind.ARRIVE), 0, 0)]
    assert At(time_us=6).reached(course)
    assert not At(time_us=9).reached(course)
    course.heap[1] = (5, int(Kind.DEADLINE), -1, 2)
    assert not At(time_us=6).reached(course)
    assert not At(time_us=6).reached(Course(3))


@pytest.mark.parametrize(
    "change",
    [
        "algorithm.name=fedmgda_plus",
        "algorithm.name=fedfv",
        "algorithm.alpha=0.5",
        "selection.name=oort",
        "pacing.buffer=2",
        "memory.history=bfloat16",
        "train.lr=0.01",
        "evaluate.every=1min",
    ],
)
def test_with_a_change_it_is_the_parent_until_then(tmp_path: Path, change: str) -> None:
    algorithm = {"name": "fedfv", "alpha": 0.1} if "alpha" in change else {"name": "fedlf"}
    parent = run(small(pacing=BUFFERED, algorithm=algorithm), tmp_path)
    child = branch(parent.folder, At(step=4), change, out=tmp_path / "child")
    assert child.digest != parent.digest
    manifest = read_manifest(child.folder)
    assert manifest["parent"]["digest"] == parent.digest
    assert (manifest["parent"]["forked_step"], manifest["parent"]["changes"]) == (4, [change])
    assert manifest["resumed"] == []
    for table, first in (("steps", 4), ("jobs", 12)):
        a, b = (
            pq.read_table(f / f"{table}.parquet").slice(0, first).to_pydict()
            for f in (parent.folder, child.folder)
        )
        np.testing.assert_equal(a, b)  # one that is no number equals another
    key, _, value = change.partition("=")
    said = (child.folder / "config.resolved.toml").read_text()
    assert f"{key.rpartition('.')[2]} = " in said
    assert value.removesuffix("min") in said


def test_a_rule_with_a_memory_goes_on_with_what_was_remembered(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED, algorithm={"name": "fedlf"}), tmp_path)
    child = branch(parent.folder, At(step=4), "algorithm.name=fedfv", out=tmp_path / "child")
    remembered = pq.read_table(child.folder / "steps.parquet")["remembered"].to_pylist()
    assert remembered[4] > 0


@pytest.mark.ray
@pytest.mark.parametrize("change", ["algorithm.name=fedfv", "memory.history=bfloat16"])
def test_with_workers_it_is_the_same_fork(tmp_path: Path, change: str, two_workers: RayPool) -> None:
    parent = run(small(pacing=BUFFERED), tmp_path)
    digests = {
        branch(parent.folder, At(step=4), change, out=tmp_path / name, pool=pool).digest
        for name, pool in (("inline", None), ("ray", two_workers))
    }
    assert len(digests) == 1


def test_clients_can_be_kept_online_from_then_on(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED, stop={"time": "1h"}), tmp_path)
    jobs = pq.read_table(parent.folder / "jobs.parquet").to_pandas()
    lost = jobs[jobs.status == "lost"]
    at = int(lost.end_us.iloc[len(lost) // 3]) - 1
    running = lost[(lost.dispatch_us <= at) & (lost.end_us > at)]
    assert len(running)
    kept = sorted(running.client.tolist())
    child = branch(parent.folder, At(time_us=at), keep_online=kept, out=tmp_path / "child")
    world = World(read_trace(child.folder / "world.parquet"), 12)
    for time_us in np.linspace(at, 3_500_000_000, 20).astype(int).tolist():
        assert world.online(time_us)[kept].all()
    new = pq.read_table(child.folder / "jobs.parquet").to_pandas()
    changed = new[new.job.isin(running.job)]
    assert (changed.status == "aggregated").all()  # what they were doing then comes to its end
    before = jobs[jobs.end_us <= at]
    np.testing.assert_equal(new[new.job.isin(before.job)].to_dict("list"), before.to_dict("list"))
    assert not (new[new.client.isin(kept) & (new.dispatch_us > at)].status == "lost").any()


@pytest.mark.parametrize("stop", [{"time": "12min"}, {"steps": 40}])
def test_clients_stay_online_in_every_lap_of_a_world_that_repeats(
    tmp_path: Path, stop: dict[str, Any]
) -> None:
    short = {"scenario": "churn", "horizon": "3min", "options": {"mean_on": "1min", "mean_off": "1min"}}
    parent = run(small(world=short, pacing=BUFFERED, stop=stop), tmp_path)
    at = 400_000_000
    child = branch(parent.folder, At(time_us=at), keep_online=[7, 4], out=tmp_path / "child")
    manifest = read_manifest(child.folder)
    forked_us, last_us = manifest["parent"]["forked_us"], manifest["virtual_us"]
    before, after = (World(read_trace(run.folder / "world.parquet"), 12) for run in (parent, child))
    others = [client for client in range(12) if client not in (4, 7)]
    assert last_us > 560_000_000  # a lap and more after the fork
    for time_us in np.linspace(0, last_us, 200).astype(int).tolist():
        was, now = before.online(time_us), after.online(time_us)
        assert (was == now)[others].all()
        assert now[[4, 7]].all() if time_us >= forked_us else (was == now).all()
    assert child.digest != parent.digest
    jobs = table(child.folder, "jobs")
    assert not (jobs[jobs.client.isin([4, 7]) & (jobs.dispatch_us > at)].status == "lost").any()


ASYNCHRONOUS: dict[str, Any] = {
    "pacing": {"preset": "fedasync", "concurrency": 3},
    "algorithm": {"name": "fedasync"},
}
PEACEFUL = {"scenario": "churn", "horizon": "10h", "options": {"mean_on": "1000h", "mean_off": "1min"}}

ALL_KEPT = {"checkpoint": {"every_steps": 1, "keep": "all"}}


def table(folder: Path, name: str) -> pd.DataFrame:
    return pq.read_table(folder / f"{name}.parquet").to_pandas()


@pytest.mark.parametrize("kept", [{}, ALL_KEPT])
def test_jobs_that_would_come_too_late_are_used_if_there_is_more_time(
    tmp_path: Path, kept: dict[str, Any]
) -> None:
    config = ASYNCHRONOUS | {"world": PEACEFUL} | kept
    parent = run(small(**config, stop={"time": "2min"}), tmp_path)
    longer = run(small(**config, name="longer", stop={"time": "3min"}), tmp_path)
    jobs = table(parent.folder, "jobs")
    late = jobs[jobs.status == "unfinished"]
    assert late.version.nunique() > 1
    for at in sorted(late.dispatch_us):
        child = branch(parent.folder, At(time_us=int(at)), "stop.time=3min", out=tmp_path / f"{at}")
        assert child.digest == longer.digest


@pytest.mark.parametrize("pool", [None, pytest.param("two_workers", marks=pytest.mark.ray)])
def test_jobs_that_would_be_lost_are_used_if_their_client_stays(
    tmp_path: Path, pool: str | None, request: pytest.FixtureRequest
) -> None:
    world = {"scenario": "churn", "horizon": "10h", "options": {"mean_on": "1min", "mean_off": "1min"}}
    parent = run(small(**ASYNCHRONOUS, world=world, stop={"time": "4min"}, **ALL_KEPT), tmp_path)
    jobs, steps = table(parent.folder, "jobs"), table(parent.folder, "steps").time_us.to_numpy()
    lost = jobs[(jobs.status == "lost") & (jobs.version > 3)]
    job = next(j for j in lost.itertuples() if ((steps > j.dispatch_us) & (steps < j.end_us)).any())
    versions = []
    for at in (int(job.dispatch_us), int(job.end_us) - 1):
        child = branch(
            parent.folder,
            At(time_us=at),
            keep_online=[job.client],
            out=tmp_path / f"{at}",
            pool=pool and request.getfixturevalue(pool),
        )
        new = table(child.folder, "jobs")
        assert new.status[new.job == job.job].tolist() == ["aggregated"]
        versions.append(read_manifest(child.folder)["parent"]["forked_step"])
    assert versions[0] == job.version < versions[1]


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
        course = progress.course
        jobs = course.ledger.table
        old = (jobs["status"] == RUNNING) & (jobs["version"] <= course.step - 1)
        assert course.overdue_running == (np.count_nonzero(old) if after == "history" else 0)
        seen.append(course.working)

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


def test_a_fork_can_be_killed_and_go_on(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED), tmp_path)
    whole = branch(parent.folder, At(step=4), "algorithm.name=fedfv", out=tmp_path / "whole")

    def killed(progress: Any) -> None:
        if progress.course.step == 6:
            raise SystemExit

    with pytest.raises(SystemExit):
        branch(parent.folder, At(step=4), "algorithm.name=fedfv", out=tmp_path / "killed", watch=killed)
    folder = tmp_path / "killed" / "small-fork"
    assert resume(folder, workers=0).digest == whole.digest


def test_a_fork_without_a_checkpoint_does_not_start_over(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED), tmp_path)

    def killed(progress: Any) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        branch(parent.folder, At(step=4), out=tmp_path / "killed", watch=killed)
    folder = tmp_path / "killed" / "small-fork"
    for found in checkpoints(folder):
        found.path.rename(folder / "elsewhere")
    with pytest.raises(CheckpointError, match="none is left: fork its parent again"):
        resume(folder, workers=0)


@pytest.mark.parametrize(
    ("at", "sets", "options", "error"),
    [
        (At(step=4), ["seed=9"], {}, "fork: seed: it cannot change"),
        (At(step=4), ["task.clients=13"], {}, "fork: task: it cannot change"),
        (At(step=4), ["world.horizon=3h"], {}, "fork: world: it cannot change .* --keep-online"),
        (At(step=4), ["algorithm.name=fedlv"], {}, "did you mean 'fedlf'"),
        (
            At(step=4),
            ["pacing.late=history", "algorithm.name=fedavg"],
            {},
            "pacing.late: 'history' needs a rule",
        ),
        (At(step=8), [], {}, "ended after 8 steps, found step 8"),
        (At(time_us=10**12), [], {}, "ended at .*, found"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_run(
    tmp_path: Path, at: At, sets: list[str], options: dict[str, Any], error: str
) -> None:
    parent = run(small(), tmp_path)
    with pytest.raises(ConfigError, match=error):
        branch(parent.folder, at, *sets, out=tmp_path / "child", **options)
    assert not (tmp_path / "child").exists()
    with pytest.raises(TraceError, match="found client 12"):
        branch(parent.folder, At(step=4), keep_online=[12], out=tmp_path / "child")


def test_a_parent_that_was_killed_can_be_forked(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2}), tmp_path)
    assert branch(folder, At(step=3), out=tmp_path / "a").digest == run(small(), tmp_path / "b").digest
