"""Median: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML).

Each entry of the step is the median of that entry over the m updates (Algorithm 1, option I). It stays within the
range of the honest updates, entry by entry, as long as fewer than half of the updates are hostile.

Deviations and choices:
- An even number of updates gives the mean of the middle two, as in the paper; torch's median is the lower one.
- Updates count equally, whatever the clients' numbers of samples. A client with two updates in a step (buffered
  pacing) counts twice.
- The rule reads present updates. The wrapper `with_absent` adds the last updates of absent clients; an attacker's then
  stays among them, so hostile clients must be fewer than half of the clients that are remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsim.algorithms.mathematics.columns import each_present, mean_of_ranks
from fedsim.server.rule import Algorithm, stateless

if TYPE_CHECKING:
    import torch


def coordinate_median() -> Algorithm:
    """Take the median of the updates, parameter by parameter."""

    def median(tile: torch.Tensor) -> torch.Tensor:
        k = len(tile)
        return mean_of_ranks(tile, (k - 1) // 2, k // 2 + 1)

    return stateless(each_present, columns=median)
