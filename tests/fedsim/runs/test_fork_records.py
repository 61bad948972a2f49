"""A fork that records, evaluates or ends otherwise than its parent: its tables, and what is checked of them."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas.testing import assert_frame_equal
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.opening.run import shared_us
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError
from fedsim.config.load import load_config
from fedsim.engine.event_loop import EventLoop
from fedsim.invariants import check
from fedsim.records import checkpoint
from fedsim.records.manifest import read_manifest
from fedsim.runs.checkpointer import Checkpointer
from fedsim.runs.fork import At
from fedsim.runs.plan.plan import plan_run
from fedsim.runs.replay import replay
from fedsim.runs.reproduction import reproduction
from fedsim.runs.resume import resume
from fedsim.runs.verify import verify
from forked_runs import ALL_KEPT, branch, table
from interrupted_runs import BUFFERED, stopped_at
from small import run, small

RECORDED = {"record": {"conflicts": "model"}, "audit": {"every": 2}}
RARELY_LOST = {"pacing": BUFFERED, "world": {"scenario": "always_on"}}
NOTHING = ("record.conflicts=off", "audit.every=0")


def test_equal_points_of_a_fork_and_its_parent_lie_beyond_the_past_that_they_share(tmp_path: Path) -> None:
    """The fork's steps take another time, so that the last evaluations at exactly equal times are those before it."""
    parent = run(small(stop={"steps": 10}, evaluate={"every_steps": 2}, **ALL_KEPT), tmp_path)
    forks = [
        branch(parent.folder, At(step=6), f"pacing.clients={n}", "stop.steps=12", out=tmp_path / str(n))
        for n in (2, 3)
    ]
    parent_run, *fork_runs = (analysis.open_run(each.folder) for each in (parent, *forks))
    forked_us = read_manifest(forks[0].folder)["virtual_us"], fork_runs[0].config["parent"]["forked_us"]
    assert forked_us[0] > forked_us[1]
    for pair in ((parent_run, fork_runs[0]), (fork_runs[0], parent_run), tuple(fork_runs)):
        assert shared_us(*pair) == forked_us[1]
        for at in ("time", "bytes", "steps"):
            assert all(time_us > forked_us[1] for _, time_us, _ in analysis.compare(*pair, at=at).points), at
    again = analysis.open_run(replay(parent.folder, ["train.lr=0.3"], name="again", out=tmp_path).folder)
    assert shared_us(parent_run, again) == -1
    assert shared_us(fork_runs[0], again) == 0, "no more than the initial model"
    deeper = branch(forks[0].folder, At(step=8), "train.lr=0.3", out=tmp_path / "deeper")
    deeper_run = analysis.open_run(deeper.folder)
    at_8_us = fork_runs[0].evaluations()[4].time_us
    assert shared_us(deeper_run, fork_runs[0]) == at_8_us > forked_us[1]
    for other in (parent_run, fork_runs[1]):
        assert shared_us(deeper_run, other) == forked_us[1]
        for at in ("time", "bytes", "steps"):
            points = analysis.compare(other, deeper_run, at=at).points
            assert all(time_us > forked_us[1] for _, time_us, _ in points), at


def test_a_fork_of_an_interrupted_run_shares_its_past_too(tmp_path: Path) -> None:
    config = small(stop={"steps": 10}, evaluate={"every_steps": 2}, **ALL_KEPT)
    parent = stopped_at(8, config, tmp_path)
    fork = branch(parent, At(step=5), "pacing.clients=2", out=tmp_path / "fork")
    assert resume(parent, workers=0).status == "done"
    parent_run, fork_run = analysis.open_run(parent), analysis.open_run(fork.folder)
    assert shared_us(parent_run, fork_run) == parent_run.evaluations()[2].time_us


def test_one_that_records_less_than_its_parent_can_be_interrupted_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = run(small(**RECORDED, **ALL_KEPT), tmp_path)
    whole = branch(parent.folder, At(step=4), *NOTHING, out=tmp_path / "whole")
    assert not {"conflicts.parquet", "audit.parquet"} & {path.name for path in whole.folder.iterdir()}
    between = Checkpointer.between

    def stopping(checkpointer: Checkpointer, event_loop: EventLoop) -> None:
        checkpointer.interrupts.asked = checkpointer.run_state.step == 6
        between(checkpointer, event_loop)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "between", stopping)
        found = branch(parent.folder, At(step=4), *NOTHING, out=tmp_path / "stopped")
    assert found.status == "interrupted"
    assert resume(found.folder, workers=0).digest == whole.digest
    again = branch(whole.folder, At(step=5), out=tmp_path / "again")
    assert again.digest == whole.digest
    assert not any(verdict.difference for verdict in verify(whole.folder, steps=(4, 6), workers=0))


