"""The dashboard: what it says is what the tables say, at any width, and a run is the same with and without it."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.live import Live

from fedsim import analysis
from fedsim.cli.observers import watching
from fedsim.cli.options import WatchedTraining
from fedsim.cli.watching import dashboard as live
from fedsim.cli.watching.dashboard import Dashboard, dashboard
from fedsim.cli.watching.dashboard_state import Arm, Picture
from fedsim.cli.watching.dashboard_view import ASCII_BARS, BARS, View, number, sparkline
from fedsim.common.units import show_us, show_wall
from fedsim.runs.progress import Progress
from fedsim.runs.simulate import simulate
from small import run, small

NAMES = ("small/first", "small/second", "small/third")
CHURN = {"scenario": "churn", "horizon": "12h", "options": {"mean_on": "3min", "mean_off": "2min"}}


def terminal(width: int = 120, **options: Any) -> Console:
    options = {"file": io.StringIO(), "force_terminal": True, "color_system": "standard"} | options
    return Console(width=width, height=40, **options)


def text(console: Console, content: Any) -> str:
    """Return what a console prints of something alone."""
    with console.capture() as captured:
        console.print(content)
    return captured.get()


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Picture, analysis.Run]:
    """The picture of the second of three runs as it ends, and the run."""
    out = tmp_path_factory.mktemp("runs")
    configs = [small(name=name, world=CHURN, evaluate={"every_steps": 2}) for name in NAMES[:2]]
    with Live(console=terminal(), auto_refresh=False) as painter:
        board = Dashboard(NAMES, painter)

        def watch(progress: Progress) -> None:
            board.due = 0.0
            board(progress)

        results = simulate(configs, out=out, workers=0, watch=watch)
    return board.picture, analysis.open_run(results[1].folder)


@pytest.mark.parametrize("width", [60, 120])
def test_the_picture_says_what_the_tables_say(painted: tuple[Picture, analysis.Run], width: int) -> None:
    picture, ended = painted
    shown = text(terminal(width, no_color=True, color_system=None), View(picture))
    last, jobs = ended.frame("steps").iloc[-1], ended.frame("jobs")
    lost = jobs[(jobs["status"] == "lost") & (jobs["end_us"] <= last["time_us"])]
    final = ended.final()
    measured = final.summary()

    def value_of(name: str) -> str:
        match = re.search(rf"(?:^|  ){name} {{2,}}(.+?)(?: {{3}}|$)", shown, re.MULTILINE)
        return match.group(1) if match else ""

    assert value_of("online") == f"{last['online']} of 12"
    assert value_of("in flight") == str(last["in_flight"])
    assert value_of("lost so far") == str(len(lost))
    assert len(lost)
    assert value_of("mean so far")
    assert value_of("mean") == f"{measured['mean_percent']:.2f} %"
    assert value_of("worst 10 %") == f"{measured['worst10_percent']:.2f} %"
    assert value_of("angle") == f"{measured['angle_rad']:.3f} rad"
    assert value_of("at") == f"step {final.step}, {show_us(final.time_us)}"
    assert "run 2 of 3" in shown
    assert re.search(r"third +waiting", shown)
    assert re.search(r"first +█+ 100% +8 ", shown)


@pytest.mark.parametrize("width", [20, 60, 99, 100, 120, 250])
def test_no_line_is_wider_than_the_terminal(painted: tuple[Picture, analysis.Run], width: int) -> None:
    shown = text(terminal(width, no_color=True, color_system=None), View(painted[0]))
    assert max(map(len, shown.splitlines())) <= width
    assert "clients" in shown


def test_wide_terminals_have_blocks_side_by_side(painted: tuple[Picture, analysis.Run]) -> None:
    narrow, wide = (text(terminal(width), View(painted[0])).splitlines() for width in (60, 120))
    assert len(wide) < len(narrow)
    assert any("clients" in line and "last evaluation" in line for line in wide)


def test_without_colour_no_colour_is_written(painted: tuple[Picture, analysis.Run]) -> None:
    picture = View(painted[0])
    assert "\x1b[32m" in text(terminal(), picture)
    assert not re.search(r"\x1b\[[0-9;]*3\d", text(terminal(no_color=True), picture))
    assert "\x1b" not in text(terminal(force_terminal=False, color_system=None), picture)


def test_a_terminal_of_ascii_gets_ascii(painted: tuple[Picture, analysis.Run]) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert text(terminal(file=file, color_system=None), View(painted[0])).isascii()


def test_names_from_files_are_shown_and_not_obeyed() -> None:
    arms = [Arm("evil\x1b[2J[red]"), Arm("long" * 30)]
    shown = text(terminal(60, color_system=None), View(Picture(arms, 0.0, 0)))
    assert "\x1b" not in shown
    assert "evil\\x1b[2J[red]" in shown
    assert "long" * 7 not in shown


def test_of_many_runs_those_around_the_current_one_are_listed() -> None:
    arms = [Arm(f"run{i:02d}", "ended" if i < 20 else "waiting") for i in range(40)]
    shown = text(terminal(60), View(Picture(arms, 0.0, 20)))
    assert "run20" in shown
    assert "run00" not in shown
    assert "and 32 more" in shown
    assert "run 21 of 40" in shown


def test_what_is_left_counts_the_runs_that_wait() -> None:
    arms = [Arm("a", "ended", 1.0, wall_s=10.0), Arm("b", "running", 0.5, wall_s=5.0), Arm("c")]
    assert Picture(arms, 0.0, 1).to_go_s == pytest.approx(5 + 10)
    resumed = Arm("b", "running", done=0.9, share_at_start=0.8, wall_s=10.0)
    assert resumed.to_go_s == pytest.approx(10.0)
    unknown = Picture([Arm("a", "running"), Arm("b")], 0.0, 0)
    assert "to go -" in text(terminal(60), View(unknown))


@pytest.mark.parametrize("kind", ["terminal", "file", "dumb", "quiet"])
def test_it_is_painted_on_terminals_alone(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.runs.progress._PLAIN_EVERY_S", 0.0)
    monkeypatch.setattr("fedsim.runs.progress._LIVE_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb" else "xterm")
    console = terminal(force_terminal=kind != "file")
    with watching(console, WatchedTraining(quiet=kind == "quiet", live=True), ("small",)) as watch:
        run(small(), tmp_path, watch=watch)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("last evaluation" in output) == (kind == "terminal")
    assert ("to go" in output) == (kind != "quiet")
    if kind == "file":
        assert output.count("\n") == 8 + 1
        assert "\x1b" not in output


def test_it_is_painted_four_times_a_second_at_most_and_rests_after_a_slow_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by hand, where a step takes 10 ms and a picture 1 ms, and then 20 ms."""
    clock, painted_at, picture_s = [0.0], [], [0.001]
    monkeypatch.setattr(live, "perf_counter", lambda: clock[0])

    class Painter:
        def update(self, renderable: object, *, refresh: bool) -> None:
            painted_at.append(clock[0])
            clock[0] += picture_s[0]

    seen: list[Progress] = []
    run(small(), tmp_path, watch=seen.append)
    board = Dashboard(("small",), Painter())  # type: ignore[arg-type]
    for _ in range(500):
        clock[0] += 0.01
        board(seen[-1])
    assert 15 <= len(painted_at) <= 20  # 5 seconds
    assert min(b - a for a, b in pairwise(painted_at)) >= 0.25
    picture_s[0] = 0.02
    painted_at.clear()
    for _ in range(1000):
        clock[0] += 0.01
        board(seen[-1])
    assert len(painted_at) <= 6  # every 2 seconds


