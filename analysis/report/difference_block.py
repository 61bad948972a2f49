"""Paired differences as a table of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Column, Table, heading_of
from fedsim.analysis.statistics.paired.differences import PairedDifference
from fedsim.analysis.tables.difference_tables import LEAST_P, PLACES

_NUMBERS = (
    Column("95 % low", 3, signed=True),
    Column("95 % high", 3, signed=True),
    Column("t low", 3, signed=True),
    Column("t high", 3, signed=True),
    Column("seeds better, %", 0),
    Column("p Holm", 3, least=LEAST_P),
    Column("p {test}, not corrected", 3, least=LEAST_P),
    Column("p sign, not corrected", 3, least=LEAST_P),
    Column("effect size d_z", 2, signed=True),
    Column("detects (80 %)", 3),
    Column("seeds for 80 %"),
    Column("pairing factor", 2),
)
"""The columns behind the mean difference."""


def difference_block(
    name: str, differences: Sequence[PairedDifference], study: Study, what: str | None = None
) -> Table:
    """Return comparisons of one metric at one point as a table.

    The caption says `what` is compared, by default the difference from the baseline.
    """
    first = differences[0]
    unit = heading_of(first.metric)
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
    return Table(name, f"{unit}, {what} {PLACES.get(first.at, first.at)}", columns, rows)


def _row(each: PairedDifference, others: Sequence[str]) -> tuple[object, ...]:
    ranges = (*(each.interval or (None, None)), *(each.t_interval or (None, None)))
    numbers = (each.n, each.mean, *ranges, 100 * each.better, each.p_holm, each.p_value, each.sign_p)
    size = (each.effect_size, each.detectable, each.seeds_needed, each.pairing_factor)
    return (each.level, *(each.others[axis] for axis in others), *numbers, *size)
