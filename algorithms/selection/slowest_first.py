"""Select the slowest clients first, by the time that their last job took: a biased choice, to study its effect.

A client without an arrived job counts with the time that a job would take at its speeds now.
Known to the server: durations of jobs that arrived, and the clients' speeds at this instant.
"""

from __future__ import annotations

import numpy as np

from fedsim.algorithms.selection.parts.draws import choose_highest
from fedsim.algorithms.selection.parts.durations import durations_us
from fedsim.engine.selector import Choice, Selector, View, stateless


def slowest_first() -> Selector:
    """Choose the clients whose last job took longest, or would take longest if none has arrived; ties at random."""

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        return choose_highest(view.candidates, durations_us(view, view.candidates), k, rng)

    return stateless(select, draws=False)
