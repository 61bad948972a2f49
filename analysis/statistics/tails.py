"""Means of the lowest and highest accuracies."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.opening.arrays import Floats


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
