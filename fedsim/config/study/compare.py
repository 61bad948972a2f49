"""`[compare]` of a study: which runs its report compares, where, and by which metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator

from fedsim.common.errors import closest
from fedsim.common.units import duration_us, size_bytes
from fedsim.config.section import Count, Section, installed
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.record_words import PERSONAL

POINTS = ("end", "steps", "time", "bytes")
"""Points at which runs are compared: their ends, or equal numbers of steps, virtual time or bytes moved."""
_GROUPS_OF_UNSEEN = ("label", "labels", "n")
"""Columns that divide clients which never train, and so have no jobs and no part in the world."""


def _metric(name: str) -> str:
    if ":" in name:
        raise ValueError(
            f"expected names of installed metrics, found {name!r}; fedsim compare --metric accepts files"
        )
    return installed("metric", name)


Metric = Annotated[str, AfterValidator(_metric)]
"""The name of an installed metric."""


def parse_target(text: str) -> tuple[str, float]:
    """Return the metric and the value of a target such as `mean_percent=80`. Raises ValueError."""
    metric, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not metric.strip():
        raise ValueError(f"expected a metric and a value, such as mean_percent=80, found {text!r}")
    return metric.strip(), value


def parse_point(text: str) -> tuple[str, int | None]:
    """Return the one of `POINTS` that a text names, and the number of steps, microseconds or bytes behind it, if any.

    Texts are `steps` or, with a number, `steps=500`, `time=6h` and `bytes=1GB`. Raises ValueError.
    """
    name, sign, amount = text.partition("=")
    if name not in POINTS:
        raise ValueError(f"there is no point {name!r} to compare runs at{closest(name, POINTS)}")
    if not sign:
        return name, None
    if name == "end":
        raise ValueError(f"expected end without a number, found {text!r}")
    number = _AMOUNTS[name](amount)
    if number < 1:
        raise ValueError(f"expected a point above 0, found {text!r}")
    return name, number


def _steps(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number of steps, such as steps=500, found {text!r}")
    return int(text)


_AMOUNTS: dict[str, Callable[[str], int]] = {"steps": _steps, "time": duration_us, "bytes": size_bytes}


def _point(text: str) -> str:
    parse_point(text)
    return text


Point = Annotated[str, AfterValidator(_point)]
"""Where runs are compared, as `parse_point` reads it."""


def kept_points(points: Iterable[str]) -> list[str]:
    """Return the points whose evaluations outlive the run folders: the end, and those with a number, each once."""
    return list(dict.fromkeys(["end", *(at for at in points if parse_point(at)[1] is not None)]))


def _target(text: str) -> str:
    _metric(parse_target(text)[0])
    return text


class CompareSection(Section):
    """`[compare]`: the comparison of runs in the study's report."""

    axis: str
    """The axis whose levels are compared, in runs with equal levels of the other axes and equal seeds."""
    baseline: str
    """The level of the axis from which differences are taken."""
    metrics: tuple[Metric, ...] = ("mean_percent", "worst10_percent", "angle_rad")
    """Names of metrics (docs/metrics.md)."""
    at: tuple[Point, ...] = ("end",)
    """Where to compare runs: at their ends, at equal server steps, virtual time or bytes moved, or with a number, such
    as `steps=500`, `time=6h` or `bytes=1GB`, at the last evaluation up to there."""
    last: Count = 1
    """Compare means over this many evaluations, the last ones up to the point, instead of one evaluation."""
    split: str | None = None
    """The split to compare runs on, such as `unseen` or `test_personal`; by default that of each run's `[evaluate]`."""
    group: str | None = None
    """A column of the clients table that divides clients into groups."""
    target: Annotated[str, AfterValidator(_target)] | None = None
    """The value of a metric, such as `mean_percent=80`, to which each run's virtual time is counted; with `steps` or
    `bytes` in `at`, these."""
    test: Literal["rank", "t"] = "rank"
    """The test that decides, the exact Wilcoxon signed-rank test or the paired t test, which takes normal differences.

    Times to a target always have the sign test, and a paper's values and claims tests of their own.
    """


def faults_in_group(compare: CompareSection) -> Iterable[str]:
    """Yield a message for a group that the clients of the compared split cannot form."""
    group, unseen = compare.group, compare.split in (UNSEEN, UNSEEN + PERSONAL)
    if unseen and group is not None and group not in _GROUPS_OF_UNSEEN:
        yield (
            f"compare.group: the clients of split {compare.split!r} never train: expected "
            f"{', '.join(_GROUPS_OF_UNSEEN)} or none, found {group!r}"
        )
