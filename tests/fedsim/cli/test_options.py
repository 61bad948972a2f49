"""Command lines from the options that a command got."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedsim.cli.options import NewRun, Training, WatchedTraining, command_line
from fedsim.cli.study import Changes, Running


def test_defaults_are_left_out() -> None:
    groups = (NewRun(), Training(), WatchedTraining(), Changes(), Running())
    assert command_line("run", Path("a.toml"), None, groups=groups) == "fedsim run a.toml"


def test_options_are_spelled_as_the_commands_have_them() -> None:
    new = NewRun(sets=["a.b=1", "c='x y'"], out=Path("my runs"), force=True)
    training = WatchedTraining(workers="3", device="cpu", write_report=True, ray_address="auto", live=True)
    text = command_line("run", "f.toml", groups=(new, training))
    assert shlex.split(text) == [
        *("fedsim", "run", "f.toml", "--set", "a.b=1", "--set", "c='x y'", "--out", "my runs", "--force"),
        *("--workers", "3", "--device", "cpu", "--report", "--ray-address", "auto", "--live"),
    ]


def test_a_study_keeps_its_scale_its_seeds_and_its_jobs() -> None:
    changes, running = Changes(scale="full", seeds="3,4"), Running(jobs="2", quiet=True)
    assert command_line("study", "s.toml", groups=(changes, running)) == (
        "fedsim study s.toml --scale full --seeds 3,4 --jobs 2 --quiet"
    )