@pytest.mark.parametrize(
    ("before", "sets"),
    [
        ({}, ["record.conflicts=model"]),
        ({"algorithm": {"name": "fedavg"}}, ["record.conflicts=model", "algorithm={name='fedlf'}"]),
        ({"evaluate": {"every_steps": 3, "split": "valid"}}, ["evaluate.split=test"]),
        ({}, ["evaluate.every_steps=1"]),
        (
            {"pacing": {"preset": "deadline", "clients": 6, "deadline": "30s", "late": "history"}},
            ["record.conflicts=model", "pacing.late=keep"],
        ),
        (
            {"pacing": {"preset": "deadline", "clients": 6, "deadline": "2min"}},
            ["pacing.deadline=30s"],
        ),
        ({"algorithm": {"name": "fedfv", "tau": 1}}, ["pacing.clients=1"]),
        (RARELY_LOST | {"dropout": {"chance": 0.08, "notice": "5min"}}, ["dropout.notice=1s"]),
        (RARELY_LOST | {"dropout": {"chance": 0.08, "notice": "1s"}}, ["dropout.notice=5min"]),
    ],
)
def test_what_its_parent_did_otherwise_is_no_violation(
    tmp_path: Path, before: dict[str, Any], sets: list[str]
) -> None:
    parent = run(small(**before, **ALL_KEPT), tmp_path)
    first_us = int(table(parent.folder, "jobs").end_us.min())
    early, late = (
        branch(parent.folder, at, *sets, out=tmp_path / str(number)).folder
        for number, at in enumerate((At(time_us=first_us), At(step=5)))
    )
    for folder in (early, late, branch(late, At(step=7), out=tmp_path / "again").folder):
        verdict = check(folder)
        assert verdict.violations == ()
        assert "the configured evaluations exist" in verdict.checked


def test_an_end_before_its_beginning_is_refused(tmp_path: Path) -> None:
    parent = run(small(), tmp_path)
    with pytest.raises(ConfigError, match=r"stop\.steps: expected at least 4, where it begins, found 3"):
        branch(parent.folder, At(step=4), "stop={steps=3}", out=tmp_path / "steps")
    late_us = read_manifest(parent.folder)["virtual_us"] - 1
    with pytest.raises(
        ConfigError, match=r"stop\.time: expected at least .*, when it begins, found 1\.000 s"
    ):
        branch(parent.folder, At(time_us=late_us), "stop.time=1s", out=tmp_path / "time")
    assert not (tmp_path / "steps").exists()
    assert not (tmp_path / "time").exists()
    with pytest.raises(
        ConfigError, match=r"stop\.time: expected at least .*, when it begins, found 1\.000 s"
    ):
        branch(parent.folder, At(step=4), "stop.time=1s", out=tmp_path / "time")


@pytest.mark.parametrize("change", ["evaluate.split=test", "evaluate.clients=5", "stop.patience=3"])
def test_the_best_value_begins_anew_where_something_else_is_measured(tmp_path: Path, change: str) -> None:
    patient = {"stop": {"steps": 8, "patience": 8}, "evaluate": {"every_steps": 1, "split": "train"}}
    parent = run(small(**patient, **ALL_KEPT), tmp_path)
    for sets, anew in ((["record.conflicts=model"], False), ([change], True)):
        child = branch(parent.folder, At(step=4), *sets, out=tmp_path / str(anew)).folder
        begin = checkpoint.read(checkpoint.checkpoints(child)[0].path)
        assert math.isnan(begin["run_state"]["best"]) is anew
        assert check(child).violations == ()


def test_jobs_in_flight_do_as_much_as_they_were_given(tmp_path: Path) -> None:
    """What they had done when the run ended follows from that."""
    longer = {"train": {"batch_size": 10, "epochs": 5}, "cost": {"payload": "5 MB", "compute_scale": 40}}
    parent = run(small(**RARELY_LOST, **longer), tmp_path)
    soon = f"stop.time={read_manifest(parent.folder)['virtual_us'] // 1_500_000}"
    plain, other = (
        branch(parent.folder, At(step=4), soon, *sets, out=tmp_path / name).folder
        for name, sets in (("plain", ()), ("other", ("train.epochs=1",)))
    )
    jobs = table(plain, "jobs")
    forked_us = read_manifest(plain)["parent"]["forked_us"]
    begun = jobs.job[(jobs.status == "unfinished") & (jobs.dispatch_us <= forked_us)].tolist()
    assert len(begun) > 2
    both = [some[some.job.isin(begun)].sort_values("job") for some in (jobs, table(other, "jobs"))]
    assert_frame_equal(*(some.drop(columns="share").reset_index(drop=True) for some in both))


