from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedsim.cli.observers import watching
from fedsim.cli.options import WatchedTraining
from fedsim.cli.watching.progress import _Line, line, shown
from fedsim.runs.result import Progress
from small import run, small


def test_a_line_says_where_the_run_stands(tmp_path: Path) -> None:
    lines: list[str] = []
    run(small(), tmp_path, watch=lambda progress: lines.append(line(progress, 2.0)))
    assert len(lines) == 8
    assert "small   50%  step 4/8" in lines[3]
    assert "to go 2 s" in lines[3]
    for word in ("at 0", "online ", "training 0", "lost ", "accuracy "):
        assert word in lines[3]
    assert "accuracy -" in lines[0] or "%" in lines[0]


def test_the_time_to_go_counts_from_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lines = [0.0], list[str]()
    monkeypatch.setattr("fedsim.cli.watching.progress.monotonic", lambda: clock[0])
    write_line = _Line(0.0, lines.append)

    def watch(progress: Progress) -> None:
        clock[0] = 10.0 * progress.run_state.step
        if progress.run_state.step >= 5:
            write_line(progress)

    run(small(), tmp_path, watch=watch)
    assert [text.rpartition("  ")[2] for text in lines] == [
        "to go -",
        "to go 20 s",
        "to go 10 s",
        "to go 0 s",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_terminals_and_in_files(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PLAIN_EVERY_S", "_LIVE_EVERY_S"):
        monkeypatch.setattr(f"fedsim.cli.watching.progress.{name}", 0.0)
    file = io.StringIO()
    with shown(Console(file=file, force_terminal=terminal, width=150)) as watch:
        run(small(), tmp_path, watch=watch)
    assert ("\x1b" in file.getvalue()) == terminal
    assert "step" in file.getvalue()
    if not terminal:
        assert file.getvalue().count("\n") == 8


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    file = io.StringIO()
    with watching(Console(file=file), WatchedTraining(quiet=True)) as watch:
        run(small(), tmp_path, watch=watch)
    assert file.getvalue() == ""


def test_a_watcher_sees_the_run(tmp_path: Path) -> None:
    reports: list[Progress] = []
    run(small(), tmp_path, watch=reports.append)
    assert reports[-1].run_state.step == 8
    assert 0 <= reports[-1].accuracy <= 1
