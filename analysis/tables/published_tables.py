"""A study beside the paper's table that it repeats, as tables for the terminal and as frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.paired import t_interval
from fedsim.analysis.statistics.published import (
    ClaimedPair,
    ClaimResult,
    PublishedValue,
    claim_results,
    published_values,
    rows_not_run,
)
from fedsim.analysis.tables.difference_tables import averaged, conditions, p_text, plain, span
from fedsim.common import arguments
from fedsim.common.terminal import shown

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
    return [*tables, _claim_table(study, results, alone=not tables)] if results else tables


@arguments.checked
def published_frames(study: Study) -> dict[str, pd.DataFrame]:
    """Return what `published_tables` shows as frames.

    `published.values` has a row per value, `published.claims` one per pair of levels that a claim orders. Raises
    FolderError if the study has no `[published]`.
    """
    import pandas as pd  # imported here: most commands do not need it

    values = [_value_row(value) for value in published_values(study)]
    pairs = [_pair_row(result, pair) for result in claim_results(study) for pair in result.pairs]
    return {"published.values": pd.DataFrame(values), "published.claims": pd.DataFrame(pairs)}


def _value_row(value: PublishedValue) -> dict[str, object]:
    low, high = value.interval or (math.nan, math.nan)
    numbers = {"n": len(value.values), "mean": value.mean, "low": low, "high": high}
    theirs = {"published": value.published, "published_std": value.published_std, "p_holm": value.p_holm}
    return {"metric": value.column, **value.levels, **numbers, **theirs}


def _pair_row(result: ClaimResult, pair: ClaimedPair) -> dict[str, object]:
    return {
        "claim": result.text,
        **result.others,
        "verdict": result.verdict,
        "metric": pair.column,
        "lower": pair.lower,
        "higher": pair.higher,
        "n": len(pair.differences),
        "mean": pair.mean,
        "p_holm": pair.p_holm,
        "pair": pair.verdict,
    }


def _value_table(study: Study, values: Sequence[PublishedValue]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.title = shown(_beside(study))
    table.caption = shown(" ".join(filter(None, [_value_notes(values), note_on_rows(study)])))
    table.title_justify = table.caption_justify = "left"
    columns = list(dict.fromkeys(value.column for value in values))
    for heading in (*study.axes, *columns):
        table.add_column(
            shown(heading.replace("_", " ")),
            justify="left" if heading in study.axes else "right",
            overflow="fold",
        )
    rows: dict[tuple[str, ...], dict[str, PublishedValue]] = {}
    for value in values:
        rows.setdefault(tuple(value.levels.values()), {})[value.column] = value
    for levels, by_column in rows.items():
        texts = [_value_cell(by_column[c]) if c in by_column else "" for c in columns]
        table.add_row(*map(shown, [*levels, *texts]))
    return table


def _beside(study: Study) -> str:
    """Return what is compared with the paper: the study, its split and the evaluations that it averages."""
    assert study.published is not None
    comma = "," if averaged(study) else ""
    return f"{study.name}{conditions(study)}{comma} beside {study.published.source}"


def _value_cell(value: PublishedValue) -> str:
    spread = "" if value.published_std is None else f" ± {value.published_std:g}"
    ours = f"{plain(value.mean)} {span(value.interval, '')}".strip()
    return f"{ours}\n{'≠ ' if value.differs else ''}{value.published:g}{spread}"


def note_on_rows(study: Study) -> str:
    """Return how many published rows were not run, and which, as a sentence; empty if all were."""
    names = [" ".join(f"{axis}={level}" for axis, level in row.items()) for row in rows_not_run(study)]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    rows = "row was" if len(names) == 1 else "rows were"
    return f"{len(names)} published {rows} not run: {', '.join(names[:_NAMED])}{more}."


def _value_notes(values: Sequence[PublishedValue]) -> str:
    if not values:
        return ""
    seeds = sorted({len(value.values) for value in values})
    count = " to ".join(map(str, [seeds[0], *seeds[1:][-1:]]))
    text = f"Above, the mean over {count} seeds with its 95 % t interval; below, the paper's value."
    tested = [value for value in values if not math.isnan(value.p_holm)]
    if not tested:
        return text
    differing = sum(value.differs for value in tested)
    return (
        f"{text} ≠ marks the {differing} of {len(tested)} values that differ (Welch's t test, Holm's correction for "
        "all of them, 5 %)."
    )


def _claim_table(study: Study, results: Sequence[ClaimResult], *, alone: bool) -> Table:
    """Return the table of verdicts, which names the study if it stands `alone`."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    tested = sum(pair.verdict != "not run" for result in results for pair in result.pairs)
    table.title = (
        shown(f"{_beside(study)}: what the paper concludes") if alone else "What the paper concludes"
    )
    table.caption = (
        "pairs: hold / do not hold / cannot be told. Differences are paired by seed, the higher level minus the lower, "
        "with 95 % t intervals; p is that of Student's t, corrected for "
        f"{tested} {'pair' if tested == 1 else 'pairs'} (Holm)."
    )
    table.title_justify = table.caption_justify = "left"
    axes = list(dict.fromkeys(axis for result in results for axis in result.others))
    for heading in ("claim", *axes, "verdict", "pairs", "least certain pair", "difference", "p Holm"):
        table.add_column(shown(heading), overflow="fold", justify="right" if heading == "p Holm" else "left")
    for result in results:
        table.add_row(*map(shown, _claim_cells(result, axes)))
    return table


def _claim_cells(result: ClaimResult, axes: Sequence[str]) -> list[str]:
    counts = (result.count(verdict) for verdict in ("holds", "does not hold", "cannot be told"))
    pairs, missing = " / ".join(map(str, counts)), result.count("not run")
    known = [result.text, *(result.others.get(axis, "") for axis in axes), result.verdict]
    if missing == len(result.pairs):
        return [*known, f"{missing} not run", "", "", ""]
    pair, not_run = _least_certain(result), f"\n{missing} not run" if missing else ""
    return [*known, pairs + not_run, _pair_text(pair), _difference(pair), p_text(pair.p_holm)]


def _least_certain(result: ClaimResult) -> ClaimedPair:
    """Return the pair that contradicts a claim most clearly, else the one that supports it least."""
    against = [pair for pair in result.pairs if pair.verdict == "does not hold"]
    if against:
        return min(against, key=lambda pair: pair.p_holm)
    tested = [pair for pair in result.pairs if pair.verdict != "not run"]
    return max(tested, key=lambda pair: 2.0 if math.isnan(pair.p_holm) else pair.p_holm)


def _pair_text(pair: ClaimedPair) -> str:
    sign = "<" if pair.within is None else f"= ± {pair.within:g}"
    return f"{pair.column.replace('_', ' ')}:\n{pair.lower} {sign} {pair.higher}"


def _difference(pair: ClaimedPair) -> str:
    mean = "–" if math.isnan(pair.mean) else f"{pair.mean:+.3g}"
    return f"{mean}\n{span(t_interval(pair.differences))}"
