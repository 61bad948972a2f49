"""A run that is interrupted anywhere, and goes on, ends with the digest of one that never was."""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedsim.common.errors import CheckpointError, FolderError, RunError, ServerLost
from fedsim.common.signals import Interrupts
from fedsim.config.records import CheckpointSection
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.execution.actor_pool import RayPool
from fedsim.records import checkpoint
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest
from fedsim.records.recorder import Recorder
from fedsim.records.run_folder import lock
from fedsim.records.truncation import cut_tables
from fedsim.runs.checkpointer import Checkpointer
from fedsim.runs.result import Result
from fedsim.runs.resume import resume
from interrupted_runs import BUFFERED, CASES, stopped_at
from small import run, small


class Chance(random.Random):
    """What decides, between two instants, whether a run is interrupted."""

    often = 0.15


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Chance:
    """Interrupt runs between instants; returns what decides."""
    chance, between = Chance(0), Checkpointer.between

    def sometimes(self: Checkpointer, event_loop: EventLoop) -> None:
        if chance.random() < chance.often:
            self.interrupts.asked = True
        between(self, event_loop)

    monkeypatch.setattr(Checkpointer, "between", sometimes)
    return chance


def resumed(found: Result, **options: Any) -> tuple[Result, int]:
    """Let a run go on until it ends; returns also how often it had to."""
    times = 0
    while found.status == "interrupted":
        found, times = resume(found.folder, **({"workers": 0} | options)), times + 1
    return found, times


@pytest.mark.parametrize("case", CASES)
def test_interrupts_leave_no_trace_in_the_results(tmp_path: Path, case: str, interrupted: Chance) -> None:
    config, instants = small(**CASES[case]), list[Checkpointer]()
    with pytest.MonkeyPatch.context() as peace:
        peace.setattr(Checkpointer, "between", lambda self, event_loop: instants.append(self))
        expected = run(config, tmp_path / "peace")
    interrupted.often, times = 4 / len(instants), 0
    for seed in range(2):
        interrupted.seed(seed)
        found, more = resumed(run(config, tmp_path / str(seed)))
        assert found.digest == expected.digest
        times += more
    assert times >= 2
    manifest = read_manifest(tmp_path / "1" / "small")
    assert manifest["status"] == "done"
    assert not (tmp_path / "1" / "small" / checkpoint.FOLDER).exists()


@pytest.mark.ray
@pytest.mark.parametrize("case", ["buffered", "personal"])
def test_it_may_go_on_with_other_workers(
    tmp_path: Path, case: str, interrupted: Chance, one_worker: RayPool, two_workers: RayPool
) -> None:
    config = small(**CASES[case])
    with pytest.MonkeyPatch.context() as peace:
        peace.setattr(Checkpointer, "between", lambda self, event_loop: None)
        expected = run(config, tmp_path / "peace")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interrupted, "random", lambda: 0.0)
        first = run(config, tmp_path / "killed", workers=two_workers)
    assert first.status == "interrupted"
    second = resume(first.folder, workers=0)
    third, _ = resumed(second, workers=one_worker)
    assert third.digest == expected.digest


def test_checkpoints_are_taken_every_so_many_steps(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2, "keep": "all"}), tmp_path)
    assert [c.step for c in checkpoints(folder)] == [2, 4]
    assert resume(folder, workers=0).digest == run(small(), tmp_path / "peace").digest
    assert [c.step for c in checkpoints(folder)] == [2, 4, 6, 8]


def test_how_often_it_is_saved_changes_nothing(tmp_path: Path) -> None:
    found = {
        run(
            small(pacing=BUFFERED, checkpoint={"every_steps": every, "every_s": seconds}),
            tmp_path / str(every),
        ).digest
        for every, seconds in ((0, 0), (1, 0), (3, 1e-6))
    }
    assert len(found) == 1


def test_without_a_checkpoint_it_starts_over(tmp_path: Path) -> None:
    folder = stopped_at(5, small(checkpoint={"every_s": 0}), tmp_path)
    assert not checkpoints(folder)
    assert resume(folder, workers=0).digest == run(small(), tmp_path / "peace").digest
    assert [r["step"] for r in read_manifest(folder)["resumed"]] == [0]


