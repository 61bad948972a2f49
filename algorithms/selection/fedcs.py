"""FedCS: Nishio and Yonetani 2019, "Client Selection for Federated Learning with Heterogeneous Resources", Algorithm 3.

Clients are added greedily, always the one that lengthens the round least, while the round Θ stays within the deadline.
In FedCS uploads follow one another on a shared channel: a client with expected time t, of which the share s is its
upload, makes Θ' = max(Θ, (1 - s) t) + s t. Here every client has its own link by default: s = 0, and Θ' is the largest
t. The time to choose clients and to send the model out is not modelled.

Known to the server: how long a job of each candidate takes at its speeds now (FedCS asks the clients for it).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import lowest, share_of_ties
from fedsim.algorithms.selection.parts.durations import duration_option
from fedsim.common.errors import ConfigError
from fedsim.engine.selector import Choice, Floats, Need, Selector, View, stateless


def fedcs(
    *, deadline: str | float | None = None, upload_share: Annotated[float, Field(ge=0, le=1)] = 0.0
) -> Selector:
    """Choose as many clients as can report before the deadline, those that cost least time first.

    No client is chosen while none can meet the deadline.

    Args:
        deadline: time in which all chosen clients have to report, such as "10m"; None: the deadline of the pacing.
        upload_share: s, the share of a job's time that the upload takes if uploads follow one another on a shared
            channel, as in FedCS; 0: every client has its own link.
    """
    own_us = None if deadline is None else duration_option("fedcs", "deadline", deadline)

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        limit_us = own_us or view.deadline_us
        if limit_us is None:
            raise ConfigError(
                "selector 'fedcs' needs a deadline: give the pacing one, or set the option 'deadline' of [selection]"
            )
        by_time = lowest(view.candidates, view.expected_us(view.candidates), len(view.candidates), rng)
        times = view.expected_us(by_time).astype(np.float64)
        fitting = np.array(_fitting(times, upload_share, k, limit_us), dtype=np.int64)
        return Choice(by_time[fitting], share_of_ties(times, fitting))

    needs = frozenset[Need]() if own_us else frozenset[Need]({"deadline"})
    return stateless(select, needs=needs, draws=False)


def _fitting(times: Floats, upload_share: float, k: int, limit: float) -> list[int]:
    """Return the positions that fit, from ascending `times`; of equal costs the first."""
    taken, round_us = list[int](), 0.0
    while len(taken) < k:
        longer = np.maximum(round_us, (1 - upload_share) * times) + upload_share * times
        longer[taken] = np.inf
        best = int(np.argmin(longer))
        if longer[best] > limit:
            break
        round_us = float(longer[best])
        taken.append(best)
    return taken
