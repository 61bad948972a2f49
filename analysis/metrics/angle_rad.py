"""Angle between the accuracies and the diagonal, in radians."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def angle_rad(accuracy: Floats, n: Ints) -> float:
    """Return `arccos(sum_k a_k / (|a| sqrt(K)))`, the angle between the accuracies and equality, in radians.

    From 0 (all equal, also if all are 0) to pi/2. Computed as `arctan(std / mean)`, which is the same angle
    without the loss of digits that arccos has near 0. Source: "fairness indicator" of FedMDFG (Pan et al.,
    AAAI 2023) and FedLF (Pan et al., AAAI 2024).
    """
    return float(np.arctan2(accuracy.std(), accuracy.mean()))
