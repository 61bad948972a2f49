"""What a study found, as frames for files and as tables for the terminal: never a mean without its spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table

from fedsim.analysis.opening.study import POINTS, Point, Study, open_study
from fedsim.analysis.statistics.bootstrap import interval, mean_of
from fedsim.analysis.statistics.paired import PairedDifference, differences_of
from fedsim.analysis.tables.closing import ACCURACIES
from fedsim.analysis.tables.difference_tables import PLACES, difference_frame, difference_table, plain, span
from fedsim.analysis.tables.group_tables import participation_frames, participation_tables
from fedsim.common import arguments
from fedsim.common.terminal import shown

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def study_frames(given: Study | str | Path) -> dict[str, pd.DataFrame]:
    """Return what a study found, as frames by name; the study's `compare` says what is asked.

    `levels.<point>`: a row per metric and combination of levels, with mean, std and interval over seeds.
    `differences.<point>`: a row per metric and comparison, see `difference_frame`. Both for each point of `compare.at`
    (by default `end`). `participation.groups` and `participation.measures`, if `compare.group` asks for a group: see
    `fedsim.analysis.tables.group_tables.participation_frames`. Raises RunError if no run is done.
    """
    study = given if isinstance(given, Study) else open_study(given)
    frames = {}
    for at in points_of(study):
        frames[f"levels.{at}"] = level_frame(study, at)
        if found := list(_found(study, at)):
            frames[f"differences.{at}"] = difference_frame(found)
    return frames | (participation_frames(study) if study.compare.get("group") else {})


@arguments.checked
def study_tables(given: Study | str | Path) -> list[Table]:
    """Return the tables that answer what a study asks, for the terminal; see `study_frames`."""
    study = given if isinstance(given, Study) else open_study(given)
    tables = []
    for at in points_of(study):
        tables.append(_level_table(study, at))
        if found := list(_found(study, at)):
            tables.append(difference_table(found))
    return tables + (participation_tables(study) if study.compare.get("group") else [])


def metrics_of(study: Study) -> list[str]:
    """Return the metrics that a study is asked for, by default those of the closing table."""
    return list(study.compare.get("metrics") or ACCURACIES.values())


def points_of(study: Study) -> list[Point]:
    """Return the points at which a study is asked to compare, in their usual order; by default the end."""
    wanted = study.compare.get("at") or ["end"]
    return [point for point in POINTS if point in wanted]


def level_frame(study: Study, at: Point = "end", metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per metric and combination of levels: n seeds, mean, std, and 95 % bootstrap interval over seeds.

    The interval is about a level by itself. Whether two levels differ is what `difference_frame` says: there is less
    chance in a difference of equal seeds.
    """
    import pandas as pd  # half a second, not needed before

    names = list(metrics or metrics_of(study))
    frame = study.frame(names, at)
    axes = list(study.axes)
    groups = frame.groupby(axes, sort=False, observed=True) if axes else [((), frame)]
    rows: list[dict[str, Any]] = []
    for key, part in groups:
        for name in names:
            values = part[name].dropna().to_numpy(dtype=np.float64)
            low, high = interval(mean_of(values), len(values)) or (math.nan, math.nan)
            mean = values.mean() if len(values) else math.nan
            std = values.std(ddof=1) if len(values) > 1 else math.nan
            numbers = {"n": len(values), "mean": mean, "std": std, "low": low, "high": high}
            rows.append({"metric": name, "at": at, **dict(zip(axes, key, strict=True)), **numbers})
    return pd.DataFrame(rows, columns=["metric", "at", *axes, "n", "mean", "std", "low", "high"])


def _found(study: Study, at: Point) -> Iterator[PairedDifference]:
    if study.axes and len(study.axes[study.axis()]) > 1:
        names = metrics_of(study)
        frame = study.frame(names, at)
        for metric in names:
            yield from differences_of(study, frame, metric, at)


def _level_table(study: Study, at: Point) -> Table:
    """Return means and standard deviations over seeds, a column per metric."""
    frame = level_frame(study, at)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.title = shown(f"{study.name}: mean ± standard deviation over seeds, {PLACES[at]}")
    table.caption = (
        "Below them 95 % bootstrap intervals of the mean; each client counts once unless a name says samples."
    )
    table.caption_justify, table.title_justify = "left", "left"
    axes, names = list(study.axes), list(dict.fromkeys(frame["metric"]))
    for heading in (*axes, "seeds", *names):
        table.add_column(shown(heading), justify="left" if heading in axes else "right", overflow="fold")
    for key, part in frame.groupby(axes, sort=False) if axes else [((), frame)]:
        rows = part.to_dict("records")
        texts = [f"{plain(r['mean'])} ± {plain(r['std'])}\n{span((r['low'], r['high']), '')}" for r in rows]
        table.add_row(*map(shown, [*map(str, key), str(part["n"].max()), *texts]))
    return table
