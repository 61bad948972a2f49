"""Jain's index of the accuracies."""

from __future__ import annotations

from fedsim.common.arrays import Floats, Ints


def jain(accuracy: Floats, n: Ints) -> float:
    """Return Jain's index, 1 if all accuracies are equal: `(sum_k a_k)^2 / (K sum_k a_k^2)`.

    From 1/K (one client has everything) to 1 (all equal, also if all are 0); it is the squared cosine of
    `angle_rad`. Source: Jain, Chiu, Hawe, DEC-TR-301, 1984, equation 1.
    """
    squares = float(accuracy @ accuracy)
    return float(accuracy.sum()) ** 2 / (len(accuracy) * squares) if squares else 1.0
