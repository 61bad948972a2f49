"""Which evaluations of runs are compared: those after equal or given steps, time or bytes, and on the same clients."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.opening.evaluation import Evaluation, on_common_clients
from fedsim.common.errors import FolderError
from fedsim.common.units import show_bytes, show_us
from fedsim.config.study import compare
from fedsim.config.study.compare import parse_point

if TYPE_CHECKING:
    import pandas as pd

Point = str
"""Where runs are compared: one of `POINTS`, or with a number, such as `steps=500`, `time=6h` or `bytes=1GB`."""
POINTS = compare.POINTS
COLUMN_OF = {"steps": "step", "time": "time_us", "bytes": "bytes"}
"""By point, the column that says how far a run had come."""
_PLACES = {
    "end": "at the end of each run",
    "steps": "after equal steps",
    "time": "after equal virtual time",
    "bytes": "after equal bytes moved",
}
_AFTER = {"steps": "after {} steps", "time": "after {} of virtual time", "bytes": "after {} moved"}
_AMOUNT = {"steps": "step {:,}".format, "time": show_us, "bytes": show_bytes}
"""By point, how messages tell where an evaluation is."""
_ENOUGH = 0.5
"""An exactly shared point is used if it lies beyond this share of the range that all runs reached."""


def kind_of(at: Point) -> str:
    """Return the one of `POINTS` that a point belongs to, such as `steps` for `steps=500`."""
    return parse_point(at)[0]


def place_of(at: Point) -> str:
    """Return a point in words, such as `at the end of each run`, `after equal steps` or `after 500 steps`."""
    kind, _, amount = at.partition("=")
    if not amount:
        return _PLACES[kind]
    if kind == "time" and amount.strip().isdecimal():
        amount = f"{amount.strip()} s"
    return "after 1 step" if at == "steps=1" else _AFTER[kind].format(amount)


def in_order(points: Iterable[Point]) -> list[Point]:
    """Return points, each once, in the order of `POINTS`, those with a number behind those without and by size."""
    places = {at: parse_point(at) for at in points}
    return sorted(places, key=lambda at: (POINTS.index(places[at][0]), places[at][1] or 0))


def same_point(numbers: Sequence[pd.DataFrame], column: str, past_us: int) -> list[int]:
    """Return the index of the evaluation of each run to compare; see `Study.frame`.

    `numbers` are the runs' positions, of which `column` is to be equal. What forks and their parents share until
    `past_us` tells nothing of the difference.
    """
    values = [np.asarray(n[column], dtype=np.int64) for n in numbers]
    reach = min(int(v[-1]) for v in values)
    later = [v[np.asarray(n["time_us"]) > past_us].tolist() for v, n in zip(values, numbers, strict=True)]
    shared = set(later[0]).intersection(*later[1:])
    best = max((v for v in shared if v <= reach), default=-1)
    limit = best if best >= _ENOUGH * reach else reach
    return [max(int(np.searchsorted(v, limit, side="right")) - 1, 0) for v in values]


def last_up_to(values: Sequence[int], amount: int) -> int:
    """Return the index of the last of rising `values`, one of each evaluation of a run, that is at most `amount`.

    Returns -1 if the first one lies beyond, or the last one before: the run did not come as far.
    """
    reached = len(values) > 0 and values[-1] >= amount
    return bisect_right(values, amount) - 1 if reached else -1


def require_up_to(numbers: pd.DataFrame, at: Point, folder: Path) -> int:
    """Return the index of a run's last evaluation up to a point with a number; `numbers` are the run's positions.

    Raises FolderError that names the `folder` of a run that did not come as far.
    """
    kind, amount = parse_point(at)
    values = numbers[COLUMN_OF[kind]].tolist()
    index = -1 if amount is None else last_up_to(values, amount)
    if index < 0:
        first, last = (_AMOUNT[kind](values[i]) for i in (0, -1))
        in_binary = f" ({_AMOUNT[kind](amount)})" if kind == "bytes" and amount is not None else ""
        raise FolderError(
            f"{folder}: expected evaluations before and after {at}{in_binary}, found the first at {first} and the last "
            f"at {last}; {kind!r} without a number takes what the shortest run reached"
        )
    return index


def same_clients(
    windows: Sequence[Sequence[Evaluation]], ends: Sequence[Evaluation]
) -> list[Sequence[Evaluation]] | None:
    """Return the evaluations of runs on the clients that all of them have; None if they have none in common.

    Runs whose last evaluations, `ends`, have different clients are of different data: then those of each run alone.
    """
    if not all(np.array_equal(end.client, ends[0].client) for end in ends):
        return [on_common_clients(window) for window in windows]
    together = iter(on_common_clients([evaluation for window in windows for evaluation in window]))
    found = [[next(together) for _ in window] for window in windows]
    return None if len(ends[0].client) and not len(found[0][0].client) else list(found)
