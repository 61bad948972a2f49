"""A study beside the paper's table that it repeats, as tables for the terminal and as frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from rich.table import Table

from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.claims import claim_results
from fedsim.analysis.statistics.published import PublishedValue, published_values, rows_not_run
from fedsim.analysis.tables.claim_tables import claim_frame, verdict_table
from fedsim.analysis.tables.difference_tables import averaged, conditions, plain, span
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown

if TYPE_CHECKING:
    import pandas as pd


_NAMED = 3
"""Most rows that a note names; the others are counted."""


@arguments.checked
def published_tables(study: Study) -> list[Table]:
    """Return the study's means beside the paper's values, and the verdicts on its claims, as tables for the terminal.

    Raises FolderError if the study has no `[published]`.
    """
    values, results = published_values(study), claim_results(study)
    tables = [_value_table(study, values)] if values or rows_not_run(study) else []
    title = "What the paper concludes" if tables else f"{_beside(study)}: what the paper concludes"
    return [*tables, verdict_table(results, title)] if results else tables


@arguments.checked
def published_frames(study: Study) -> dict[str, pd.DataFrame]:
    """Return what `published_tables` shows as frames.

    `published.values` has a row per value, `published.claims` one per pair of levels that a claim orders. Raises
    FolderError if the study has no `[published]`.
    """
    import pandas as pd  # imported here: most commands do not need it

    values = [_value_row(value) for value in published_values(study)]
    return {"published.values": pd.DataFrame(values), "published.claims": claim_frame(claim_results(study))}


def _value_row(value: PublishedValue) -> dict[str, object]:
    low, high = value.interval or (math.nan, math.nan)
    numbers = {"n": len(value.values), "mean": value.mean, "low": low, "high": high}
    theirs = {"published": value.published, "published_std": value.published_std, "p_holm": value.p_holm}
    return {"metric": value.column, "at": value.at, **value.levels, **numbers, **theirs}


def _value_table(study: Study, values: Sequence[PublishedValue]) -> Table:
    caption = " ".join(filter(None, [_value_notes(values), _not_tested(study, values), note_on_rows(study)]))
    table = ruled_table(_beside(study), caption)
    columns = list(dict.fromkeys(value.column for value in values))
    at = ["at"] if any(value.at != "end" for value in values) else []
    for heading in (*study.axes, *at, *columns):
        table.add_column(
            shown(heading.replace("_", " ")),
            justify="right" if heading in columns else "left",
            overflow="fold",
        )
    rows: dict[tuple[str, ...], dict[str, PublishedValue]] = {}
    for value in values:
        levels = *value.levels.values(), *(value.at for _ in at)
        rows.setdefault(levels, {})[value.column] = value
    for between in (" ", "\n"):  # beside the mean or, if that is too wide for the terminal, below it
        body = [
            [*levels, *(_value_cell(by_column[c], between) if c in by_column else "" for c in columns)]
            for levels, by_column in rows.items()
        ]
        widths = (
            max(len(line) for cell in column for line in cell.split("\n"))
            for column in zip(*body, strict=True)
        )
        if sum(width + 1 for width in widths) - 1 <= get_terminal_size().columns:
            break
    for cells in body:
        table.add_row(*map(shown, cells))
    return table


def _beside(study: Study) -> str:
    """Return what is compared with the paper: the study, its split and the evaluations that it averages."""
    assert study.published is not None
    comma = "," if averaged(study) else ""
    return f"{study.name}{conditions(study)}{comma} beside {study.published.source}"


def _value_cell(value: PublishedValue, between: str) -> str:
    spread = "" if value.published_std is None else f" ± {value.published_std:g}"
    ours = f"{plain(value.mean)}{between}{span(value.interval, '')}"
    return f"{ours}\n{'≠ ' if value.differs else ''}{value.published:g}{spread}"


def note_on_rows(study: Study) -> str:
    """Return how many published rows were not run, and which, as a sentence; empty if all were."""
    names = [" ".join(f"{axis}={level}" for axis, level in row.items()) for row in rows_not_run(study)]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    rows = "row was" if len(names) == 1 else "rows were"
    return f"{len(names)} published {rows} not run: {', '.join(names[:_NAMED])}{more}."


def _not_tested(study: Study, values: Sequence[PublishedValue]) -> str:
    """Return how many values with ± are not tested although there are enough seeds, as a sentence; empty if none."""
    assert study.published is not None
    enough = [value for value in values if len(value.values) >= FEWEST and value.published_std is not None]
    left, runs = sum(math.isnan(value.p_holm) for value in enough), study.published.runs
    if not left:
        return ""
    found = "is missing" if runs is None else f"is {runs}"
    are = "value with ± is" if left == 1 else "values with ± are"
    return f"{left} {are} not tested: published.runs, the number of runs behind a value, {found}, and a test takes 2."


def _value_notes(values: Sequence[PublishedValue]) -> str:
    if not values:
        return ""
    seeds = sorted({len(value.values) for value in values})
    count = " to ".join(map(str, [seeds[0], *seeds[1:][-1:]]))
    text = f"Above, the mean over {count} seeds with its 95 % t interval; below, the paper's value."
    if seeds[-1] < FEWEST:
        return f"{text} Fewer than {FEWEST} seeds have no interval, and no value is tested."
    tested = [value for value in values if not math.isnan(value.p_holm)]
    if not tested:
        return text
    differing = sum(value.differs for value in tested)
    return (
        f"{text} ≠ marks the {differing} of {len(tested)} values that differ (Welch's t test, Holm's correction for "
        "all of them, 5 %)."
    )
