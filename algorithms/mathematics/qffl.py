"""Learning rates and Lipschitz constants of the clients, for q-FedSGD and q-FedAvg (Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedsim.common.errors import ConfigError
from fedsim.server.rule import Floats, Stack


class Rates(NamedTuple):
    """What the present rows were trained with."""

    eta: Floats
    """[m] learning rates."""
    lipschitz: Floats
    """[m] Lipschitz constants L, 1/η unless the rule has an option for them."""


def rates_of(rule: str, lr: float | None, lipschitz: float | None) -> Callable[[Stack], Rates]:
    """Return the function from a stack to the rates of its present rows.

    η decays with the clients' learning rate, a configured L does not. Raises ConfigError if neither is configured.
    """
    if lr is None and lipschitz is None:
        raise ConfigError(
            f"rule {rule!r}, option 'lr': expected the clients' learning rate (or the Lipschitz constant 'L', 1/lr), "
            "found neither"
        )

    def rates(stack: Stack) -> Rates:
        constants = np.full(stack.m, np.nan if lipschitz is None else lipschitz)
        eta = 1 / constants if lr is None else stack.rates(lr)[: stack.m]
        return Rates(eta, 1 / eta if lipschitz is None else constants)

    return rates
