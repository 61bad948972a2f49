from __future__ import annotations

import io
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsim.cli.observers import watching
from fedsim.cli.options import WatchedTraining
from fedsim.common.errors import ManySteps
from fedsim.runs.fork import fork
from fedsim.runs.progress import Progress, _Line, line, shown
from small import run, small

ALWAYS = {"scenario": "always_on", "horizon": "1d"}
"""Without costs, a step of the small run takes about two seconds here."""


def test_a_line_says_where_the_run_stands(tmp_path: Path) -> None:
    lines: list[str] = []
    run(small(), tmp_path, watch=lambda progress: lines.append(line(progress, 2.0)))
    assert len(lines) == 8 + 1
    assert lines[-1].partition("accuracy")[0] == lines[-2].partition("accuracy")[0]
    assert "small   50%  step 4/8" in lines[3]
    assert "to go 2 s" in lines[3]
    for word in ("at 0", "online ", "training 0", "lost ", "accuracy "):
        assert word in lines[3]
    assert "accuracy -" in lines[0] or "%" in lines[0]


def test_a_run_that_heads_for_very_many_steps_is_warned_about(tmp_path: Path) -> None:
    config = small(cost={}, algorithm={"name": "fedavg"}, stop={"time": "1d"}, world=ALWAYS)
    ends: list[int] = []

    def watch(progress: Progress) -> None:
        ends.append(progress.run_state.now_us)
        if len(ends) == 201:
            raise KeyboardInterrupt

    with pytest.warns(ManySteps) as warned:
        run(config, tmp_path, watch=watch)
    assert len(warned) == 1
    assert f"about {round(200 * 86400e6 / ends[199], -3):,.0f} server steps" in str(warned[0].message)


@pytest.mark.parametrize("stop", [{"time": "1d", "steps": 300}, {"time": "1min"}])
def test_a_run_of_few_steps_is_not_warned_about(tmp_path: Path, stop: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(small(cost={}, algorithm={"name": "fedavg"}, stop=stop, world=ALWAYS), tmp_path)
    assert [each for each in caught if issubclass(each.category, ManySteps)] == []


def test_the_time_to_go_counts_from_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lines = [0.0], list[str]()
    monkeypatch.setattr("fedsim.runs.progress.monotonic", lambda: clock[0])
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
        "to go 0 s",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_terminals_and_in_files(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PLAIN_EVERY_S", "_LIVE_EVERY_S"):
        monkeypatch.setattr(f"fedsim.runs.progress.{name}", 0.0)
    file = io.StringIO()
    with shown(Console(file=file, force_terminal=terminal, width=150)) as watch:
        run(small(), tmp_path, watch=watch)
    assert ("\x1b" in file.getvalue()) == terminal
    assert "step" in file.getvalue()
    if not terminal:
        assert file.getvalue().count("\n") == 8 + 1


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    file = io.StringIO()
    with watching(Console(file=file), WatchedTraining(quiet=True)) as watch:
        run(small(), tmp_path, watch=watch)
    assert file.getvalue() == ""


def test_a_watcher_sees_the_run(tmp_path: Path) -> None:
    reports: list[tuple[int, float]] = []
    result = run(small(), tmp_path, watch=lambda to: reports.append((to.run_state.step, to.accuracy)))
    assert [step for step, _ in reports] == [*range(1, 9), 8]
    assert reports[-1][1] == result.accuracy


class Kernel:
    """Stands for the shell of a notebook, and for what it displays."""

    kernel = "a kernel"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self.cells = 0
        ipython = types.ModuleType("IPython")
        ipython.get_ipython = lambda: self  # type: ignore[attr-defined]
        ipython.display = types.ModuleType("IPython.display")  # type: ignore[attr-defined]
        ipython.display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)

    def display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Kernel:
        assert raw
        assert display_id
        self.cells += 1
        return self

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.lines.append(shown["text/plain"])


def test_a_notebook_gets_one_line_that_ends_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch)
    monkeypatch.setattr("fedsim.runs.progress._NOTEBOOK_EVERY_S", 1e9)
    run(small(), tmp_path)
    assert kernel.cells == 1
    assert len(kernel.lines) == 1, "nothing was due before the end"
    assert "100%  step 8/8" in kernel.lines[0]
    monkeypatch.setattr("fedsim.runs.progress._NOTEBOOK_EVERY_S", 0.0)
    run(small(name="often"), tmp_path)
    assert [text.split("step ")[1].split()[0] for text in kernel.lines[1:]] == [
        f"{n}/8" for n in (*range(1, 9), 8, 8)
    ]
    run(small(name="silent"), tmp_path, progress=False)
    assert kernel.cells == 2


@pytest.mark.parametrize(
    ("prompt", "progress", "shows"), [(True, None, True), (False, None, False), (False, True, True)]
)
def test_a_prompt_shows_progress_and_a_script_only_if_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prompt: bool,
    progress: bool | None,
    shows: bool,
) -> None:
    monkeypatch.setattr("fedsim.runs.progress._PLAIN_EVERY_S", 0.0)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    seen: list[Progress] = []
    run(small(), tmp_path, watch=seen.append, progress=progress)
    assert len(seen) == 8 + 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("step ") == (8 + 1 if shows else 0)
    fork(tmp_path / "small", 4, out=tmp_path, workers=0, progress=progress)
    assert ("small-fork" in capsys.readouterr().err) == shows
