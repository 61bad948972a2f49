"""Select clients by a forecast of their availability, from the hours of the day at which they were online before.

The forecast is the chance that the client is online between now and `ahead` later (`parts/hours_of_day.py`). `staying`
puts the highest chance first, so that fewer jobs are lost. `leaving` puts the lowest first, as REFL does, so that
clients that are rarely online get their turn. Ties, and so all clients at first, are broken at random.

Known to the server: who was online when it chose before, and for `ahead = None` the clients' speeds at this instant.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.selection.parts.draws import choose_highest, choose_lowest
from fedsim.algorithms.selection.parts.durations import duration_option, durations_us
from fedsim.algorithms.selection.parts.hours_of_day import chances, looked
from fedsim.engine.selector import Choice, Selector, State, View


def availability_forecast(
    *, prefer: Literal["staying", "leaving"] = "staying", ahead: str | float | None = None
) -> Selector:
    """Choose the clients that are most likely to stay online for the time `ahead`, or to leave.

    Args:
        prefer: "staying" puts the highest chance to be online first, so that fewer jobs are lost; "leaving" puts the
            lowest first, as REFL does, so that clients that are rarely online get their turn.
        ahead: time from now that the forecast covers, such as "30m"; None: as long as the client's last job took, or
            would take now if none has arrived.
    """
    ahead_us = None if ahead is None else duration_option("availability_forecast", "ahead", ahead)
    order = choose_highest if prefer == "staying" else choose_lowest

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        after, clients = looked(view, state), view.candidates
        start = np.full(len(clients), view.now_us)
        length = durations_us(view, clients) if ahead_us is None else np.full(len(clients), ahead_us)
        return order(clients, chances(after, clients, start, start + length), k, rng), after

    return Selector(select, draws=False)
