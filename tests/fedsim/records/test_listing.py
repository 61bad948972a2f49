"""Runs and studies below a folder, from their manifests and the names of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import FolderError
from fedsim.records.listing import ListedRun, ListedStudy, runs_below
from fedsim.records.run_folder import lock


def made(folder: Path, *files: str, **manifest: Any) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def studied(folder: Path, *statuses: str) -> Path:
    made(folder / "runs" / "a" / "seed-1", status="done")
    cells = [{"status": status} for status in statuses]
    (folder / "study.json").write_text(json.dumps({"name": folder.name, "cells": cells}))
    return folder


def listed(folder: Path) -> list[Any]:
    return list(runs_below(folder))


def test_runs_come_in_the_order_of_their_paths_and_are_not_searched(tmp_path: Path) -> None:
    for name in ("b/two", "b/one", "a", ".hidden/run"):
        made(tmp_path / name, status="done", seed=1)
    made(tmp_path / "a" / "inside", status="done")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert [run.folder for run in listed(tmp_path)] == [tmp_path / name for name in ("a", "b/one", "b/two")]
    assert [run.folder for run in listed(tmp_path / "a")] == [tmp_path / "a"]
    with pytest.raises(FolderError, match="there is no folder"):
        listed(tmp_path / "c")


def test_a_run_that_no_process_runs_was_killed(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", ".lock", status="running")
    (killed,) = listed(tmp_path)
    with lock(folder):
        (running,) = listed(tmp_path)
    assert [killed.status, running.status] == ["killed", "running"]


@pytest.mark.parametrize("status", ["interrupted", "failed", "running", "done", "planned"])
def test_what_stopped_can_be_resumed_once_it_has_begun(tmp_path: Path, status: str) -> None:
    begun = ("config.resolved.toml", "world.parquet")
    made(tmp_path / "begun", *begun, status=status)
    made(tmp_path / "new", status=status)
    assert [run.resumable for run in listed(tmp_path)] == [status not in ("done", "planned"), False]


def test_a_run_that_has_not_ended_has_the_steps_of_its_newest_checkpoint(tmp_path: Path) -> None:
    made(tmp_path / "a", status="running")
    killed = made(tmp_path / "b", status="running")
    done = made(tmp_path / "c", status="done", steps=7)
    for folder in (killed, done):
        for name in ("00000009-0000000090", "00000010-0000000040", ".00000011-0000000044.tmp"):
            (folder / "checkpoints" / name).mkdir(parents=True)
    assert [run.steps for run in listed(tmp_path)] == [None, 10, 7]


def test_the_start_is_that_of_the_manifest(tmp_path: Path) -> None:
    made(tmp_path / "run", status="done", started="2020-01-01T00:00:10+00:00", error="why")
    (run,) = listed(tmp_path)
    assert run.started_s == 1577836810
    assert run.error == "why"


@pytest.mark.parametrize("text", ["{", "[]", '{"steps": -1}', '{"format": 9}'])
def test_a_damaged_manifest_hides_no_other_run(tmp_path: Path, text: str) -> None:
    made(tmp_path / "a").joinpath("manifest.json").write_text(text)
    made(tmp_path / "b", status="done")
    damaged, sound = listed(tmp_path)
    assert [damaged.status, sound.status] == ["damaged", "done"]
    assert "manifest.json" in damaged.error
    assert not damaged.resumable


def test_cells_of_a_study_are_counted_and_not_listed(tmp_path: Path) -> None:
    folder = studied(tmp_path / "dropout", "done", "done", "pending", "running", "interrupted")
    (study,) = listed(tmp_path)
    assert isinstance(study, ListedStudy)
    assert (study.name, study.cells, study.running) == ("dropout", 5, False)
    assert study.counts == {"done": 2, "pending": 1, "interrupted": 2}
    with lock(folder):
        (study,) = listed(tmp_path)
    assert study.running
    assert study.counts == {"done": 2, "pending": 1, "running": 1, "interrupted": 1}


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x", "cells": [1]}'])
def test_a_damaged_study_has_no_cells(tmp_path: Path, text: str) -> None:
    studied(tmp_path / "dropout").joinpath("study.json").write_text(text)
    made(tmp_path / "other", status="done")
    study, run = listed(tmp_path)
    assert study.cells == 0
    assert isinstance(run, ListedRun)
