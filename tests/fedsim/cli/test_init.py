"""`fedsim init`: a folder whose files run at once, by the commands that it prints."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim.cli.init import FILES
from fedsim.cli.main import main
from fedsim.config.load import load_config


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert called("init", "mine") == 0
    return tmp_path / "mine"


def manifests(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("runs/experiment/*/manifest.json"))
    return {file.parent.name: json.loads(file.read_text())["digest"] for file in files}


def test_the_command_and_the_script_run_both_arms(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert called("run", "experiment.toml", "--quiet") == 0
    by_command = manifests(folder)
    assert by_command.keys() == {"fedavg", "mine"}
    assert None not in by_command.values()
    runpy.run_path("run.py", run_name="__main__")
    assert manifests(folder) == by_command
    assert "mine against fedavg" in capsys.readouterr().out
    assert (folder / "runs/experiment/report.html").stat().st_size > 10_000


def test_the_commands_of_its_readme_are_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.strip() for line in (folder / "README.md").read_text().splitlines()]
    commands = [line.split(" #")[0].split() for line in lines if line.startswith("fedsim ")]
    assert [command[1] for command in commands] == ["run", "compare", "report"]
    monkeypatch.chdir(folder)
    arms = [config.label for config in load_config(Path("experiment.toml"))]
    assert [Path(argument).name for argument in commands[1][2:]] == arms


def test_its_rule_weighs_updates_by_losses(folder: Path) -> None:
    updates, losses = np.eye(3), np.array([1.0, 2.0, 5.0])
    for q, expected in ((0.0, [1 / 3, 1 / 3, 1 / 3]), (1.0, [0.125, 0.25, 0.625])):
        step = fedsim.combine(f"{folder}/my_rule.py:my_rule", updates, losses=losses, options={"q": q})
        np.testing.assert_allclose(step.direction, expected, atol=1e-7)


def test_a_folder_with_files_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my_rule.py").write_text("# changed\n")
    assert called("init", "mine") == 2
    assert "mine exists and is not empty" in capsys.readouterr().err
    assert (folder / "my_rule.py").read_text() == "# changed\n"
    assert called("init", "mine/README.md") == 2
    assert "is a file" in capsys.readouterr().err


def test_the_folder_has_a_name_by_default_and_may_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("an empty one").mkdir()
    assert called("init") == called("init", "an empty one") == called("init", "deep/er") == 0
    out = capsys.readouterr().out
    for name in ("fedsim-experiment", "an empty one", "deep/er"):
        assert sorted(path.name for path in Path(name).iterdir()) == sorted(FILES)
    assert [line for line in out.splitlines() if line.startswith("cd ")] == [
        "cd fedsim-experiment",
        "cd 'an empty one'",
        "cd deep/er",
    ]
    assert out.count("\nfedsim run experiment.toml ") == out.count("\npython run.py ") == 3
