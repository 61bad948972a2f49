"""What a user is told about a run that says little, or that ended early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim import analysis
from fedsim.common.errors import RunNote
from fedsim.common.units import DAY_US
from fedsim.runs.result import notes
from fedsim.worlds.trace import Trace
from small import run, small

UNUSED = "no step used an update, so the model is still the initial one: "


def told(config: Any, out: Path) -> tuple[str | None, list[str]]:
    """Return the warning in the manifest of a run of a configuration, and the notes on it."""
    opened = analysis.open_run(run(config, out).folder)
    return opened.manifest["warning"], list(notes(opened))


def world(tmp_path: Path, first_day: int) -> dict[str, Any]:
    """Return a world of 13 clients, of which the last, which no run here has, is online before the others."""
    starts = [first_day * DAY_US] * 12 + [DAY_US // 2]
    ends = [(first_day + 1) * DAY_US] * 13
    path = tmp_path / f"{first_day}.parquet"
    horizon_us = (first_day + 2) * DAY_US
    Trace.of([*range(13)], starts, ends, "online", clients=13, horizon_us=horizon_us).write(path)
    return {"trace": str(path)}


def test_a_run_in_which_nobody_worked_says_when_the_first_client_comes_online(tmp_path: Path) -> None:
    late = small(world=world(tmp_path, 3), stop={"time": "1d", "steps": 8}, algorithm={"name": "fedavg"})
    expected = UNUSED + "no client was online before stop.time; the first comes online at 3d 00:00:00"
    assert told(late, tmp_path) == ("no update used", [expected])
    with pytest.warns(RunNote, match=f"small: {expected}"):
        result = run(late, tmp_path, force=True)
    assert result.notes == (expected,)
    sound = small(name="sound", world=world(tmp_path, 0), stop={"time": "1d", "steps": 2})
    assert told(sound, tmp_path) == (None, [])


def test_a_run_that_lost_every_job_says_so(tmp_path: Path) -> None:
    chance = small(dropout={"chance": 1.0}, stop={"time": "1h", "steps": 3})
    warning, [note] = told(chance, tmp_path)
    assert warning == "no update used"
    assert note.startswith(f"{UNUSED}jobs: ")
    assert " lost (the client left or failed, or chance lost the job)" in note


def test_a_run_that_ended_before_its_first_step_by_its_target_has_no_warning(tmp_path: Path) -> None:
    met = small(stop={"steps": 8, "metric": "mean_percent", "target": 0.0})
    assert told(met, tmp_path) == (None, ["ended before its first step: the initial model meets stop.target"])
