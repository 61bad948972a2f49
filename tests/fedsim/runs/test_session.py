"""What a run that failed leaves behind, and the command that shows again what killed a process."""

from __future__ import annotations

import shlex
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w

from fedsim.common.errors import CheckpointError, ConfigError, ServerLost
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.load import load_config
from fedsim.config.records import ParentSection
from fedsim.engine.state import RunState
from fedsim.execution.actor_pool import RayPool
from fedsim.invariants import check
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.runs.progress import Progress
from fedsim.runs.reproduction import reproduction
from fedsim.runs.session import Session
from fedsim.server.history_storage import LADDER, Rung
from small import run, small

FAILING = '''
from fedsim.training.client_method import ClientMethod, Trained

def failing(*, version: int) -> ClientMethod:
    """Plain training that fails from a version of the model on."""
    def train(local, start, kept):
        if local.job.version >= version:
            raise ValueError("no training")
        return Trained(*local.sgd(start))
    return ClientMethod(train)
'''
DEADLINE = {"preset": "deadline", "clients": 8, "deadline": "40s"}
PACINGS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync", "clients": 4},
    "buffered": {"preset": "fedbuff", "concurrency": 6, "buffer": 3},
    "dropped": DEADLINE | {"late": "drop"},
    "kept": DEADLINE | {"late": "keep"},
    "remembered": DEADLINE | {"late": "history"},
}


@pytest.mark.ray
@pytest.mark.parametrize(("pacing", "version"), [("sync", 0), *((pacing, 3) for pacing in PACINGS)])
def test_a_failed_run_leaves_the_same_with_workers_as_without(
    pacing: str, version: int, tmp_path: Path, one_worker: RayPool
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    client = {"name": f"{tmp_path}/failing.py:failing", "version": version}
    config = small(client=client, pacing=PACINGS[pacing], evaluate={"every_steps": 1}, stop={"steps": 12})
    here, there = tmp_path / "here" / "small", tmp_path / "there" / "small"
    for folder, workers in ((here, 0), (there, one_worker)):
        with pytest.raises(ValueError, match="no training") as told:
            run(config, folder.parent, workers=workers)
        steps = read_manifest(folder)["steps"]
        assert f"failed at step {steps};" in told.value.__notes__[-1]
        assert check(folder).violations == ()
    for name in ("jobs", "steps", "evals", "clients"):
        tables = [pd.read_parquet(folder / f"{name}.parquet") for folder in (here, there)]
        pd.testing.assert_frame_equal(*tables, check_exact=True, obj=name)
    kept = ("steps", "virtual_us", "jobs", "waits", "accuracy", "warning")
    assert [read_manifest(here)[name] for name in kept] == [read_manifest(there)[name] for name in kept]


def test_wall_time_counts_what_was_lost_with_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("fedsim.runs.checkpointer.monotonic", lambda: now_s[0])

    def watch(progress: Progress) -> None:
        if progress.run_state.step == 3:
            now_s[0] += 40
            if now_s[0] == 40:
                raise ServerLost("gone")

    result = run(small(stop={"steps": 8, "wall": "60s"}), tmp_path, watch=watch)
    assert (read_manifest(result.folder)["ended_by"], read_manifest(result.folder)["steps"]) == ("wall", 3)


def test_a_run_that_cannot_go_back_to_a_damaged_checkpoint_has_failed(tmp_path: Path) -> None:
    def watch(progress: Progress) -> None:
        if progress.run_state.step == 5:
            for file in (progress.folder / "checkpoints").rglob("*.json"):
                file.write_text("damaged")
            raise ServerLost("gone")

    with pytest.raises(CheckpointError, match=r"state\.json") as told:
        run(small(checkpoint={"every_steps": 2}), tmp_path, watch=watch)
    manifest = read_manifest(tmp_path / "small")
    assert (manifest["status"], manifest["steps"]) == ("failed", 5)
    assert "failed at step 5" in told.value.__notes__[0]


def test_a_kill_while_checkpoints_are_removed_leaves_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path, **options: Any) -> None:
        for file in folder.rglob("state.json"):
            file.unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        run(small(checkpoint={"every_steps": 2}, stop={"steps": 5}), tmp_path)
    assert read_manifest(tmp_path / "small")["status"] == "done"
    assert checkpoints(tmp_path / "small") == []


def test_a_signal_stops_a_run_that_is_repeated_up_to_a_step_at_the_next_instant(tmp_path: Path) -> None:
    session, told = Session.create(prepare(small()), tmp_path / "again", None, Stopwatch()), list[int]()

    def reached(run_state: RunState) -> bool:
        if run_state.step == 2 and not told:
            signal.raise_signal(signal.SIGINT)
            told.append(run_state.step)
        return run_state.step == 5

    with pytest.raises(KeyboardInterrupt):
        session.until(reached)
    assert told == [2]
    assert session.run_state.step < 5


@pytest.mark.parametrize("rung", LADDER)
def test_the_command_that_reproduces_a_death_on_a_gpu_runs_on_the_processor(
    tmp_path: Path, rung: Rung
) -> None:
    config = prepare(small(memory={"history": rung, "slots": 5}), device="cuda").config
    file = tmp_path / "config.resolved.toml"
    file.write_text(tomli_w.dumps(config.resolved()))
    if rung.startswith("host"):
        with pytest.raises(ConfigError, match=r"memory\.history"):
            prepare(load_config(file)[0])
    fork = config.model_copy(update={"parent": ParentSection(run="a", forked_step=2)})
    assert ("--device cpu" in reproduction(tmp_path, 4, fork)) != rung.startswith("host")
    words = shlex.split(reproduction(tmp_path, 4, config))
    assert words[:3] == ["fedsim", "run", str(file)]
    assert words[words.index("--device") + 1] == "cpu"
    sets = tuple(after for word, after in pairwise(words) if word == "--set")
    found = prepare(load_config(file, sets)[0]).config
    assert found.stop.steps == 6
    assert found.memory.history == rung.removeprefix("host_")
    assert found.memory.slots == 5
