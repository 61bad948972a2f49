"""How long a study's runs take to a target, as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from fedsim.analysis.opening.arrays import Floats
from fedsim.analysis.opening.study import COLUMN_OF, Study
from fedsim.analysis.statistics.paired.significance import ALPHA, smallest_p
from fedsim.analysis.statistics.time_to_target import SpeedUp, Unit, speed_ups, time_to_target
from fedsim.analysis.tables.difference_tables import conditions, p_text, plain
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown
from fedsim.common.units import show_bytes, show_us

if TYPE_CHECKING:
    import pandas as pd

_UNITS: dict[Unit, str] = {"steps": "steps", "time": "virtual time", "bytes": "bytes moved"}


@arguments.checked
def target_tables(study: Study, metric: str, value: float) -> list[Table]:
    """Return how long the runs of a study take until a metric reaches a value, with the speed-up over the baseline.

    One table for each unit that the study's `compare` names in `at`, by default virtual time. Raises what
    `time_to_target` raises.
    """
    frame = time_to_target(study, metric, value)
    wanted = study.compare.get("at") or ()
    units = [unit for unit in _UNITS if unit in wanted] or ["time"]
    return [_table(study, frame, f"{metric.replace('_', ' ')} {value:g}", unit) for unit in units]


def _table(study: Study, frame: pd.DataFrame, target: str, unit: Unit) -> Table:
    found = speed_ups(study, frame, unit)
    title = f"{study.name}: {_UNITS[unit]} to {target}{conditions(study)}"
    table = ruled_table(title, " ".join(_notes(frame, found, unit)))
    headings = [*study.axes, "reached", "median", "least", "most"]
    if found:
        headings += [f"speed-up over\n{found[0].baseline}", "faster", "p Holm"]
    for heading in headings:
        table.add_column(
            shown(heading), justify="left" if heading in study.axes else "right", overflow="fold"
        )
    compared = {(each.level, *each.others.values()): each for each in found}
    axes = list(study.axes)
    for key, part in frame.groupby(axes, sort=False) if axes else [((), frame)]:
        levels = dict(zip(axes, map(str, key), strict=True))
        row = [*levels.values()]
        each = compared.get((levels.pop(study.axis()), *levels.values())) if axes else None
        values = part[COLUMN_OF[unit]].to_numpy(dtype=np.float64)
        table.add_row(*map(shown, [*row, *_spread(values, unit), *_compared(each, bool(found))]))
    return table


def _spread(values: Floats, unit: Unit) -> list[str]:
    """Return how many runs reached the target, and the median and the extremes over all runs."""
    if not len(values):
        return ["0 of 0", "–", "–", "–"]
    reached = int(np.isfinite(values).sum())
    numbers = (float(np.median(values)), float(values.min()), float(values.max()))
    return [f"{reached} of {len(values)}", *(_amount(number, unit) for number in numbers)]


def _amount(number: float, unit: Unit) -> str:
    if not math.isfinite(number):
        return "–"
    if unit == "time":
        return show_us(round(number))
    return show_bytes(number) if unit == "bytes" else f"{number:,.0f}"


def _compared(each: SpeedUp | None, others: bool) -> list[str]:
    if each is None:
        return [""] * 3 if others else []
    interval = "–" if each.interval is None else "[{}, {}]".format(*map(_ratio, each.interval))
    return [f"{_ratio(each.median)} {interval}", f"{each.faster} of {len(each.seeds)}", p_text(each.p_holm)]


def _ratio(number: float) -> str:
    return "∞" if number == math.inf else plain(number)


def _notes(frame: pd.DataFrame, found: Sequence[SpeedUp], unit: Unit) -> Iterator[str]:
    yield "Counted up to the first evaluation that reaches it; – where a run did not."
    if not found:
        return
    yield (
        f"Speed-up: the baseline's {_UNITS[unit]} divided by the level's, the median over seeds; in brackets an "
        "interval of that median with 95 % or more, from 6 seeds on. A run that does not reach the target is slower "
        "than one that does; seeds in which neither does are left out. p Holm: exact sign test, two-sided, corrected "
        f"for {len(found)} comparison{'s' * (len(found) > 1)}."
    )
    most = max(len(each.seeds) for each in found)
    if most and len(found) * smallest_p(most) > ALPHA:
        least = min(1.0, len(found) * smallest_p(most))
        yield f"With {most} seeds it cannot be below {least:.3g}, whatever the speed-up."
