"""`fedsim runs`: all runs below a folder in a table, and the commands that continue what stopped."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsim.cli.main import main
from fedsim.cli.runs import show_age
from interrupted_runs import stopped_at
from small import run, small

SMALLEST = Path(__file__).parents[3] / "examples" / "studies" / "smallest.toml"


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out


def rows(out: str) -> list[dict[str, str]]:
    """Return the cells of the table by heading; no cell here but the age holds a space."""
    heading, *lines = out.partition("\n\n")[0].splitlines()
    names = heading.replace("acc %", "acc").split()
    return [dict(zip(names, line.split(), strict=False)) for line in lines if not line.startswith("study ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one real run, which others are made from."""
    monkeypatch.chdir(tmp_path)
    return run(small(stop={"steps": 2}), Path("runs")).folder


def changed(folder: Path, name: str, **manifest: Any) -> Path:
    copy = shutil.copytree(folder, folder.with_name(name))
    file = copy / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    return copy


def test_a_finished_run_is_a_row_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    out = called(capsys, "runs")
    (row,) = rows(out)
    digest = json.loads((folder / "manifest.json").read_text())["digest"]
    accuracy = run(small(stop={"steps": 2}), Path("again")).accuracy
    assert row.pop("age").isdecimal()
    assert row == {
        "run": "runs/small",
        "status": "done",
        "rule": "fedlf",
        "seed": "3",
        "steps": "2",
        "acc": f"{100 * accuracy:.2f}",
        "digest": digest[:8],
    }
    assert "continue" not in out
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before


def test_columns_in_which_runs_differ_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(folder, "other", selector="oort")
    assert [row.get("selector") for row in rows(called(capsys, "runs"))] == ["oort", "uniform"]
    changed(folder, "third", pacing="fedbuff")
    assert [row.get("pacing") for row in rows(called(capsys, "runs"))] == ["sync", "sync", "fedbuff"]


def test_what_stopped_is_continued_by_the_commands_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(folder, "it's stopped", status="interrupted", digest=None)
    changed(folder, "lost", status="running", digest=None)
    out = called(capsys, "runs")
    assert [line.split()[-8] for line in out.splitlines()[1:4]] == ["interrupted", "killed", "done"]
    assert rows(out)[2]["acc"] in out.splitlines()[1].split()
    commands = [shlex.split(line) for line in out.partition("to continue what stopped:\n")[2].splitlines()]
    assert commands == [["fedsim", "resume", "runs/it's stopped"], ["fedsim", "resume", "runs/lost"]]
    for command in commands:
        called(capsys, *command[1:], "--workers", 0, "--quiet")
    out = called(capsys, "runs")
    assert "to continue" not in out
    assert len({line.split()[-3] for line in out.splitlines()[1:]}) == 1  # one digest


def test_of_a_stopped_search_the_study_is_told_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shorter = ("--set", "run.stop.steps=2", "--set", "name=s_tuning")
    called(capsys, "study", SMALLEST, *shorter, "--jobs", 1, "--quiet")
    states = Path("runs/s_tuning/study.json")
    content = json.loads(states.read_text())
    content["cells"][1]["status"] = "interrupted"
    states.write_text(json.dumps(content))
    commands = called(capsys, "runs").partition("to continue what stopped:\n")[2]
    again = "fedsim study runs/s_tuning/study.toml --out runs  # then repeat the command of study s"
    assert commands.strip() == again


def test_a_killed_run_shows_the_steps_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped_at(5, small(checkpoint={"every_steps": 2}), Path("runs"))
    (row,) = rows(called(capsys, "runs"))
    assert (row["status"], row["steps"]) == ("killed", "4")


def test_errors_of_failed_and_damaged_runs_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(folder, "bad", status="failed", error="RunError: the model diverged")
    (changed(folder, "torn") / "manifest.json").write_text("{")
    out = called(capsys, "runs")
    assert "  runs/bad: RunError: the model diverged\n" in out
    assert "  runs/torn/manifest.json: cannot be read" in out
    assert [row["status"] for row in rows(out)] == ["failed", "done", "damaged"]


def test_a_study_is_one_line_and_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    called(capsys, "study", SMALLEST, "--set", "run.stop.steps=2", "--jobs", 1, "--quiet")
    assert called(capsys, "runs").startswith("study smallest: 4 of 4 cells done  runs/smallest  ")
    states = Path("runs/smallest/study.json")
    content = json.loads(states.read_text())
    cell = content["cells"][1]
    digest, cell["status"] = cell["digest"], "interrupted"
    states.write_text(json.dumps(content))
    shutil.rmtree(Path("runs/smallest") / cell["folder"])
    out = called(capsys, "runs")
    assert out.startswith("study smallest: 3 of 4 cells done (1 interrupted)  ")
    command = shlex.split(out.partition("to continue what stopped:\n")[2])
    called(capsys, *command[1:], "--jobs", 1, "--quiet")
    assert json.loads(states.read_text())["cells"][1]["digest"] == digest


def test_an_empty_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "runs", tmp_path) == f"there are no runs in {tmp_path}\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59, "59 s"), (61, "1 min"), (7100, "2 h"), (3600 * 30, "30 h"), (86400 * 3, "3 d")],
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert show_age(seconds) == text
