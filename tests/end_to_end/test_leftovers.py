"""What runs that follow one another in one process leave behind."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from fedsim.common.errors import RunError
from fedsim.common.stopwatch import Stopwatch
from fedsim.config.load import parse
from fedsim.data.federated_data import FederatedData
from fedsim.engine.event_loop import EventLoop
from fedsim.runs.build import prepare
from fedsim.runs.progress import Progress
from fedsim.runs.session import Session
from fedsim.server.history import GradientHistory
from fedsim.training.workbench import Workbench


def _run(folder: Path, *, fails: bool) -> None:
    raw = {
        "name": "one",
        "task": {"name": "synthetic", "clients": 6},
        "algorithm": {"name": "fedfv"},
        "pacing": {"preset": "sync", "clients": 2},
        "stop": {"steps": 2},
        "checkpoint": {"every_steps": 1},
    }

    def watch(progress: Progress) -> None:
        if fails:
            raise RunError("no more")

    session = Session.create(prepare(parse(raw, "here", "one")[0]), folder, None, Stopwatch())
    if fails:
        with pytest.raises(RunError):
            session.run(watch)
    else:
        session.run(watch)


def _alive() -> Counter[str]:
    """Count what a run consists of."""
    kinds = (Session, EventLoop, Workbench, GradientHistory, FederatedData)
    return Counter(type(o).__name__ for o in gc.get_objects() if type(o) in kinds)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_is_over_leaves_no_data_and_no_history(tmp_path: Path, fails: bool) -> None:
    """Not even until Python looks for circles: that is seldom, and a study's data piled up to gigabytes."""
    gc.collect()
    gc.disable()
    try:
        before = _alive()
        _run(tmp_path / "one", fails=fails)
        assert _alive() == before
    finally:
        gc.enable()
