"""Running a file again: what is done stays, what was stopped goes on, the rest begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.files import from_json, write_json
from fedsim.config.run import RunConfig
from fedsim.records.manifest import read_manifest
from fedsim.runs.result import Result
from fedsim.runs.simulate import simulate
from interrupted_runs import stopped_at
from small import run, small

SAVED = {"every_steps": 2}


def arms(**changes: Any) -> list[RunConfig]:
    """Return the arms of an experiment: the small run under three rules."""
    rules = ("fedavg", "fedfv", "fedlf")
    config = {"checkpoint": SAVED} | changes
    return [small(algorithm={"name": r}, **config).model_copy(update={"name": f"trial/{r}"}) for r in rules]


def again(configs: list[RunConfig], out: Path, **options: Any) -> list[Result]:
    return simulate(configs, out=out, workers=0, resume=True, **options)


def written(folder: Path) -> dict[str, int]:
    """Return when each file was written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.is_file()}


def test_what_is_done_stays_what_was_stopped_goes_on_and_the_rest_begins(tmp_path: Path) -> None:
    first, second, third = arms()
    peace = [run(arm, tmp_path / "peace") for arm in (first, second, third)]
    run(first, tmp_path)
    before = written(tmp_path / "trial" / "fedavg")
    stopped_at(5, second, tmp_path)
    found = again([first, second, third], tmp_path)
    assert [r.digest for r in found] == [r.digest for r in peace]
    assert [r.accuracy for r in found] == [r.accuracy for r in peace]
    assert [r.folder for r in found] == [tmp_path / arm.name for arm in (first, second, third)]
    assert written(tmp_path / "trial" / "fedavg") == before
    assert [len(read_manifest(r.folder)["resumed"]) for r in found] == [0, 1, 0]
    assert from_json((tmp_path / "trial" / "arms.json").read_text())["arms"] == ["fedavg", "fedfv", "fedlf"]


def test_the_accuracy_of_what_is_done_is_that_of_the_global_model(tmp_path: Path) -> None:
    config = small(client={"name": "ditto"}, evaluate={"every_steps": 3, "personal": True})
    assert again([config], tmp_path) == again([config], tmp_path)


def test_a_run_of_another_configuration_is_refused_or_replaced(tmp_path: Path) -> None:
    config, other = small(), small(stop={"steps": 5})
    there = run(config, tmp_path)
    before = written(there.folder)
    with pytest.raises(
        ConfigError, match=r"small \(done\) was run with .* from 'small': stop.steps: expected 5, found 8"
    ):
        again([other], tmp_path)
    assert written(there.folder) == before
    assert again([other], tmp_path, force=True)[0].digest == run(other, tmp_path / "peace").digest
    assert again([other], tmp_path)[0].digest == read_manifest(there.folder)["digest"]


def test_a_run_that_failed_of_what_is_mended_now_begins_anew(tmp_path: Path) -> None:
    config = small()
    folder = stopped_at(3, small(stop={"steps": 7}), tmp_path)
    write_json(folder / "manifest.json", read_manifest(folder) | {"status": "failed"})
    assert again([config], tmp_path)[0].digest == run(config, tmp_path / "peace").digest


def test_a_run_that_was_killed_before_it_began_begins(tmp_path: Path) -> None:
    config = small()
    (tmp_path / config.name).mkdir()
    write_json(tmp_path / config.name / "manifest.json", {"format": 1, "status": "running"})
    assert again([config], tmp_path)[0].digest == run(config, tmp_path / "peace").digest


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match="small"):
        again([small()], tmp_path)
    assert (tmp_path / "small" / "notes.txt").read_text() == "mine"
