"""The process of a run is killed at random instants; what is on disk is enough to end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_kills import killed_runs


@pytest.mark.slow
def test_fifty_kills_of_the_process(tmp_path: Path) -> None:
    found = list(killed_runs(50, tmp_path, steps=120))
    assert sum(run.kills for run in found) == 50
    assert all(run.same and run.once for run in found), found
    assert any(step > 0 for run in found for step in run.from_step)