@pytest.mark.parametrize("by_time", [False, True])
def test_its_configuration_alone_is_refused_with_the_command_that_makes_it(
    tmp_path: Path, by_time: bool
) -> None:
    parent = run(small(), tmp_path)
    at = At(time_us=int(table(parent.folder, "steps").time_us[3])) if by_time else At(step=4)
    child = branch(parent.folder, at, "algorithm.name=fedavg", keep_online=[3, 7], out=tmp_path / "a")
    config = load_config(child.folder / "config.resolved.toml")[0]
    with pytest.raises(ConfigError, match=r"it is a fork, .* create it again: fedsim fork") as refused:
        run(config, tmp_path / "b")
    with pytest.raises(ConfigError, match="it is a fork"):
        plan_run(config)
    words = shlex.split(str(refused.value).partition("again: ")[2].partition(";")[0])
    again = CliRunner().invoke(app, [*words[1:], "--out", str(tmp_path / "c"), "--workers", "0", "--quiet"])
    assert again.exit_code == 0, again.output
    assert read_manifest(tmp_path / "c" / child.folder.name)["digest"] == child.digest
    assert reproduction(child.folder, 6, config).startswith("fedsim resume ")


EQUAL = {
    "scenario": "always_on",
    "options": {
        "devices": {"compute_sigma": 0, "downlink_sigma": 0, "uplink_sigma": 0, "fault_every": "never"}
    },
}


@pytest.mark.parametrize(
    ("pacing", "steps"),
    [
        ({"preset": "fedasync", "concurrency": 4}, 8),
        ({"preset": "fedbuff", "concurrency": 4, "buffer": 2}, 4),
    ],
    ids=["fedasync", "fedbuff"],
)
def test_from_the_last_step_on_it_goes_on_as_a_longer_run(
    pacing: dict[str, Any], steps: int, tmp_path: Path
) -> None:
    """Devices are equally fast, so that the last steps of the parent are of one instant."""
    costs = {"payload": "5 MB", "compute_scale": 1e-9}
    changes: dict[str, Any] = {"world": EQUAL, "pacing": pacing, "cost": costs}
    short, long = (run(small(stop={"steps": n}, **changes), tmp_path / str(n)) for n in (steps, 2 * steps))
    times = table(short.folder, "steps").time_us.tolist()
    assert times[-1] == times[-2]
    fork = branch(short.folder, At(step=steps - 1), f"stop.steps={2 * steps}", out=tmp_path / "fork")
    assert (read_manifest(fork.folder)["ended_by"], fork.digest) == ("steps", long.digest)


def test_another_end_leaves_the_record_of_the_best_value(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"evaluate": {"every_steps": 1}, "train": {"batch_size": 10, "lr": 1.0}}
    long = run(small(stop={"steps": 60, "patience": 3}, **changes), tmp_path / "long")
    steps = read_manifest(long.folder)["steps"]
    assert steps < 60
    short = run(small(stop={"steps": steps - 1, "patience": 3}, **changes), tmp_path / "short")
    fork = branch(short.folder, At(step=steps - 2), "stop.steps=60", out=tmp_path / "fork")
    assert (read_manifest(fork.folder)["steps"], fork.digest) == (steps, long.digest)


def test_one_by_time_is_not_evaluated_before_it_begins(tmp_path: Path) -> None:
    """It begins just before an event, and between that and the one before lies its interval of evaluations."""
    parent = run(small(evaluate={"every_steps": 0}), tmp_path)
    ends_us = np.unique(table(parent.folder, "jobs").end_us)
    before_us, next_us = ends_us[ends_us > table(parent.folder, "steps").time_us[0]][:2].tolist()
    every_us = (before_us + next_us) // 2
    at = At(time_us=next_us - 1)
    fork = branch(parent.folder, at, f"evaluate.every={every_us}us", out=tmp_path / "fork")
    times = set(table(fork.folder, "evals").time_us)
    assert min(times - {0}) == 2 * every_us > next_us
