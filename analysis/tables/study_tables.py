"""The results of a study, as frames for files and as tables for the terminal. Each mean comes with its spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fedsim.analysis.opening.points import COLUMN_OF, Point, in_order, place_of
from fedsim.analysis.opening.study import Study
from fedsim.analysis.opening.study_file import open_study
from fedsim.analysis.statistics.bootstrap import spread_of
from fedsim.analysis.statistics.paired.differences import PairedDifference, differences_of, has_pairs
from fedsim.analysis.statistics.paired.interaction import interactions
from fedsim.analysis.tables.closing import ACCURACIES
from fedsim.analysis.tables.difference_tables import (
    by_axis,
    conditions,
    difference_frame,
    difference_table,
    interaction_of,
    spread_text,
)
from fedsim.analysis.tables.group_tables import participation_frames, participation_tables
from fedsim.analysis.tables.headings import name_of
from fedsim.analysis.tables.target_tables import target_frames, target_tables
from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.common.terminal import ruled_table, shown
from fedsim.config.study.compare import parse_target

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def study_frames(study: Study | str | Path) -> dict[str, pd.DataFrame]:
    """Return the results of a study as frames by name; the study's `compare` selects metrics and points.

    `levels.<point>`: a row per metric and combination of levels, with mean, std and interval over seeds.
    `differences.<point>`: a row per metric and comparison, see `difference_frame`. With a second axis,
    `interactions.<point>`: the same columns for `interactions`. All for each point of `compare.at` (by default `end`).
    With `compare.target`, `target.<unit>`: a row per combination of levels, see `target_frames`.
    `participation.groups` and `participation.measures`, if `compare.group` asks for a group: see
    `fedsim.analysis.tables.group_tables.participation_frames`. A point at which runs cannot be compared is left out.
    Raises RunError if no run is done, or there is no other point.
    """
    opened = study if isinstance(study, Study) else open_study(study)
    frames: dict[str, pd.DataFrame] = {}
    refused: list[FolderError] = []
    for at in points_of(opened):
        try:
            frames[f"levels.{at}"] = level_frame(opened, at)
            if differences := list(_differences(opened, at)):
                frames[f"differences.{at}"] = difference_frame(differences)
            if found := list(_interactions(opened, at)):
                frames[f"interactions.{at}"] = difference_frame(found)
        except FolderError as error:
            refused.append(error)
    if refused and not frames:
        raise refused[0]
    if target := opened.compare.get("target"):
        by_unit = target_frames(opened, *parse_target(target))
        frames |= {f"target.{unit}": frame for unit, frame in by_unit.items()}
    return frames | (participation_frames(opened) if opened.compare.get("group") else {})


@arguments.checked
def study_tables(study: Study | str | Path) -> Iterator[Table | Text]:
    """Yield the results of a study as tables for the terminal, those of groups last; see `study_frames`.

    At a point where they cannot be compared a line says why. Raises that error if there is no table at all.
    """
    opened = study if isinstance(study, Study) else open_study(study)
    refused: list[FolderError] = []
    shown_tables = False
    for part in _parts(opened):
        try:
            for table in part():
                yield table
                shown_tables = True
        except FolderError as error:
            refused.append(error)
    if refused and not shown_tables:
        raise refused[0]
    for text in dict.fromkeys(map(str, refused)):
        yield shown(f"not compared: {text}")


def _parts(study: Study) -> Iterator[Callable[[], Iterable[Table]]]:
    """Yield the parts of a study's tables, each of which may fail by itself."""
    for at in points_of(study):
        yield partial(_tables_at, study, at)
    if target := study.compare.get("target"):
        yield partial(target_tables, study, *parse_target(target))
    if study.compare.get("group"):
        yield partial(participation_tables, study)


def _tables_at(study: Study, at: Point) -> Iterator[Table]:
    where = conditions(study, at)
    yield _level_table(study, at, where)
    if differences := list(_differences(study, at)):
        yield difference_table(differences, where)
    for each in by_axis(list(_interactions(study, at))):
        yield difference_table(each, where, interaction_of(study, each))


def metrics_of(study: Study) -> list[str]:
    """Return the metrics that a study compares, by default those of the closing table."""
    return list(dict.fromkeys(study.compare.get("metrics") or ACCURACIES.values()))


def points_of(study: Study) -> list[Point]:
    """Return the points at which a study compares its runs, as `in_order` does; by default the end."""
    return in_order(study.compare.get("at") or ["end"])


def level_frame(study: Study, at: Point = "end", metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """Return one row per metric and combination of levels: n seeds, mean, std, and 95 % bootstrap interval over seeds.

    The interval describes a level by itself. To compare two levels, use `difference_frame`: differences of equal seeds
    vary less.
    """
    import pandas as pd  # imported here: most commands do not need it

    names = list(metrics or metrics_of(study))
    frame = study.frame(names, at)
    axes = list(study.axes)
    groups = frame.groupby(axes, sort=False, observed=True) if axes else [((), frame)]
    rows: list[dict[str, Any]] = []
    for key, part in groups:
        for name in names:
            values = part[name].dropna().to_numpy(dtype=np.float64)
            numbers = {"n": len(values), **spread_of(values)}
            rows.append({"metric": name, "at": at, **dict(zip(axes, key, strict=True)), **numbers})
    return pd.DataFrame(rows, columns=["metric", "at", *axes, "n", "mean", "std", "low", "high"])


def _differences(study: Study, at: Point) -> Iterator[PairedDifference]:
    if has_pairs(study):
        names = metrics_of(study)
        frame = study.frame(names, at)
        for metric in names:
            yield from differences_of(study, frame, metric, at)


def _interactions(study: Study, at: Point) -> Iterator[PairedDifference]:
    if len(study.axes) > 1 and has_pairs(study):
        for metric in metrics_of(study):
            yield from interactions(study, metric, at)


def _level_table(study: Study, at: Point, where: str) -> Table:
    """Return means and standard deviations over seeds, a column per metric."""
    frame = level_frame(study, at)
    place = f"{place_of(at)}{where}"
    caption = (
        "Below them 95 % bootstrap intervals of the mean; each client counts once unless a name says samples."
    )
    if study.axes and len(study.axes[study.axis()]) > 1 and not has_pairs(study):
        baseline = f"{study.axis()}={study.baseline(study.axis())}"
        caption += f" No level was run beside the baseline {baseline}, so there are no differences."
    if at in COLUMN_OF and (alone := len(study.finished) - len(study.counted_clients(at))):
        caption += f" Left out: {alone} run{'s' * (alone > 1)} without another one to be equal with."
    table = ruled_table(f"{study.name}: mean ± standard deviation over seeds, {place}", caption)
    axes, names = list(study.axes), list(dict.fromkeys(frame["metric"]))
    for heading in (*axes, "seeds", *map(name_of, names)):
        table.add_column(shown(heading), justify="left" if heading in axes else "right", overflow="fold")
    for key, part in frame.groupby(axes, sort=False) if axes else [((), frame)]:
        rows = part.to_dict("records")
        seeds = part["n"].max()
        texts = [spread_text(r, seeds) for r in rows]
        table.add_row(*map(shown, [*map(str, key), str(seeds), *texts]))
    return table