def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2, "keep": 2}), tmp_path)
    state = checkpoints(folder)[-1].path / "state.json"
    state.write_text(state.read_text()[:-100])
    with pytest.raises(CheckpointError, match=r"state.json: cannot be read.*fedsim resume .* --step 2"):
        resume(folder, workers=0)
    with pytest.raises(CheckpointError, match="there is no checkpoint of step 3; there are: 2, 4"):
        resume(folder, step=3, workers=0)
    assert resume(folder, step=2, workers=0).digest == run(small(), tmp_path / "peace").digest


def test_a_damaged_checkpoint_is_removed_where_the_one_before_is_of_the_same_step(tmp_path: Path) -> None:
    """Steps of five updates, and a checkpoint after each instant."""
    pacing = {"preset": "fedbuff", "concurrency": 6, "buffer": 5}
    config = small(pacing=pacing, checkpoint={"every_s": 1e-9, "keep": "all"})
    folder = stopped_at(4, config, tmp_path)
    saved = checkpoints(folder)
    last = max(i for i in range(1, len(saved)) if saved[i].step == saved[i - 1].step)
    for each in saved[last + 1 :]:
        shutil.rmtree(each.path)
    (saved[last].path / "state.json").write_text("cut")
    advice = rf"the one before, {saved[last - 1].path.name}, may be whole: remove \S+{saved[last].path.name} and resume"
    for step in (None, saved[last].step):
        with pytest.raises(CheckpointError, match=advice):
            resume(folder, step=step, workers=0)
    shutil.rmtree(saved[last].path)
    assert resume(folder, workers=0).digest == run(small(pacing=pacing), tmp_path / "peace").digest


def test_who_goes_on_from_an_earlier_checkpoint_gives_up_those_after_it(tmp_path: Path) -> None:
    """The tables are cut to where it was, and what follows may be computed by code that was mended."""
    folder = stopped_at(7, small(checkpoint={"every_steps": 2, "keep": "all"}), tmp_path)
    assert [c.step for c in checkpoints(folder)] == [2, 4, 6]

    def killed(progress: Any) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        resume(folder, step=4, workers=0, watch=killed)
    assert [c.step for c in checkpoints(folder)] == [2, 4]
    assert resume(folder, workers=0).digest == run(small(), tmp_path / "peace").digest


def test_who_starts_over_has_no_tables_of_before(tmp_path: Path) -> None:
    def failing(progress: Any) -> None:
        if progress.run_state.step == 5:
            raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        run(small(checkpoint={"every_s": 0}), tmp_path, watch=failing)
    folder = tmp_path / "small"
    assert (folder / "steps.parquet").exists()
    there = []
    resume(folder, workers=0, watch=lambda progress: there.append((folder / "steps.parquet").exists()))
    assert not any(there[:-1])
    assert there[-1], "the call at the end"


def test_an_instant_with_several_steps_is_saved_if_one_of_them_asks_for_it(tmp_path: Path) -> None:
    run_state = RunState(2, step=3)
    section = CheckpointSection(every_steps=5, every_s=0)
    recorder = Recorder(tmp_path, np.ones(2, dtype=np.int64), run_state.job_table)
    checkpointer = Checkpointer(tmp_path, section, run_state, recorder, Interrupts())
    asked = []
    for run_state.step in (4, 4, 6, 7, 9, 16, 19):
        asked.append(checkpointer._due())
        if asked[-1]:
            checkpointer._step = run_state.step
    assert asked == [False, False, True, False, False, True, False]


def test_the_configuration_must_be_the_same(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2}), tmp_path)
    config = folder / "config.resolved.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        resume(folder, workers=0)


def test_what_is_done_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="found one that is done"):
        resume(run(small(), tmp_path).folder, workers=0)


def test_a_run_that_was_killed_before_it_began_is_said_to_be(tmp_path: Path) -> None:
    folder = stopped_at(6, small(), tmp_path)
    (folder / "world.parquet").unlink()
    with pytest.raises(FolderError, match="killed before it began: run it again with --force"):
        resume(folder, workers=0)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("every_steps", [0, 2])
