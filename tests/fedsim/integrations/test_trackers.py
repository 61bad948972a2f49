"""What a tracker gets of runs that end, fail, or take the place of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim import analysis
from fedsim.common.errors import RunError, SomeFailed, Untracked
from fedsim.integrations.trackers import Logger
from small import small


class Recording(Logger):
    """Notes each curve's points, and how a tracker's run ended, by run; fails at points of step `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.runs: list[dict[str, Any]] = []
        self.fails_at = fails_at

    def _open(self, run: analysis.Run, name: str) -> analysis.Curves:
        noted: dict[str, Any] = {"name": name, "steps": [], "evaluations": []}
        self.runs.append(noted)
        fails_at = self.fails_at
        if fails_at == -1:
            raise RunError("no run was made")

        class Sink:
            def scalars(self, step: int, time_s: float, values: dict[str, float]) -> None:
                if step == fails_at:
                    raise RunError("the store is gone")
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
    assert (first["steps"], first["complete"]) == ([0, 1, 2], False)  # its folder is gone
    assert second == {"name": "x"} | WHOLE


def test_a_tracker_that_fails_ends_no_run_and_gets_nothing_more(tmp_path: Path) -> None:
    configs = config() | {"arms": {"one": {}, "two": {}}}
    message = "the store is gone; nothing more is sent; `fedsim export` sends runs when they are done"
    with pytest.warns(Untracked, match=f"^{message}$") as told, Recording(fails_at=1) as logger:
        results = fedsim.simulate(configs, out=tmp_path, workers=0, watch=logger, progress=False)
    assert len(told) == 1
    assert [result.status for result in results] == ["done", "done"]
    assert logger.runs == [{"name": "x/one", "steps": [0], "evaluations": [0]}]


def test_a_tracker_that_fails_at_the_end_ends_no_run(tmp_path: Path) -> None:
    with pytest.warns(Untracked, match="the store is gone"), Recording(fails_at=3) as logger:
        [result] = fedsim.simulate(config(), out=tmp_path, workers=0, watch=logger, progress=False)
    assert result.status == "done"


def test_a_tracker_that_takes_no_run_ends_the_first(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run was made"), Recording(fails_at=-1) as logger:
        fedsim.simulate(config(), out=tmp_path, workers=0, watch=logger, progress=False)
