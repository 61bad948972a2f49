"""How long a study's runs take to a target, as frames and as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from fedsim.analysis.opening.points import COLUMN_OF
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.paired.significance import ALPHA, smallest_p
from fedsim.analysis.statistics.time_to_target import (
    SpeedUp,
    Unit,
    counted_clients,
    speed_ups,
    time_to_target,
)
from fedsim.analysis.tables.difference_tables import averaged, on_clients, on_split, p_text, plain
from fedsim.analysis.tables.headings import heading_of
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown
from fedsim.common.units import show_bytes, show_us

if TYPE_CHECKING:
    import pandas as pd

UNITS: dict[Unit, str] = {"steps": "steps", "time": "virtual time", "bytes": "bytes moved"}
SPREAD = ("median", "least", "most")
"""Columns of a frame of `target_frames` in its unit."""
_OF_SPEED_UPS = ("baseline", "speed_up", "low", "high", "faster", "seeds", "p_holm")


def target_frames(study: Study, metric: str, value: float) -> dict[Unit, pd.DataFrame]:
    """Return how long the runs of a study take until a metric reaches a value, a frame for each unit.

    The units are those that the study's `compare` names in `at`, by default virtual time. A row per combination of
    levels: `n` runs, how many of them `reached` the value, and the `median`, `least` and `most` of all runs, with inf
    for one that did not; time is in microseconds. With levels to compare, also the `baseline`, the `speed_up` over it
    with `low` and `high`, in how many of `seeds` the level was `faster`, and `p_holm`, as of `speed_ups`; NaN for the
    baseline. Raises what `time_to_target` raises.
    """
    wanted = study.compare.get("at") or ()
    reached = time_to_target(study, metric, value)
    units = [unit for unit in UNITS if unit in wanted] or ["time"]
    return {unit: _frame(study, reached, unit) for unit in units}


@arguments.checked
def target_tables(study: Study, metric: str, value: float) -> list[Table]:
    """Return how long the runs of a study take until a metric reaches a value, with the speed-up over the baseline.

    One table for each unit that the study's `compare` names in `at`, by default virtual time. Raises what
    `time_to_target` raises.
    """
    frames = target_frames(study, metric, value)
    return [_table(study, frame, metric, value, unit) for unit, frame in frames.items()]


def title_of(study: Study, metric: str, value: float, unit: Unit) -> str:
    """Return what a table of times to a target shows, such as `virtual time to mean accuracy of 80 %`."""
    heading, _, its_unit = heading_of(metric).partition(", ")
    where = on_split(study.split) + on_clients(counted_clients(study)) + averaged(study)
    return f"{UNITS[unit]} to {heading} of {f'{value:g} {its_unit}'.rstrip()}{where}"


def _frame(study: Study, reached: pd.DataFrame, unit: Unit) -> pd.DataFrame:
    import pandas as pd  # imported here: most commands do not need it

    axes = list(study.axes)
    groups = dict(iter(reached.groupby(axes, sort=False))) if axes else {(): reached}
    speeds = {tuple(_levels_of(each, study).values()): each for each in speed_ups(study, reached, unit)}
    found = {levels: each for levels, each in speeds.items() if levels in groups}  # of others no run is done
    rows: list[dict[str, Any]] = []
    for key, part in groups.items():
        values = part[COLUMN_OF[unit]].to_numpy(dtype=np.float64)
        numbers = {"n": len(values), "reached": int(np.isfinite(values).sum())}
        extremes = (np.median(values), values.min(), values.max()) if len(values) else 3 * (math.nan,)
        spread = dict(zip(SPREAD, extremes, strict=True))
        levels = dict(zip(axes, map(str, key), strict=True))
        compared = _speed_up(found.get(tuple(levels.values()))) if found else {}
        rows.append(levels | numbers | spread | compared)
    columns = [*axes, "n", "reached", *SPREAD, *(_OF_SPEED_UPS if found else ())]
    return pd.DataFrame(rows, columns=columns)


def _levels_of(each: SpeedUp, study: Study) -> dict[str, str]:
    """Return the levels of a comparison, in the order of the axes."""
    levels = each.others | {study.axis(): each.level}
    return {axis: levels[axis] for axis in study.axes}


def _speed_up(each: SpeedUp | None) -> dict[str, Any]:
    if each is None:
        return {}
    low, high = each.interval or (math.nan, math.nan)
    values = (each.baseline, each.median, low, high, each.faster, len(each.seeds), each.p_holm)
    return dict(zip(_OF_SPEED_UPS, values, strict=True))


def _table(study: Study, frame: pd.DataFrame, metric: str, value: float, unit: Unit) -> Table:
    title = f"{study.name}: {title_of(study, metric, value, unit)}"
    table = ruled_table(title, " ".join(target_notes(frame, unit)))
    headings = [*study.axes, "reached", "median", "least", "most"]
    if compared := "baseline" in frame:
        headings += [f"speed-up over\n{frame['baseline'].dropna().iloc[0]}", "faster", "p Holm"]
    for heading in headings:
        table.add_column(
            shown(heading), justify="left" if heading in study.axes else "right", overflow="fold"
        )
    for row in frame.to_dict("records"):
        texts = [row[axis] for axis in study.axes]
        texts += [f"{row['reached']} of {row['n']}", *(_amount(row[name], unit) for name in SPREAD)]
        table.add_row(*map(shown, texts + (_compared(row) if compared else [])))
    return table


def _amount(number: float, unit: Unit) -> str:
    """Return steps, microseconds or bytes as text; a dash for a number that is not finite."""
    if not math.isfinite(number):
        return "–"
    if unit == "time":
        return show_us(round(number))
    return show_bytes(number) if unit == "bytes" else f"{number:,.2f}".rstrip("0").rstrip(".")


def _compared(row: Mapping[Any, Any]) -> list[str]:
    if not isinstance(row["baseline"], str):
        return [""] * 3
    interval = "–" if math.isnan(row["low"]) else f"[{_ratio(row['low'])}, {_ratio(row['high'])}]"
    faster = f"{row['faster']:.0f} of {row['seeds']:.0f}"
    return [f"{_ratio(row['speed_up'])} {interval}", faster, p_text(row["p_holm"])]


def _ratio(number: float) -> str:
    return "∞" if number == math.inf else plain(number)


def target_notes(frame: pd.DataFrame, unit: Unit) -> Iterator[str]:
    """Yield sentences that explain a frame of `target_frames`."""
    yield "Counted up to the first evaluation that reaches it; – where a run did not."
    if (frame["most"] == 0).all() and len(frame):
        yield "All runs reached it at step 0, before any training; percentages run from 0 to 100."
    if "baseline" not in frame:
        return
    found = frame.dropna(subset=["baseline", "p_holm"])
    yield (
        f"Speed-up: the baseline's {UNITS[unit]} divided by the level's, the median over seeds, with an "
        "interval that covers it with 95 % or more, from 6 seeds on. A run that does not reach the target is slower "
        "than one that does; seeds in which neither does are left out. p Holm: exact sign test, two-sided, without "
        f"seeds in which the two are equal, corrected for {len(found)} comparison{'s' * (len(found) != 1)}."
    )
    most = int(found["seeds"].max()) if len(found) else 0
    if most and len(found) * smallest_p(most) > ALPHA:
        least = min(1.0, len(found) * smallest_p(most))
        yield f"With {most} seeds it cannot be below {least:.3g}, whatever the speed-up."
