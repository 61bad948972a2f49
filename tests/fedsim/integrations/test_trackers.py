"""What a tracker gets of runs that end, fail, or take the place of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim import analysis
from fedsim.common.errors import SomeFailed
from fedsim.integrations.trackers import Logger
from small import small


class Recording(Logger):
    """Notes each curve's points, and how a tracker's run ended, by run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[dict[str, Any]] = []

    def _open(self, run: analysis.Run, name: str) -> analysis.Curves:
        noted: dict[str, Any] = {"name": name, "steps": [], "evaluations": []}
        self.runs.append(noted)

        class Sink:
            def scalars(self, step: int, time_s: float, values: dict[str, float]) -> None:
                of_steps = any(key.startswith("steps/") for key in values)
                noted["steps" if of_steps else "evaluations"].append(step)

            def histogram(self, *_: Any) -> None: ...

            def flush(self) -> None: ...

            def close(self, complete: bool = True) -> None:
                noted["complete"] = complete

        return analysis.Curves(Sink())


def config(name: str = "x", **changes: Any) -> dict[str, Any]:
    return small(name=name, stop={"steps": 3}, evaluate={"every_steps": 2}, **changes).resolved()


WHOLE = {"steps": [0, 1, 2], "evaluations": [0, 2, 3], "complete": True}


def test_a_run_that_is_done_has_its_end_although_another_failed(tmp_path: Path) -> None:
    arms = {"bad": {"train": {"lr": 1e30}, "bad_updates": {"policy": "stop"}}, "good": {}}
    with pytest.raises(SomeFailed), Recording() as logger:
        fedsim.simulate(config() | {"arms": arms}, out=tmp_path, workers=0, watch=logger, progress=False)
    assert logger.runs == [{"name": "x/good"} | WHOLE]  # the other failed before its first step


def test_a_run_that_is_done_has_its_end_although_what_followed_failed(tmp_path: Path) -> None:
    def run_and_fail(logger: Logger) -> None:
        fedsim.simulate(config(), out=tmp_path, workers=0, watch=logger, progress=False)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Recording() as logger:
        run_and_fail(logger)
    assert logger.runs == [{"name": "x"} | WHOLE]


def test_a_run_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    with Recording() as logger:
        for lr in (0.1, 0.01):
            fedsim.simulate(
                config(train={"lr": lr}), out=tmp_path, workers=0, force=True, watch=logger, progress=False
            )
    first, second = logger.runs
    assert (first["steps"], first["complete"]) == ([0, 1], False)  # what followed its last call is gone
    assert second == {"name": "x"} | WHOLE