def test_a_run_is_the_same_with_it(tmp_path: Path) -> None:
    bare = run(small(), tmp_path / "bare")
    with dashboard(terminal(), ("small",)) as watch:
        watched = run(small(), tmp_path / "watched", watch=watch)
    assert watched.digest == bare.digest


def test_an_interrupt_ends_a_run_as_without_it(tmp_path: Path) -> None:
    console = terminal()

    def interrupting(progress: Progress) -> None:
        watch(progress)
        if progress.run_state.step == 3:
            raise KeyboardInterrupt

    with dashboard(console, ("small",)) as watch:
        result = run(small(), tmp_path, watch=interrupting)
    assert result.status == "interrupted"
    assert "\x1b[?25h" in console.file.getvalue()  # type: ignore[attr-defined]  # the cursor is back


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=50), st.integers(0, 60))
def test_a_sparkline_fits_and_rises_with_its_values(values: list[float], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) <= width
    assert set(drawn) <= set(BARS)
    increasing = sparkline(sorted(v for v in values if abs(v) < 1e9), width)
    assert list(increasing) == sorted(increasing)


def test_a_sparkline_draws_known_values() -> None:
    assert sparkline([0, 7, 3.5, 0], 10) == "▁█▅▁"
    assert sparkline([0, 0, 7, 7], 2, ASCII_BARS) == "_#"
    assert sparkline([2, 2], 5) == "▅▅"
    assert sparkline([], 5) == ""


def test_numbers_and_durations_are_written_for_people() -> None:
    assert [show_wall(s) for s in (3.2, 119, 600, 7200, float("nan"))] == [
        "3 s",
        "119 s",
        "10 min",
        "2.0 h",
        "-",
    ]
    assert [number(v, 1) for v in (1234.56, float("nan"))] == ["1,234.6", "-"]


def test_a_watcher_hears_every_row_once(tmp_path: Path) -> None:
    steps: list[int] = []
    evaluated: list[int] = []
    config = small(evaluate={"every_steps": 2})

    def watch(progress: Progress) -> None:
        steps.extend(row["step"] for row in progress.recent_rows.steps)
        evaluated.extend(measured.step for measured in progress.recent_rows.evaluations)

    ended = analysis.open_run(run(config, tmp_path, watch=watch).folder)
    assert steps == ended.frame("steps")["step"].tolist()
    assert evaluated == [e.step for e in ended.evaluations()]
    assert len(evaluated) >= 3
