"""The values of a study beside those of the paper's table that it repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from fedsim.analysis.opening.evaluation import Evaluation
from fedsim.analysis.opening.points import Point
from fedsim.analysis.opening.study import Cell, Study
from fedsim.analysis.statistics.bootstrap import FEWEST, sample_std
from fedsim.analysis.statistics.paired.differences import t_interval
from fedsim.analysis.statistics.paired.significance import ALPHA, holm
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import FolderError
from fedsim.config.study.published import PublishedRow, PublishedSection

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class PublishedValue:
    """One value of a paper's table beside that of the study."""

    levels: dict[str, str]
    column: str
    values: Floats
    """[n] the study's values by seed."""
    published: float
    published_std: float | None
    """Standard deviation over the paper's runs, as printed."""
    at: Point = "end"
    """Where the study's runs count."""
    p_holm: float = math.nan
    """Two-sided p value of Welch's t test, corrected for all values of the table (Holm); NaN if it cannot be done."""

    @property
    def mean(self) -> float:
        """Mean over seeds; NaN without any."""
        return float(self.values.mean()) if len(self.values) else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of Student's t over seeds; None below 3."""
        return t_interval(self.values)

    @property
    def differs(self) -> bool:
        """Whether the study's mean is another one than the paper's, at 5 % over the whole table."""
        return self.p_holm <= ALPHA


@arguments.checked
def published_values(study: Study) -> list[PublishedValue]:
    """Return each published value beside the study's, for each combination of levels that its row holds for.

    Raises FolderError if the study has no `[published]`.
    """
    published = published_of(study)
    found = []
    for at in dict.fromkeys(row.at for row in published.rows):
        rows = [row for row in published.rows if row.at == at]
        cells = tuple(cell for cell in study.finished if any(_is_of(study, cell, row) for row in rows))
        frame = frame_of(replace(study, cells=cells), (c for row in rows for c in row.values), at)
        for row, (levels, part) in product(rows, list(combinations(study, frame))):
            if _holds_for(levels, row):
                found += list(_values(row, levels, part))
    corrected = holm([_welch(each, published) for each in found])
    return [replace(each, p_holm=float(p)) for each, p in zip(found, corrected, strict=True)]


def _holds_for(levels: Mapping[str, str], row: PublishedRow) -> bool:
    """Return whether a row is about a combination of levels."""
    return row.levels.items() <= levels.items()


def _is_of(study: Study, cell: Cell, row: PublishedRow) -> bool:
    """Return whether a row is about a cell, which came as far."""
    return _holds_for(cell.levels, row) and (row.at == "end" or study.reaches(cell, row.at))


def rows_not_run(study: Study) -> list[dict[str, str]]:
    """Return the levels of each published row for which no run is done, or came as far, with the point if it has one.

    Raises FolderError as `published_values` does.
    """
    rows = published_of(study).rows
    missing = [row for row in rows if not any(_is_of(study, cell, row) for cell in study.finished)]
    return [row.levels | ({} if row.at == "end" else {"at": row.at}) for row in missing]


def published_of(study: Study) -> PublishedSection:
    """Return the paper's table that a study repeats. Raises FolderError if there is none."""
    if study.published is None:
        raise FolderError(
            f"{study.folder}: the study has no [published], so there is no table to compare with"
        )
    return study.published


def frame_of(study: Study, named: Iterable[str], at: Point = "end", axis: str | None = None) -> pd.DataFrame:
    """Return the rows of `Study.frame`, with a column for each of the named metrics and clients of `[published]`."""
    columns = list(dict.fromkeys(named))
    clients = study.published.clients if study.published else {}
    frame = study.frame([column for column in columns if column not in clients], at, axis=axis)
    groups = study.at_point(at, axis=axis) if clients.keys() & columns else ()
    windows = {(*cell.levels.values(), cell.seed): window for group in groups for cell, _, window in group}
    for column in columns:
        if column in clients:
            frame[column] = [
                _accuracy_percent(windows[key], clients[column])
                for key in frame[[*study.axes, "seed"]].itertuples(index=False, name=None)
            ]
    return frame


def _accuracy_percent(window: Sequence[Evaluation], client: int) -> float:
    accuracies = [each.accuracy[(each.client == client) & (each.n > 0)] for each in window]
    return 100 * float(np.mean(accuracies)) if all(map(len, accuracies)) else math.nan


def combinations(
    study: Study, frame: pd.DataFrame, without: str | None = None
) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Yield the levels of all axes but `without`, each combination with its part of the frame of a study."""
    axes = [axis for axis in study.axes if axis != without]
    if not axes:
        yield {}, frame
        return
    for key, part in frame.groupby(axes, sort=False, observed=True):
        yield dict(zip(axes, map(str, key), strict=True)), part


def _values(row: PublishedRow, levels: dict[str, str], part: pd.DataFrame) -> Iterator[PublishedValue]:
    for column, (mean, std) in row.values.items():
        yield PublishedValue(
            levels, column, part[column].dropna().to_numpy(dtype=np.float64), mean, std, row.at
        )


def _welch(value: PublishedValue, published: PublishedSection) -> float:
    """Return the p value of Welch's t test of the study's mean against the paper's, from the printed numbers."""
    runs, std, n = published.runs, value.published_std, len(value.values)
    if runs is None or runs < 2 or std is None or n < FEWEST:
        return math.nan
    theirs = std * math.sqrt(runs / (runs - 1)) if published.spread == "population" else std
    ours = sample_std(value.values)
    if ours == theirs == 0:
        return 1.0 if math.isclose(value.mean, value.published) else 0.0
    tested = stats.ttest_ind_from_stats(value.mean, ours, n, value.published, theirs, runs, equal_var=False)
    return float(tested.pvalue)
