"""Branching a run: without changes it is the parent, with changes it is the parent until then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedsim.common.errors import CheckpointError, ConfigError, FolderError, RunError, TraceError
from fedsim.common.units import US
from fedsim.config.errors import assignments
from fedsim.config.load import load_config
from fedsim.engine.state import Kind, RunState
from fedsim.execution.actor_pool import RayPool
from fedsim.invariants import check
from fedsim.records import checkpoint
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest
from fedsim.records.run_folder import lock
from fedsim.runs.fork import At
from fedsim.runs.replay import replay
from fedsim.runs.resume import resume
from fedsim.training.attack import attacked
from fedsim.worlds.trace import read_trace
from fedsim.worlds.world import World
from forked_runs import ALL_KEPT, PEACEFUL, branch, table
from interrupted_runs import BUFFERED, CASES, stopped_at
from small import run, small


@pytest.mark.parametrize("case", CASES)
def test_without_changes_it_is_the_parent(tmp_path: Path, case: str) -> None:
    parent = run(small(**CASES[case]), tmp_path)
    manifest = read_manifest(parent.folder)
    for number, at in enumerate((At(step=manifest["steps"] // 2), At(time_us=manifest["virtual_us"] // 3))):
        child = branch(parent.folder, at, out=tmp_path / str(number))
        assert child.digest == parent.digest


def test_an_instant_may_be_a_number_of_a_frame() -> None:
    assert At.of(np.int32(4)) == At.of("4") == At(step=4)


def test_it_goes_on_from_a_checkpoint_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = run(small(checkpoint={"every_steps": 2, "keep": "all"}), tmp_path)
    read = []
    monkeypatch.setattr(
        checkpoint,
        "read",
        lambda path, before=checkpoint.read: read.append(path.name) or before(path),
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
        assert origin["forked_us"] == at
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
    run_state = RunState(3, begun=True, armed=True, deadlines=2)
    run_state.heap = [
        (4, int(Kind.WAKE), -1, -1),
        (5, int(Kind.DEADLINE), -1, 1),
        (9, int(Kind.ARRIVE), 0, 0),
    ]
    assert At(time_us=6).reached(run_state)
    assert not At(time_us=9).reached(run_state)
    run_state.heap[1] = (5, int(Kind.DEADLINE), -1, 2)
    assert not At(time_us=6).reached(run_state)
    assert not At(time_us=6).reached(RunState(3))


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
    for name, first in (("steps", 4), ("jobs", 12)):
        a, b = (
            pq.read_table(f / f"{name}.parquet").slice(0, first).to_pydict()
            for f in (parent.folder, child.folder)
        )
        np.testing.assert_equal(a, b)  # one that is no number equals another
    evals = table(child.folder, "evals").sort_values("step", kind="stable")
    assert evals.time_us.is_monotonic_increasing
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
        branch(parent.folder, At(step=4), change, out=tmp_path / name, workers=workers).digest
        for name, workers in (("inline", 0), ("ray", two_workers))
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


def test_a_client_that_sends_nothing_does_so_when_it_is_kept_online(tmp_path: Path) -> None:
    drops = {"name": "drop", "clients": [1, 5, 7, 8], "chance": 0.5}
    config = small(pacing=BUFFERED, adversary=[drops], stop={"time": "8min"}, **ALL_KEPT)
    parent = run(config, tmp_path)
    jobs = table(parent.folder, "jobs")
    jobs["struck"] = attacked(config.adversaries(), config.seed, jobs)["drop"]
    struck = jobs[jobs.struck & (jobs.version > 0)].iloc[0]
    at = At(time_us=int(struck.dispatch_us))
    child = branch(parent.folder, at, keep_online=[int(struck.client)], out=tmp_path / "child")
    found = table(child.folder, "jobs")
    mine = found[found.job == struck.job].iloc[0]
    assert (mine.status, mine.phase) == ("lost", "upload")
    assert not set(found.status[attacked(config.adversaries(), config.seed, found)["drop"]]) & {"aggregated"}


def struck_in(folder: Path) -> list[bool]:
    """Return which jobs of a run were attacked, as its configuration says."""
    config = load_config(folder / "config.resolved.toml")[0]
    (flags,) = attacked(config.adversaries(), config.seed_of("world"), table(folder, "jobs")).values()
    return [bool(flag) for flag in flags]


@pytest.mark.parametrize("name", ["sign_flip", "label_flip", "gaussian_noise", "drop"])
def test_new_attacks_strike_the_jobs_after_the_fork(tmp_path: Path, name: str) -> None:
    """It is the run whose attack begins after the fork: jobs under way then are honest, as the tables say."""
    config: dict[str, Any] = {"pacing": BUFFERED, "stop": {"time": "8min"}} | ALL_KEPT
    parent = run(small(**config), tmp_path)
    attack = {"name": name, "clients": [1, 5, 7, 8]}
    child = branch(parent.folder, At(step=4), *assignments({"adversary": attack}), out=tmp_path / "child")
    after = f"{read_manifest(child.folder)['parent']['forked_us'] + 1}us"
    whole = run(small(**config, name="whole", adversary=[attack | {"after": after}]), tmp_path)
    assert child.digest == whole.digest
    again = branch(child.folder, At(step=6), out=tmp_path / "again")
    assert again.digest == child.digest
    assert struck_in(child.folder) == struck_in(again.folder) == struck_in(whole.folder)
    assert any(struck_in(whole.folder))
    over = assignments({"adversary": attack | {"until": "1us"}})
    with pytest.raises(ConfigError, match="until: expected a time later than 'after'"):
        branch(parent.folder, At(step=4), *over, out=tmp_path / "late")


@pytest.mark.parametrize("change", ["adversary.until=100h", "adversary.after=1us", "adversary.chance=1.0"])
def test_an_attack_of_the_parent_goes_on_if_only_its_times_change(tmp_path: Path, change: str) -> None:
    attack = {"name": "sign_flip", "clients": [1, 5, 7, 8]}
    parent = run(small(pacing=BUFFERED, stop={"time": "8min"}, adversary=[attack], **ALL_KEPT), tmp_path)
    sets = assignments({"adversary": attack | {"chance": 0.999999}})
    child = branch(parent.folder, At(step=4), *sets, change, out=tmp_path / "child")
    assert child.digest == parent.digest
    ended = branch(
        parent.folder, At(time_us=120_000_000), *sets, "adversary.until=2min", out=tmp_path / "ended"
    )
    assert max(table(ended.folder, "jobs").dispatch_us[struck_in(ended.folder)]) < 120_000_000


def test_a_new_attack_that_ends_before_the_fork_is_refused_before_the_fork_is_made(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED, stop={"time": "8min"}, **ALL_KEPT), tmp_path)
    over = assignments({"adversary": {"name": "zero", "share": 0.5, "until": "1min"}})
    with pytest.raises(ConfigError, match="until: expected a time later than 'after'"):
        branch(parent.folder, At(time_us=120_000_000), *over, out=tmp_path / "late")
    assert not (tmp_path / "late").exists()


ASYNCHRONOUS: dict[str, Any] = {
    "pacing": {"preset": "fedasync", "concurrency": 3},
    "algorithm": {"name": "fedasync"},
}


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
            workers=request.getfixturevalue(pool) if pool else 0,
        )
        new = table(child.folder, "jobs")
        assert new.status[new.job == job.job].tolist() == ["aggregated"]
        versions.append(read_manifest(child.folder)["parent"]["forked_step"])
    assert versions[0] == job.version < versions[1]


def test_a_loss_that_a_shorter_notice_puts_before_the_fork_is_noticed_at_once(tmp_path: Path) -> None:
    world = {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "3min", "mean_off": "2min"}}
    cost = {"payload": "20 MB", "compute_scale": 120.0}
    config = small(pacing=BUFFERED, world=world, cost=cost, dropout={"notice": "10min"}, stop={"steps": 12})
    parent = run(config, tmp_path)
    jobs = table(parent.folder, "jobs")
    lost = jobs[jobs.status == "lost"].iloc[3]
    at_us = int(lost.end_us) + 300 * US
    child = branch(
        parent.folder,
        At(time_us=at_us),
        "dropout.notice=0",
        keep_online=[int(lost.client)],
        out=tmp_path / "child",
    )
    new = table(child.folder, "jobs")
    assert new[~new.job.isin(jobs.job[jobs.dispatch_us <= at_us])].dispatch_us.min() >= at_us
    assert check(child.folder).violations == ()


def test_a_rule_of_gradients_does_not_get_jobs_under_way_that_take_several_steps(tmp_path: Path) -> None:
    parent = run(small(train={"epochs": 3, "batch_size": 4}), tmp_path)
    sets = ("algorithm.name=qfedsgd", "train.epochs=1", "train.batch_size=full")
    with pytest.raises(ConfigError, match=r"rule 'qfedsgd' wants one gradient step .* the job of client \d+"):
        branch(parent.folder, At(step=4), *sets, out=tmp_path / "child")
    gradients = run(small(name="g", train={"batch_size": "full"}), tmp_path)
    assert branch(gradients.folder, At(step=4), sets[0], out=tmp_path / "child").status == "done"


@pytest.mark.parametrize("rule", [{"name": "fedfa"}, {"name": "qfedavg", "losses": "after"}])
def test_a_rule_takes_no_remembered_row_without_the_reports_that_it_reads(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    """MIFA's rows came without losses and accuracies after training, which would make all weights NaN."""
    parent = run(small(algorithm={"name": "mifa"}, pacing={"preset": "sync", "clients": 3}), tmp_path)
    sets = [f"algorithm.{key}={value}" for key, value in rule.items()]
    wrap = 'algorithm.wrap=[{name="with_absent", window="all"}]'
    child = branch(parent.folder, At(step=4), *sets, wrap, out=tmp_path / "child")
    steps = table(child.folder, "steps")
    assert child.status == "done"
    assert steps.remembered[steps.step > 4].max() > 0


