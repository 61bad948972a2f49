"""A clone stands alone: what it lacks is said with the way to get it, and nothing beside it is looked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import inputs
from fedsim import plugins
from fedsim.common.errors import DataError
from fedsim.config.errors import read_toml

VARIABLES = ("FEDSIM_DATA", "FEDSIM_TRACES", "FEDSIM_GOLDEN")


def test_without_variables_all_folders_lie_in_the_clone() -> None:
    told = "import inputs; print(inputs.DATA, inputs.TRACES, inputs.GOLDEN, sep='\\n')"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    for given in (environment, environment | dict.fromkeys(VARIABLES, "")):
        done = subprocess.run(
            [sys.executable, "-c", told],
            capture_output=True,
            check=True,
            cwd=inputs.ROOT / "tests" / "helpers",
            env=given,
            text=True,
        )
        folders = [Path(line) for line in done.stdout.splitlines()]
        assert folders == [inputs.ROOT / "data", inputs.ROOT / "data/traces", inputs.ROOT / "tests/golden"]


def test_commands_look_for_data_where_the_tests_do() -> None:
    assert os.environ["FEDSIM_DATA"] == str(inputs.DATA)


@pytest.mark.parametrize("task", sorted(inputs.FILES))
def test_the_files_of_a_task_are_those_that_it_names(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "DATA", tmp_path)
    told = str(inputs.missing(task))
    assert str(tmp_path) in told
    assert "docs/tasks.md" in told or "`fedsim " in told
    with pytest.raises(DataError) as refused:
        plugins.build("task", task, {}, clients=2, seed=0, data_dir=tmp_path)
    for name in inputs.FILES[task]:
        assert name in told
        assert Path(name).name in str(refused.value)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert inputs.missing(task) is None


@pytest.mark.parametrize("task", inputs.DOWNLOADED_BY)
def test_the_command_that_downloads_is_for_that_task(task: str) -> None:
    _, command, file, *_ = inputs.DOWNLOADED_BY[task].split()
    tables = read_toml(inputs.ROOT / file)
    assert command == ("study" if "run" in tables else "plan")
    assert tables.get("run", tables)["task"]["name"] == task


def test_tasks_without_files_miss_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "DATA", tmp_path)
    assert inputs.missing("digits") is None


def test_a_missing_trace_is_said_with_its_name_and_source() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"no such-trace in .*: docs/traces.md names the sources"):
        inputs.trace("such-trace")
