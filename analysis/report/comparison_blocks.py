"""The tables of a study's report that compare: levels with each other, by time to a target, and with a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from fedsim.analysis.opening.points import place_of
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Block, Column, Heading, Table, Text, frame_table
from fedsim.analysis.statistics.paired.differences import PairedDifference
from fedsim.analysis.statistics.paired.significance import NAME_OF
from fedsim.analysis.statistics.time_to_target import Unit
from fedsim.analysis.tables.difference_tables import LEAST_P, conditions
from fedsim.analysis.tables.headings import heading_of, heading_of_difference
from fedsim.analysis.tables.published_tables import note_on_rows, published_frames
from fedsim.analysis.tables.target_tables import SPREAD, target_frames, target_notes, title_of
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.units import HOUR_US
from fedsim.config.study.compare import parse_target

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS = (
    Column("95 % low", 3, signed=True, wide=True),
    Column("95 % high", 3, signed=True, wide=True),
    Column("95 % low by t", 3, signed=True),
    Column("95 % high by t", 3, signed=True),
    Column("seeds better, %", 0, wide=True),
    Column("p Holm", 3, least=LEAST_P),
    Column("p {test}, not corrected", 3, least=LEAST_P, wide=True),
    Column("p sign, not corrected", 3, least=LEAST_P, wide=True),
    Column("effect size d_z", 2, signed=True, wide=True),
    Column("detects (80 %)", 3, wide=True),
    Column("seeds for 80 %", wide=True),
    Column("pairing factor", 2, wide=True),
)
"""The columns behind the mean difference."""
_SCALES: dict[Unit, tuple[str, float, int]] = {
    "steps": ("", 1, 0),
    "time": (", h", HOUR_US, 3),
    "bytes": (", MB", 1e6, 1),
}
"""How the page writes a unit: behind the heading, the size, and the decimals."""
_VALUE_COLUMNS = {
    "mean": "mean",
    "low": "95 % low",
    "high": "95 % high",
    "published": "paper",
    "published_std": "± of the paper",
    "p_holm": "p that they differ (Welch, Holm)",
}
_TO_TARGET = {
    "n": Column("runs"),
    "reached": Column("reached it"),
    "speed_up": Column("speed-up", 2),
    "low": Column("95 % low", 2),
    "high": Column("95 % high", 2),
    "faster": Column("seeds faster"),
    "seeds": Column("seeds"),
    "p_holm": Column("p Holm", 3, least=LEAST_P),
}


def difference_block(
    name: str, differences: Sequence[PairedDifference], study: Study, what: str | None = None
) -> Table:
    """Return comparisons of one metric at one point as a table.

    The caption says `what` is compared, by default the difference from the baseline, and names the test.
    """
    first = differences[0]
    unit = ", ".join(filter(None, heading_of_difference(first.metric)))
    several = "comparisons" if first.family != 1 else "comparison"
    test = f"p Holm is that of the {NAME_OF[first.test]}, corrected for {first.family} {several}"
    what = what or f"level minus {first.baseline}"
    others = [axis for axis in study.axes if axis != first.axis]
    columns = (
        Column(first.axis),
        *map(Column, others),
        Column("seeds"),
        Column(f"mean difference of {unit}", 3, signed=True),
        *(replace(number, heading=number.heading.format(test=first.test)) for number in _NUMBERS),
    )
    rows = tuple(_row(each, others) for each in differences)
    return Table(name, f"{unit}, {what} {place_of(first.at)}; {test}", columns, rows)


def _row(each: PairedDifference, others: Sequence[str]) -> tuple[object, ...]:
    ranges = (*(each.interval or (None, None)), *(each.t_interval or (None, None)))
    numbers = (each.n, each.mean, *ranges, 100 * each.better, each.p_holm, each.p_value, each.sign_p)
    size = (each.effect_size, each.detectable, each.seeds_needed, each.pairing_factor)
    return (each.level, *(each.others[axis] for axis in others), *numbers, *size)


def target_blocks(study: Study) -> Iterator[Block]:
    """Yield how long the runs take to the target of `[compare]`, a table for each unit, if there is one."""
    if not (target := study.compare.get("target")):
        return
    metric, value = parse_target(target)
    name, _, unit_of_metric = heading_of(metric).partition(", ")
    yield Heading(f"Time to {name} of {value:g} {unit_of_metric}".rstrip())
    try:
        frames = target_frames(study, metric, value)
    except (ConfigError, RunError) as error:
        yield Text(f"Not counted: {error}.")
        return
    for unit, frame in frames.items():
        yield Text(" ".join(target_notes(frame, unit)), "note")
        yield _target_table(frame, title_of(study, metric, value, unit), unit)


def _target_table(frame: pd.DataFrame, title: str, unit: Unit) -> Table:
    behind, size, digits = _SCALES[unit]
    reached = {name: (frame[name] / size).replace(np.inf, np.nan) for name in SPREAD}
    columns = _TO_TARGET | {name: Column(f"{name}{behind}", digits) for name in SPREAD}
    shown = frame.assign(**reached)
    if "baseline" in shown:
        baseline = shown.pop("baseline").dropna().iloc[0]
        columns["speed_up"] = replace(columns["speed_up"], heading=f"speed-up over {baseline}")
    return frame_table(f"target-{unit}", title[:1].upper() + title[1:], shown, columns)


def published_blocks(study: Study, titles: Mapping[str, str] = MappingProxyType({})) -> Iterator[Block]:
    """Yield the study's means beside the paper's values and the verdicts on its claims, if it repeats a table.

    `titles` are other names of levels.
    """
    if study.published is None:
        return
    yield Heading("Beside the paper")
    yield Text(f"The study repeats {study.published.source}.")
    frames = published_frames(study)
    columns = (*study.axes, "lower", "higher")
    values, claims = (
        frame.assign(
            **{c: frame[c].map(lambda level: titles.get(level, level)) for c in columns if c in frame}
        )
        for frame in (frames["published.values"], frames["published.claims"])
    )
    numbers = {name: Column(text, 3) for name, text in _VALUE_COLUMNS.items()}
    if len(values):
        caption = f"Means over seeds{conditions(study)}, with 95 % t intervals, and the paper's values"
        values["metric"] = values["metric"].map(heading_of)
        if (values["at"] == "end").all():
            values = values.drop(columns="at")
        yield frame_table("published-values", caption, values, {"n": Column("seeds"), **numbers})
    if note := note_on_rows(study):
        yield Text(note, "note")
    if len(claims):
        pairing = f"each pair of levels, paired by seed, higher minus lower{conditions(study)}"
        caption = f"What the paper concludes: {pairing}"
        claims["metric"] = claims["metric"].map(heading_of)
        if claims["within"].isna().all():
            claims = claims.drop(columns="within")
        pairs = {
            "within": Column("equal within", 3),
            "n": Column("seeds"),
            "mean": Column("difference", 3),
            "low": Column("95 % low", 3, wide=True),
            "high": Column("95 % high", 3, wide=True),
            "p_value": Column("p", 3, least=LEAST_P, wide=True),
            "p_holm": Column("p Holm", 3, least=LEAST_P),
        }
        yield frame_table("published-claims", caption, claims, pairs)
