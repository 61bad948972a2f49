"""Correlations of clients' accuracy with their participation, with intervals over clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.analysis.statistics.bootstrap import LEAST_CLIENTS, Statistic, client_draws, interval
from fedsim.analysis.statistics.participation import label_sets
from fedsim.common.arrays import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

PARTICIPATION = ("used", "availability", "lost")


def correlations(frame: pd.DataFrame, *, intervals: bool = True) -> pd.DataFrame:
    """Return the correlation of accuracy with participation among the clients of `run_clients`.

    One row for each measure of participation in the frame (`used` updates, `availability`, `lost` jobs), each method
    (`spearman`, `pearson`) and each weighting (`clients`: each client counts once; `samples`: by its samples of the
    split). Columns: `with`, `method`, `weighted_by`, `clients`, `value`, and `low` and `high`, the 95 % bootstrap
    interval over clients, in which clients of one of `label_sets` are drawn together if the frame has labels. NaN if
    accuracy or the measure is equal for all clients; no interval if fewer than five clients, and fewer than half, have
    another value than the rest, as they would decide it alone.
    """
    import pandas as pd

    return pd.DataFrame(list(_rows(frame, intervals)))


def pearson(x: Floats, y: Floats, weights: Floats) -> Statistic:
    """Return the statistic "weighted Pearson correlation of x and y", [n] each; NaN if one of them does not vary."""
    a, b = x - x.mean(), y - y.mean()

    def statistic(counts: Floats) -> Floats:
        return _correlation(a[None, :], b[None, :], counts * weights)

    return statistic


def spearman(x: Floats, y: Floats, weights: Floats) -> Statistic:
    """Return the statistic "weighted Spearman correlation": of ranks within each resample, ties with mean ranks."""

    def statistic(counts: Floats) -> Floats:
        each = counts * weights
        return _correlation(_ranks(x, each), _ranks(y, each), each)

    return statistic


def _rows(frame: pd.DataFrame, intervals: bool) -> Iterator[dict[str, Any]]:
    accuracy, samples = frame["accuracy_percent"].to_numpy(np.float64), frame["n"].to_numpy(np.float64)
    sets = label_sets(frame)
    for name in PARTICIPATION:
        if name not in frame:
            continue
        x = frame[name].to_numpy(np.float64)
        known = ~np.isnan(x)
        n = int(known.sum())
        for method, make in (("spearman", spearman), ("pearson", pearson)):
            for weighted_by, weights in (("clients", np.ones(len(x))), ("samples", samples)):
                value, bounds = np.nan, None
                if n and not np.isnan(accuracy[known]).any():
                    statistic = make(x[known], accuracy[known], weights[known])
                    value = float(statistic(np.ones((1, n)))[0])
                    alike = None if sets is None else sets[known]
                    if intervals and all(_varies(each, alike) for each in (x[known], accuracy[known])):
                        bounds = interval(statistic, n, draws=client_draws(n), clusters=alike)
                low, high = bounds or (np.nan, np.nan)
                words = {"with": name, "method": method, "weighted_by": weighted_by, "clients": n}
                yield words | {"value": value, "low": low, "high": high}


def _varies(values: Floats, clusters: Ints | None) -> bool:
    """Return whether more than a few clients, or clusters with such clients, have another value than most."""
    units = np.arange(len(values)) if clusters is None else clusters
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    others = len(np.unique(units[place != counts.argmax()]))
    return others >= min(LEAST_CLIENTS, max(len(np.unique(units)) // 2, 1))


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return [b] the weighted correlation of x and y ([b, n] or [1, n]) for weights [b, n]."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    a = x - (shares * x).sum(axis=1, keepdims=True)
    b = y - (shares * y).sum(axis=1, keepdims=True)
    variances = (shares * a * a).sum(axis=1) * (shares * b * b).sum(axis=1)
    unknown = np.full(len(shares), np.nan)
    correlation = np.divide(
        (shares * a * b).sum(axis=1), np.sqrt(variances), out=unknown, where=variances > 1e-18
    )
    return np.asarray(correlation.clip(-1, 1))


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Return [b, n] mean ranks of values [n], each repeated as often as its weight [b, n]."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    together = np.add.reduceat(weights[:, order], first, axis=1)
    middle = np.cumsum(together, axis=1) - together / 2
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.repeat(np.arange(len(first)), np.diff([*first, len(values)]))
    return np.asarray(middle[:, place])
