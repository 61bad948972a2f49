"""What the checks of golden vectors share: tolerances, a comparison, and rounds of a rule that remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rule_calls import combine

Case = dict[str, NDArray[Any]]

EXACT = 1e-10
"""Relative tolerance, in the maximum norm, against results without an interior-point solver."""

POLISHED = 1e-8
"""Relative tolerance against polished solutions that keep some 1e-10 of weight on inactive rows."""

INTERIOR_POINT = 5e-3
"""Relative tolerance against interior-point solvers at their default tolerance."""


def assert_close(actual: NDArray[Any], expected: NDArray[Any], tolerance: float, what: str) -> None:
    """Compare in the maximum norm relative to the largest expected entry."""
    scale = np.abs(expected).max() or 1.0
    error = np.abs(actual - expected).max() / scale
    assert error <= tolerance, f"{what}: relative difference {error:.2e}, expected at most {tolerance:.0e}"


@dataclass
class History:
    """The last row of each client, with its round; rounds are steps from 0."""

    rows: dict[int, NDArray[Any]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    round: dict[int, int] = field(default_factory=dict)

    def combine(self, case: Case, t: int, rule: str, **options: Any) -> Any:
        """Combine round t's rows and the remembered rows of clients absent from it, then remember round t."""
        present = [int(c) for c in case["selected"][t]]
        absent = [c for c in self.rows if c not in present]
        n_seen = len(self.rows)
        for client, row, loss in zip(present, case["grads"][t], case["losses"][t], strict=True):
            self.rows[client], self.losses[client], self.round[client] = row, float(loss), t
        clients = present + absent
        return combine(
            rule,
            np.stack([self.rows[c] for c in clients]),
            losses=[self.losses[c] for c in clients],
            clients=clients,
            ages=[t - self.round[c] for c in clients],
            step=t,
            n_seen=n_seen,
            **options,
        )


def rounds(case: Case, rule: str, **options: Any) -> NDArray[Any]:
    """Return the directions `[T, P]` of all rounds."""
    history = History()
    return np.stack([history.combine(case, t, rule, **options).direction for t in range(len(case["grads"]))])
