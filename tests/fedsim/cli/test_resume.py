"""`fedsim resume` for a folder of one run, or of several arms."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsim
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.files import write_json
from fedsim.config.run import RunConfig
from fedsim.records.manifest import read_manifest
from interrupted_runs import stopped_at
from small import run, small


def arm(name: str) -> RunConfig:
    config = small(algorithm={"name": name}, checkpoint={"every_steps": 2}, stop={"steps": 5})
    return config.model_copy(update={"name": f"trial/{name}"})


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """An experiment with an arm that is done, two that were stopped, and one that never started."""
    run(arm("fedavg"), tmp_path)
    for name in ("fedlf", "fedfv"):
        stopped_at(3, arm(name), tmp_path)
    write_json(tmp_path / "trial/arms.json", {"arms": ["fedavg", "fedlf", "term", "fedfv"]})
    return tmp_path / "trial"


def resumed(*arguments: object) -> str:
    result = CliRunner().invoke(
        app, ["resume", *map(str, arguments), "--workers", "0"], catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.output


def test_unfinished_arms_are_resumed_in_turn_and_others_named(trial: Path, tmp_path: Path) -> None:
    before = (trial / "fedavg/jobs.parquet").stat().st_mtime_ns
    text = resumed(trial)
    assert "done already: fedavg; not started: term; resumed in turn: fedlf, fedfv" in text
    assert text.index("fedlf: ") < text.index("fedfv: ")
    for name in ("fedlf", "fedfv"):
        assert read_manifest(trial / name)["digest"] == run(arm(name), tmp_path / "peace").digest
        assert len(read_manifest(trial / name)["resumed"]) == 1
    assert (trial / "fedavg/jobs.parquet").stat().st_mtime_ns == before
    with pytest.raises(
        FolderError, match=r"done already: fedavg, fedlf, fedfv; not started: term; `fedsim run FILE"
    ):
        resumed(trial)


def test_a_step_is_of_one_run_and_a_damaged_list_is_refused(trial: Path) -> None:
    with pytest.raises(ConfigError, match=r"--step: it is for one run, and .* holds several"):
        resumed(trial, "--step", "2")
    for arms in ({"arms": ["../elsewhere"]}, {"arms": ["a/b"]}, {}, []):
        write_json(trial / "arms.json", arms)
        with pytest.raises(FolderError, match=r"arms\.json: cannot be read"):
            resumed(trial)


def test_the_only_run_of_a_folder_is_resumed(tmp_path: Path) -> None:
    config = small(checkpoint={"every_steps": 2}, stop={"steps": 5})
    digest = run(config, tmp_path / "peace").digest
    for resume_run in (resumed, fedsim.resume):
        folder = stopped_at(3, config, tmp_path / resume_run.__name__)
        resume_run(folder.parent)
        assert read_manifest(folder)["digest"] == digest
        with pytest.raises(
            FolderError, match=r"small: expected a run that was interrupted.* one that is done"
        ):
            resume_run(folder.parent)
    with pytest.raises(FolderError, match=f"is not a run folder, but holds one: name {folder}$"):
        fedsim.verify(folder.parent)


@pytest.mark.parametrize("stop", [{"steps": 2}, {"time": "20min"}])
def test_the_command_named_for_a_finished_run_goes_on_from_its_last_step(
    stop: dict[str, object], tmp_path: Path
) -> None:
    folder = run(small(stop=stop), tmp_path).folder
    with pytest.raises(FolderError, match="fork it with another end: fedsim fork") as done:
        resumed(folder)
    command = shlex.split(str(done.value).partition("end: fedsim ")[2])
    options = ("--workers", "0", "--quiet", "--out", str(tmp_path))
    assert CliRunner().invoke(app, [*command, *options], catch_exceptions=False).exit_code == 0
    before, after = read_manifest(folder), read_manifest(tmp_path / "small-fork")
    assert after["steps"] > before["steps"]
