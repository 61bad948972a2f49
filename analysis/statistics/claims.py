"""Claims about the levels of a study's axis, those of its paper or a reader's own, tested pair by pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedsim import plugins
from fedsim.analysis.opening.points import Point
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.paired.significance import ALPHA, holm, t_test
from fedsim.analysis.statistics.published import combinations, frame_of, published_of
from fedsim.common import arguments
from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError, FolderError
from fedsim.config.study.published import Claim, axis_of, faults_of, parse_claim, rest_of

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["holds", "does not hold", "cannot be told", "not run"]
_DIGITS = 12
"""Decimals of differences: rounding makes differences equal that differ only by floating-point error."""


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
        """Return the two-sided p value of the paired t test; NaN below 3 seeds.

        Equality within `d`: if the mean is within `d`, that of two one-sided tests (Schuirmann, 1987); else the chance
        of a mean as far from 0, to either side, if the difference is `d`, which at `d` = 0 is that of the t test.
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
        return t_test(beyond, self.within, "greater") + t_test(beyond, -self.within, "greater")


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim, tested at some levels of the other axes."""

    text: str
    """The paper's statement, or the claim itself if it is not the paper's."""
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
def claim_results(study: Study, claims: Sequence[str] | None = None, at: Point = "end") -> list[ClaimResult]:
    """Test `claims`, by default those of the study's `[published]`, at each combination of levels of the other axes.

    Runs are compared at the point `at`, see `Study.frame`. A claim is `column: a < b, c < *`, or `column: a = b ± 2`,
    with or without ` for axis=level` behind it. Pairs are compared seed by seed (Student's t); p values are corrected
    for all pairs of all claims (Holm). Raises ConfigError for a claim that cannot be read or names unknown levels or
    metrics, FolderError if `claims` is None and the study has no `[published]`.
    """
    parsed = published_of(study).parsed() if claims is None else _parsed(study, claims)
    columns = [claim.column for group in parsed.values() for claim in group]
    axes = {text: _axis_of(study, group[0]) for text, group in parsed.items()}
    frames = {axis: frame_of(study, columns, at, axis) for axis in dict.fromkeys(axes.values())}
    results = [
        ClaimResult(text, others, pairs)
        for text, group in parsed.items()
        for others, pairs in _tested(study, axes[text], frames[axes[text]], group)
    ]
    corrected = iter(holm([pair.p_value() for result in results for pair in result.pairs]).tolist())
    return [
        replace(result, pairs=tuple(replace(pair, p_holm=next(corrected)) for pair in result.pairs))
        for result in results
    ]


def _parsed(study: Study, claims: Sequence[str]) -> dict[str, tuple[Claim]]:
    """Read claims that are not the paper's. Raises ConfigError for the first fault."""
    clients = study.published.clients if study.published else {}
    columns = [*clients, *plugins.names("metric")]
    for claim in claims:
        for fault in faults_of([claim], columns, study.axes):
            raise ConfigError(f"{study.folder}: claim: {fault}")
    return {claim: (parse_claim(claim),) for claim in claims}


def _axis_of(study: Study, claim: Claim) -> str:
    axis = axis_of(claim, study.axes)
    if axis is None:
        raise FolderError(f"{study.folder}: a claim names levels of no single axis: {claim}")
    return axis


def _tested(
    study: Study, axis: str, frame: pd.DataFrame, claims: Sequence[Claim]
) -> Iterator[tuple[dict[str, str], tuple[ClaimedPair, ...]]]:
    """Yield the levels of the axes that a statement is not about, and the pairs of its claims there.

    Claims for levels without a run have pairs without differences.
    """
    left = dict.fromkeys(claims)
    for others, part in combinations(study, frame, axis):
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
