"""Runs whose curves trackers get, and what the curves have to hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsim import analysis
from fedsim.analysis.export.curves import COUNTS, METRICS
from fedsim.common.units import US
from fedsim.config.run import RunConfig
from small import small

Curve = list[tuple[int, float, float]]
"""Step, virtual time in seconds, and value of every point."""


def config(**changes: Any) -> RunConfig:
    world = {"scenario": "churn", "horizon": "12h", "options": {"mean_on": "3min", "mean_off": "2min"}}
    evaluate = {"every_steps": 2}
    return small(**{"world": world, "evaluate": evaluate} | changes)


def assert_whole(found: dict[str, Curve], opened: analysis.Run, *, time_s: float = 0.0) -> None:
    """Assert that every row and evaluation of a run is there once, with its step, value and, to `time_s`, time."""
    steps = opened.frame("steps")
    for name in COUNTS:
        known = np.isfinite(steps[name])
        _assert_points(found[f"steps/{name}"], steps.loc[known, ["step", "time_us", name]], time_s)
    history = opened.history(metrics=METRICS)
    for name, column in {**{m: m for m in METRICS}, "mean_loss": "loss"}.items():
        _assert_points(found[f"evaluation_test/{name}"], history[["step", "time_us", column]], time_s)


def _assert_points(found: Curve, rows: Any, time_s: float) -> None:
    points, expected = np.array(found), rows.to_numpy() / [1, US, 1]
    np.testing.assert_array_equal(points[:, 0], expected[:, 0])
    np.testing.assert_allclose(points[:, 1], expected[:, 1], rtol=1e-6, atol=time_s)
    np.testing.assert_allclose(points[:, 2], expected[:, 2], rtol=1e-6)