def test_a_damaged_checkpoint_does_not_stop_a_fork_that_has_one_before(tmp_path: Path) -> None:
    parent = run(small(checkpoint={"every_steps": 2, "keep": "all"}), tmp_path)
    steps, saved = table(parent.folder, "steps"), checkpoints(parent.folder)
    for each in saved[1:]:
        (each.path / "state.json").write_text("cut")
    for number, at in enumerate((At(step=3), At(step=7), At(time_us=int(steps.time_us.iloc[6])))):
        assert branch(parent.folder, at, out=tmp_path / str(number)).digest == parent.digest
    for at in (At(step=1), At(time_us=int(steps.time_us.iloc[0]))):  # from the start
        assert branch(parent.folder, at, out=tmp_path / f"{at}").digest == parent.digest


def test_naming_the_client_method_that_it_has_changes_nothing(tmp_path: Path) -> None:
    parent = run(small(train={"mode": "loop"}, client={"name": "plain"}), tmp_path)
    child = branch(parent.folder, At(step=3), "client.name=plain", out=tmp_path / "child")
    assert child.digest == parent.digest


def test_a_fork_can_be_killed_and_go_on(tmp_path: Path) -> None:
    parent = run(small(pacing=BUFFERED), tmp_path)
    whole = branch(parent.folder, At(step=4), "algorithm.name=fedfv", out=tmp_path / "whole")

    def killed(progress: Any) -> None:
        if progress.run_state.step == 6:
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
    with pytest.raises(TraceError, match="keep_online: expected clients from 0 to 11, found client 12"):
        branch(parent.folder, At(step=4), keep_online=[12], out=tmp_path / "child")
    with pytest.raises(
        ConfigError, match=r"keep_online\[0\]: expected a whole number below 2\^63 in size, found 1000"
    ):
        branch(parent.folder, At(step=4), keep_online=[10**20], out=tmp_path / "child")


