"""Metrics of one evaluation, and the means of its lowest and highest accuracies."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsim import plugins
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints


@arguments.checked
@plugins.contained()
def summary(accuracy: ArrayLike, n: ArrayLike, metrics: Iterable[str] | None = None) -> dict[str, float]:
    """Return the value of each metric, by name, for one evaluation.

    `accuracy` [K] holds fractions from 0 to 1, `n` [K] the number of samples of each client. Clients without samples
    are left out; if no client is left, or an accuracy is NaN because the model's outputs are not finite, each value is
    NaN. `metrics` defaults to all of `fedsim.analysis.metrics`. Raises ValueError that names the client for an accuracy
    outside 0 to 1, ConfigError for an unknown metric, RunError for a metric that returns no number.
    """
    wanted = list(plugins.names("metric") if metrics is None else metrics)
    fractions, samples = _checked(np.asarray(accuracy, dtype=np.float64), np.asarray(n, dtype=np.int64))
    if not len(fractions) or np.isnan(fractions).any():
        return dict.fromkeys(wanted, float("nan"))
    values = {}
    for name in wanted:
        own = fractions.copy(), samples.copy()  # a metric may sort in place
        values[name] = plugins.number_of(name, _metric(name)(*own))
    return values


def _metric(name: str) -> Any:
    """Return the function of a metric; that of a file may have been edited since the last call."""
    return plugins.factory("metric", name) if ".py:" in name else _installed(name)


_installed = cache(partial(plugins.factory, "metric"))


def _checked(accuracy: Floats, n: Ints) -> tuple[Floats, Ints]:
    if accuracy.ndim != 1 or accuracy.shape != n.shape:
        raise ValueError(f"expected accuracy and n of one shape [K], found {accuracy.shape} and {n.shape}")
    measured = n > 0
    outside = np.flatnonzero(measured & ((accuracy < 0) | (accuracy > 1)))
    if len(outside):
        at = outside[0]
        raise ValueError(f"accuracy of client at position {at}: expected 0 to 1, found {accuracy[at]!r}")
    return accuracy[measured], n[measured]


def tail_size(n_clients: int, percent: int) -> int:
    """Return floor(percent K / 100), at least 1: with few clients, the tail is the single extreme client."""
    return max(1, percent * n_clients // 100)


def lowest_percent(accuracy: Floats, percent: int) -> float:
    """Return the mean of the `percent` % lowest accuracies, in percent."""
    size = tail_size(len(accuracy), percent)
    return 100 * float(np.partition(accuracy, size - 1)[:size].mean())


def highest_percent(accuracy: Floats, percent: int) -> float:
    """Return the mean of the `percent` % highest accuracies, in percent."""
    size = tail_size(len(accuracy), percent)
    return 100 * float(np.partition(accuracy, len(accuracy) - size)[-size:].mean())
