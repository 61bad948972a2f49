"""The step of q-FFL (Li et al. 2020), w <- w - Σ D_k / Σ h_k, for q-FedSGD and q-FedAvg.

With g_k = s Δ_k: D_k = F_k^q g_k and h_k = q F_k^(q-1) ‖g_k‖² + L F_k^q. All losses are divided by the
largest one, F, first, which cancels but for one factor 1/F and keeps the powers in range.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsim.common.errors import ConfigError
from fedsim.server.rule import Floats, Stack


def step_weights(losses: Floats, squares: Floats, q: float, lipschitz: Floats, scale: Floats) -> Floats:
    """Return the weights `[m]` of the rows Δ_k, of squared norms `squares`, with g_k = `scale`_k Δ_k and L_k.

    All arguments but q are `[m]`; losses are positive.
    """
    largest = float(losses.max())
    relative = losses / largest
    powers = relative**q
    curvature = q * relative ** (q - 1) * squares * (scale**2 / largest) if q > 0 else np.zeros_like(losses)
    return np.asarray(powers * scale / float((curvature + lipschitz * powers).sum()))


def step_size(
    rule: str, lr: float | None, lipschitz: float | None
) -> Callable[[Stack], tuple[Floats, Floats]]:
    """Return what gives (η_k, L_k), each `[m]`, of the present rows, one from the other as L = 1/η unless given.

    η decays with the clients' learning rate, a given L does not. Raises ConfigError if neither is given.
    """
    if lr is None and lipschitz is None:
        raise ConfigError(
            f"rule {rule!r}, option 'lr': expected the clients' learning rate (or the Lipschitz constant 'L', 1/lr), "
            "found neither"
        )

    def of(stack: Stack) -> tuple[Floats, Floats]:
        given = np.full(stack.m, np.nan if lipschitz is None else lipschitz)
        eta = 1 / given if lr is None else stack.rates(lr)[: stack.m]
        return eta, 1 / eta if lipschitz is None else given

    return of