def test_a_parent_that_was_killed_can_be_forked(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2}), tmp_path)
    assert branch(folder, At(step=3), out=tmp_path / "a").digest == run(small(), tmp_path / "b").digest


@pytest.mark.parametrize("keep", ["all", 2])
def test_a_fork_of_a_fork_never_runs_what_was_before_the_first_one(tmp_path: Path, keep: str | int) -> None:
    """It was another rule's, and goes on from a checkpoint alone."""
    parent = run(small(checkpoint={"every_steps": 1, "keep": keep}), tmp_path)
    child = branch(parent.folder, At(step=4), "algorithm.name=fedavg", out=tmp_path / "child")
    forked_us = read_manifest(child.folder)["parent"]["forked_us"]
    since, before = (At(step=4), At(step=6), At(time_us=forked_us)), (At(step=2), At(time_us=forked_us - 1))
    for number, at in enumerate(since):
        if keep == "all":
            again = branch(child.folder, at, out=tmp_path / str(number))
            assert again.digest == child.digest
    for at in before if keep == "all" else (*before, *since):
        with pytest.raises(ConfigError, match="it is a fork itself, and no checkpoint is left from before"):
            branch(child.folder, at, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_fork_does_not_take_the_place_of_its_parent_or_of_a_run_that_goes_on(tmp_path: Path) -> None:
    parent = run(small(), tmp_path)
    with pytest.raises(ConfigError, match="small is the parent itself"):
        branch(parent.folder, At(step=4), out=tmp_path, name="small", force=True)
    assert read_manifest(parent.folder)["digest"] == parent.digest
    other = branch(parent.folder, At(step=4), out=tmp_path)
    with pytest.raises(FolderError, match=f"--name, .*, with fedsim resume {other.folder};"):
        branch(parent.folder, At(step=4), out=tmp_path)
    with lock(other.folder), pytest.raises(RunError, match="another process is running it"):
        branch(parent.folder, At(step=4), out=tmp_path, force=True)
    assert read_manifest(other.folder)["digest"] == parent.digest


def test_an_evaluation_that_is_due_when_a_fork_leaves_takes_place(tmp_path: Path) -> None:
    """It is made when everything of its instant has happened, which is when the fork leaves."""
    periodic = {"preset": "periodic", "concurrency": 5, "deadline": "1min"}
    parent = run(small(pacing=periodic, evaluate={"every": "1min", "every_steps": 0}), tmp_path)
    child = branch(parent.folder, At(step=3), "evaluate.clients=5", out=tmp_path / "child")
    before, after = (table(f, "evals").groupby("time_us").step.first() for f in (parent.folder, child.folder))
    assert before.equals(after)
    assert before[180_000_000] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("name=other", "name the new run with --name"),
        ("parent.run=elsewhere", "parent: .* cannot be changed"),
    ],
)
def test_a_fork_keeps_its_own_name_and_parent(tmp_path: Path, change: str, message: str) -> None:
    parent = run(small(stop={"steps": 4}), tmp_path)
    with pytest.raises(ConfigError, match=message):
        branch(parent.folder, At(step=2), change, out=tmp_path)
    with pytest.raises(ConfigError, match=message):
        replay(parent.folder, [change], out=tmp_path, workers=0)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
