"""A study beside the paper's table that it repeats: differences of the values, and verdicts on the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import stats

from fedsim.analysis.opening.arrays import Floats
from fedsim.analysis.opening.study import Cell, Study
from fedsim.analysis.statistics.bootstrap import FEWEST, sample_std
from fedsim.analysis.statistics.paired import t_interval
from fedsim.analysis.statistics.paired_tests import ALPHA, holm, t_test
from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.config.published import Claim, PublishedRow, PublishedSection, axis_of, rest_of

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "does not hold", "cannot be told", "not run"]
_DIGITS = 12
"""Decimals of differences: rounding makes differences equal that differ only by floating-point error."""


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


@dataclass(frozen=True, slots=True)
class ClaimedPair:
    """Two levels that a claim orders or calls equal."""

    column: str
    lower: str
    higher: str
    differences: Floats
    """[n] higher minus lower by seed."""
    within: float | None = None
    """The largest difference of two levels that are claimed to be equal; None for an order."""
    p_holm: float = math.nan
    """P value corrected for all pairs of all claims (Holm); NaN below 3 seeds."""

    @property
    def mean(self) -> float:
        """Mean difference over seeds; NaN without any."""
        return float(self.differences.mean()) if len(self.differences) else math.nan

    @property
    def verdict(self) -> Verdict:
        """What the corrected test allows to say; `not run` without a seed that has both levels."""
        if not len(self.differences):
            return "not run"
        if not self.p_holm <= ALPHA:
            return "cannot be told"
        as_claimed = self.mean > 0 if self.within is None else abs(self.mean) <= self.within
        return "holds" if as_claimed else "does not hold"

    def p_value(self) -> float:
        """Return the two-sided p value of the paired t test; for equality, that of the side that the mean lies on.

        Equality within `d` is tested by two one-sided tests (Schuirmann, 1987); a mean beyond `d` by the one-sided
        test that the difference is larger than `d`. NaN below 3 seeds.
        """
        if len(self.differences) < FEWEST:
            return math.nan
        if self.within is None:
            return t_test(self.differences)
        if abs(self.mean) <= self.within:
            return max(
                t_test(self.differences, -self.within, "greater"),
                t_test(self.differences, self.within, "less"),
            )
        beyond = self.differences * np.sign(self.mean)
        return t_test(beyond, self.within, "greater")


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim of a paper, tested at some levels of the other axes."""

    text: str
    """The paper's statement."""
    others: dict[str, str]
    """The level of each axis that the claim is not about."""
    pairs: tuple[ClaimedPair, ...]

    @property
    def verdict(self) -> Verdict:
        """`does not hold` if one pair does not, that of all pairs if they agree, else `cannot be told`."""
        verdicts = {pair.verdict for pair in self.pairs}
        if "does not hold" in verdicts:
            return "does not hold"
        return verdicts.pop() if len(verdicts) == 1 else "cannot be told"

    def count(self, verdict: Verdict) -> int:
        """Return the number of pairs with a verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)


@arguments.checked
def published_values(study: Study) -> list[PublishedValue]:
    """Return each published value beside the study's, for each combination of levels that its row holds for.

    Raises FolderError if the study has no `[published]`.
    """
    published, frame = _published(study), _frame(study)
    found = []
    for row in published.rows:
        for levels, part in _combinations(study, frame):
            if all(levels[axis] == level for axis, level in row.levels.items()):
                found += list(_values(row, levels, part))
    corrected = holm([_welch(each, published) for each in found])
    return [replace(each, p_holm=float(p)) for each, p in zip(found, corrected, strict=True)]


def rows_not_run(study: Study) -> list[dict[str, str]]:
    """Return the levels of each published row for which no run is done. Raises FolderError as `published_values`."""
    done = [cell.levels.items() for cell in study.finished]
    return [
        row.levels for row in _published(study).rows if not any(row.levels.items() <= each for each in done)
    ]


@arguments.checked
def claim_results(study: Study) -> list[ClaimResult]:
    """Test each claim of the study's `[published]` at each combination of levels of the other axes.

    Pairs are compared seed by seed (Student's t); p values are corrected for all pairs of all claims (Holm). Raises
    FolderError if the study has no `[published]`.
    """
    frame = _frame(study)
    results = [
        ClaimResult(text, others, pairs)
        for text, claims in _published(study).parsed().items()
        for others, pairs in _tested(study, frame, claims)
    ]
    corrected = iter(holm([pair.p_value() for result in results for pair in result.pairs]).tolist())
    return [
        replace(result, pairs=tuple(replace(pair, p_holm=next(corrected)) for pair in result.pairs))
        for result in results
    ]


def _published(study: Study) -> PublishedSection:
    if study.published is None:
        raise FolderError(
            f"{study.folder}: the study has no [published], so there is no table to compare with"
        )
    return study.published


def _frame(study: Study) -> pd.DataFrame:
    """Return a row per finished cell, with a column for each metric and client that values and claims name."""
    published = _published(study)
    columns = published.columns()
    frame = study.frame([c for c in columns if c not in published.clients])
    cells = {(*cell.levels.values(), cell.seed): cell for cell in study.finished}
    for column in columns:
        if column in published.clients:
            client = published.clients[column]
            frame[column] = [
                _accuracy_percent(study, cells[key], client)
                for key in frame[[*study.axes, "seed"]].itertuples(index=False, name=None)
            ]
    return frame


def _accuracy_percent(study: Study, cell: Cell, client: int) -> float:
    accuracies = [
        each.accuracy[(each.client == client) & (each.n > 0)]
        for each in study.evaluations(cell)[-study.last :]
    ]
    return 100 * float(np.mean(accuracies)) if all(map(len, accuracies)) else math.nan


def _combinations(
    study: Study, frame: pd.DataFrame, without: str | None = None
) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Yield the levels of all axes but `without`, each combination with its part of the frame."""
    axes = [axis for axis in study.axes if axis != without]
    if not axes:
        yield {}, frame
        return
    for key, part in frame.groupby(axes, sort=False, observed=True):
        yield dict(zip(axes, map(str, key), strict=True)), part


def _values(row: PublishedRow, levels: dict[str, str], part: pd.DataFrame) -> Iterator[PublishedValue]:
    for column, (mean, std) in row.values.items():
        yield PublishedValue(levels, column, part[column].dropna().to_numpy(dtype=np.float64), mean, std)


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


def _tested(
    study: Study, frame: pd.DataFrame, claims: Sequence[Claim]
) -> Iterator[tuple[dict[str, str], tuple[ClaimedPair, ...]]]:
    """Yield the levels of the axes that a statement is not about, and the pairs of its claims there.

    Claims for levels without a run have pairs without differences.
    """
    axis = axis_of(claims[0], study.axes)
    if axis is None:
        raise FolderError(f"{study.folder}: a claim names levels of no single axis: {claims[0]}")
    left = dict.fromkeys(claims)
    for others, part in _combinations(study, frame, axis):
        by_level = {str(level): rows.set_index("seed") for level, rows in part.groupby(axis, sort=False)}
        if about := [claim for claim in claims if claim.about(others)]:
            yield others, tuple(pair for claim in about for pair in _pairs(claim, study.axes[axis], by_level))
            left = {claim: None for claim in left if claim not in about}
    for where in dict.fromkeys(claim.where for claim in left):
        about = [claim for claim in left if claim.where == where]
        yield dict(where), tuple(pair for claim in about for pair in _pairs(claim, study.axes[axis], {}))


def _pairs(claim: Claim, levels: Iterable[str], by_level: dict[str, pd.DataFrame]) -> Iterator[ClaimedPair]:
    groups = rest_of(claim.groups, levels)
    for lower_group, higher_group in pairwise(groups):
        for lower in lower_group:
            for higher in higher_group:
                differences = np.zeros(0)
                if lower in by_level and higher in by_level:
                    each = by_level[higher][claim.column] - by_level[lower][claim.column]
                    differences = np.round(each.dropna().to_numpy(dtype=np.float64), _DIGITS)
                yield ClaimedPair(claim.column, lower, higher, differences, claim.within)
