"""Discounts of stale updates, by name (Xie et al. 2019, section 5.2; Nguyen et al. 2022)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.server.rule import Floats, Ints

Discount = Literal["constant", "polynomial", "hinge", "sqrt"]


def discounts(staleness: Ints, kind: Discount, a: float, b: float) -> Floats:
    """Return σ(s) in (0, 1] for each staleness s, in server steps.

    constant: 1. polynomial: (s + 1)^-a. hinge: 1 if s <= b, else 1 / (a (s - b) + 1). sqrt: 1 / √(s + 1).
    """
    s = staleness.astype(np.float64)
    if kind == "constant":
        return np.ones_like(s)
    if kind == "hinge":
        return np.asarray(1 / (a * np.maximum(s - b, 0.0) + 1))
    return np.asarray((s + 1) ** -(0.5 if kind == "sqrt" else a))
