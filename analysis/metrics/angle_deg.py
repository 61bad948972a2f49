"""Angle between the accuracies and the diagonal, in degrees."""

from __future__ import annotations

import numpy as np

from fedsim.common.arrays import Floats, Ints

SMALLER_IS_BETTER = True


def angle_deg(accuracy: Floats, n: Ints) -> float:
    """Return `arccos(sum_k a_k / (|a| sqrt(K)))`, the angle between the accuracies and equality, in degrees.

    From 0 (all equal, also if all are 0) to 90. Source: "angle" of q-FFL (Li et al., ICLR 2020).
    """
    return float(np.degrees(np.arctan2(accuracy.std(), accuracy.mean())))
