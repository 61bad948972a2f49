"""FedLaAvg: Yan et al. 2020, "Distributed Non-Convex Optimization with Sublinear Speedup under Intermittent Client
Availability", Algorithm 1.

    w <- w - (1/K) Σ_all H_k

with H_k the last update of client k, 0 before the first. The paper's server asks the available clients that were absent
longest, the selector `longest_absent`.
"""

from __future__ import annotations

from fedsim.algorithms.mifa import mifa
from fedsim.server.rule import Algorithm


def fedlaavg() -> Algorithm:
    """Average the last update of every client; those without one count as not moving."""
    return mifa(divisor="all")
