"""Trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML).

Each entry of the step is the mean of that entry over the m updates without its b largest and b smallest values,
b = ⌊β m⌋ (Algorithm 1, option II, definition 2). It stays within the range of the honest updates, entry by entry, as
long as at most b of the updates are hostile.

Deviations and choices:
- The paper asks for β m to be a whole number; here it is rounded down. With β m < 1 nothing is trimmed and the rule is
  the plain mean: ten updates at the default of 0.1 lose one at each end, nine lose none.
- The mean is over the m - 2b values that are left, where the paper writes (1 - 2β) m.
- Updates count equally, whatever the clients' numbers of samples. A client with two updates in a step (buffered
  pacing) counts twice.
- The rule reads present updates. The wrapper `with_absent` adds the last updates of absent clients; an attacker's then
  stays among them, so β is a share of the clients that are remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsim.algorithms.mathematics.columns import each_present, mean_of_ranks
from fedsim.server.rule import Algorithm, stateless

if TYPE_CHECKING:
    import torch

_ROUNDING = 1e-9
"""Added to β m, which may be a little below a whole number: 0.29 * 100 is 28.999999999999996."""


def trimmed_mean(*, beta: Annotated[float, Field(ge=0, lt=0.5)] = 0.1) -> Algorithm:
    """Average the updates, parameter by parameter, without the share `beta` of the values at each end.

    Args:
        beta: β, the share of the m values that is left out at each end, b = ⌊β m⌋ of them; with β m < 1 the rule is the
            plain mean.
    """

    def mean(tile: torch.Tensor) -> torch.Tensor:
        k = len(tile)
        trimmed = min(int(beta * k + _ROUNDING), (k - 1) // 2)
        return mean_of_ranks(tile, trimmed, k - trimmed)

    return stateless(each_present, columns=mean)
