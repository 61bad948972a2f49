"""`fedsim study` in a terminal: how an interrupted study is continued."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from fedsim.cli.main import main
from fedsim.records.recorder import Recorder

SMALLEST = Path(__file__).parents[3] / "examples" / "studies" / "smallest.toml"
OPTIONS = ("--set", "run.stop.steps=2", "--seeds", "3,4", "-o", "my studies", "--jobs", "1", "--quiet")


def called(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    printed = capsys.readouterr()
    assert int(ended.value.code or 0) == code, printed.err
    return printed.out


def test_an_interrupted_study_is_continued_by_the_command_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    step = Recorder.step

    def interrupting(recorder: Recorder, *args: Any) -> None:
        step(recorder, *args)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "step", interrupting)
        out = called(capsys, "study", SMALLEST, *OPTIONS, code=130)
    [line] = [line for line in out.splitlines() if line.startswith("interrupted")]
    assert line.startswith("interrupted, and saved; continue with: fedsim study ")
    command = shlex.split(line.partition("continue with: ")[2])
    assert command[1:3] == ["study", str(SMALLEST)]
    assert sorted(command[3:]) == sorted(word.replace("-o", "--out") for word in OPTIONS)
    called(capsys, *command[1:])
    cells = json.loads(Path("my studies/smallest/study.json").read_text())["cells"]
    assert [(cell["seed"], cell["status"]) for cell in cells] == [(3, "done"), (4, "done")] * 2


def test_a_second_interrupt_names_the_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedsim.studies.run.run_study", stopped)
    out = called(capsys, "study", SMALLEST, "--jobs", "1", code=130)
    assert f"interrupted; continue with: fedsim study {SMALLEST} --jobs 1\n" in out