def test_two_processes_cannot_run_in_one_folder(tmp_path: Path, every_steps: int) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": every_steps}), tmp_path)
    with lock(folder):
        before = files(folder)
        with pytest.raises(RunError, match="another process is running it"):
            resume(folder, workers=0)
        with pytest.raises(RunError, match="another process is running it"):
            run(small(), tmp_path, force=True)
        assert files(folder) == before
    assert resume(folder, workers=0).status == "done"


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_file, flock, late = tmp_path / ".lock", fcntl.flock, [True]

    def after_the_other_has_ended(file: Any, how: int) -> None:
        if late:
            late.pop()
            lock_file.unlink()
        flock(file, how)

    monkeypatch.setattr("fedsim.records.run_folder.fcntl.flock", after_the_other_has_ended)
    with lock(tmp_path):
        assert lock_file.exists()
        with pytest.raises(RunError, match="another process is running it"), lock(tmp_path):
            pass
        assert lock_file.exists()
    assert not lock_file.exists()


def test_the_lock_of_another_is_left_where_it_is(tmp_path: Path) -> None:
    """The folder was made anew, and somebody else runs in it before this one has let go of the old one."""
    with lock(tmp_path):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
    assert (tmp_path / ".lock").exists()


def test_tables_that_lost_rows_are_refused(tmp_path: Path) -> None:
    folder = stopped_at(6, small(checkpoint={"every_steps": 2}), tmp_path)
    for path in [*(folder / "parts").glob("jobs-*"), folder / "jobs.parquet"]:
        path.unlink(missing_ok=True)
    with pytest.raises(
        CheckpointError, match="table 'jobs': expected at least 16 rows, as at the checkpoint, found 0"
    ):
        resume(folder, workers=0)


def test_cutting_may_be_interrupted_and_done_again(tmp_path: Path) -> None:
    folder = run(small(), tmp_path).folder
    cut_tables(folder, {"jobs": 5, "steps": 2, "evals": 12})
    (folder / "parts").rename(folder / ".parts.old")  # killed between two moves
    cut_tables(folder, {"jobs": 4, "steps": 1, "evals": 12})
    assert sorted(p.name for p in (folder / "parts").iterdir()) == [
        "evals-00000.parquet",
        "jobs-00000.parquet",
        "steps-00000.parquet",
    ]


def test_parts_of_which_some_were_removed_are_not_taken_for_a_table(tmp_path: Path) -> None:
    """They are removed when the merged tables are there, in any order."""
    folder = run(small(), tmp_path).folder
    jobs = pq.read_table(folder / "jobs.parquet")
    (folder / "parts").mkdir()
    pq.write_table(jobs.slice(10), folder / "parts" / "jobs-00001.parquet")
    cut_tables(folder, {"jobs": 5})
    assert pq.read_table(folder / "parts" / "jobs-00000.parquet").equals(jobs.slice(0, 5))


def test_ctrl_c_once_saves_and_stops(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def watch(progress: Any) -> None:
        if progress.run_state.step == 4:
            signal.raise_signal(signal.SIGINT)

    found = run(small(), tmp_path, watch=watch)
    assert found.status == "interrupted"
    assert "Ctrl-C again stops now" in capfd.readouterr().err
    assert [c.step for c in checkpoints(found.folder)] == [4]
    assert resume(found.folder, workers=0).digest == run(small(), tmp_path / "peace").digest


def test_ctrl_c_twice_stops_now(tmp_path: Path) -> None:
    def watch(progress: Any) -> None:
        if progress.run_state.step == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    found = run(small(), tmp_path, watch=watch)
    assert found.status == "interrupted"
    assert not checkpoints(found.folder)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("every_steps", [0, 2])
def test_a_lost_server_is_restored_and_the_rest_played_again(
    tmp_path: Path, every_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(pacing=BUFFERED, checkpoint={"every_steps": every_steps})
    expected = run(config, tmp_path / "peace").digest
    step, lost = EventLoop._step, []

    def dying(self: EventLoop, cause: str) -> None:
        if self.run_state.step == 5 and len(lost) < 2:
            lost.append(1)
            raise ServerLost("it died")
        step(self, cause)

    monkeypatch.setattr(EventLoop, "_step", dying)
    assert run(config, tmp_path / "killed").digest == expected
    assert len(lost) == 2


def test_a_server_that_keeps_dying_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(self: EventLoop, cause: str) -> None:
        raise ServerLost("it died")

    monkeypatch.setattr(EventLoop, "_step", dying)
    with pytest.raises(ServerLost) as raised:
        run(small(), tmp_path)
    assert read_manifest(tmp_path / "small")["status"] == "failed"
    assert f"fedsim resume {tmp_path / 'small'}" in raised.value.__notes__[-1]
