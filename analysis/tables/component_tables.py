"""Variance components of a study as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.table import Table

from fedsim.analysis.opening.points import place_of
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.variance.study_components import VarianceComponents, variance_components
from fedsim.analysis.tables.closing import fixed
from fedsim.analysis.tables.difference_tables import conditions, plain
from fedsim.analysis.tables.study_tables import metrics_of, points_of
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown

_HEADINGS = ("runs", "source", "df", "mean\ns.d.", "share\n%")
_NOTE = (
    "s.d.: root of a variance component, in the unit of the metric. A source alone is what its seed moves in all runs "
    "alike; × is an interaction, the last one with all other noise. one run: a run whose seeds are all drawn anew. "
    "Estimates below 0 count as 0. df: the fewer, the rougher the estimate."
)


@arguments.checked
def component_tables(study: Study) -> list[Table]:
    """Return the components of each metric and point of a study's `compare`, a note below the last table.

    Raises what `variance_components` raises.
    """
    tables = [
        _table(study, variance_components(study, metric, at))
        for at in points_of(study)
        for metric in metrics_of(study)
    ]
    tables[-1].caption = shown(_NOTE)
    return tables


def _table(study: Study, found: Sequence[VarianceComponents]) -> Table:
    first = found[0]
    place = f"{place_of(first.at)}{conditions(study, first.at)}"
    table = ruled_table(f"variance components of {first.metric.replace('_', ' ')}, {place}", padding=1)
    for number, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    for each in found:
        for row in _rows(each):
            table.add_row(*map(shown, row))
        table.add_section()
    return table


def _rows(found: VarianceComponents) -> Iterator[tuple[str, ...]]:
    """Yield the lines of one block: the mean, each component and their sum."""
    yield found.name.replace(" minus ", "\nminus "), "mean", "", plain(found.mean), ""
    for each in found.components:
        share = 100 * found.share(each)
        yield "", " × ".join(each.factors), str(each.df), plain(math.sqrt(each.variance)), fixed(share, 1)
    yield "", "one run", "", plain(math.sqrt(found.variance)), "100.0" if found.variance > 0 else "–"
