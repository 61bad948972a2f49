"""Clients that will probably stay, or probably leave, judged by the hours of the day at which they were there before.

The forecast is the chance that the client is there between now and `ahead` later, by `_hours.py`. `staying` takes the
highest first: fewer jobs are lost. `leaving` takes the lowest first, as REFL does: whoever is rarely there gets its
turn while it is. Ties, and so everybody at first, are at random.

Known to the server: who was there when it looked, and for `ahead = None` the clients' speeds at this instant.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.selection.parts.draws import highest, lowest
from fedsim.algorithms.selection.parts.durations import duration_option, durations_us
from fedsim.algorithms.selection.parts.hours_of_day import chances, looked
from fedsim.engine.selector import Clients, Selector, State, View


def availability_forecast(
    *, prefer: Literal["staying", "leaving"] = "staying", ahead: str | float | None = None
) -> Selector:
    """Choose the clients that are expected to stay for the time `ahead` (such as "30m"), or to be away by then.

    Without `ahead` it is the time that the client's job will take.
    """
    ahead_us = None if ahead is None else duration_option("availability_forecast", "ahead", ahead)
    order = highest if prefer == "staying" else lowest

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Clients, State]:
        after, clients = looked(view, state), view.candidates
        start = np.full(len(clients), view.now_us)
        length = durations_us(view, clients) if ahead_us is None else np.full(len(clients), ahead_us)
        return order(clients, chances(after, clients, start, start + length), k, rng), after

    return Selector(select)
