"""Select with a minimum share of the jobs for every group of clients.

With G groups, each group is owed `floor` / G of all jobs. While a group with candidates has fewer than it is owed of
the jobs so far, this one included, the next place goes to the group that lacks most; otherwise to any candidate. The
client is drawn uniformly from its group. Ties are broken at random.

Known to the server: jobs dispatched so far; for `group = "label"` each client's most frequent label, which a real
server does not know; for other groups a column that the world knows of its clients.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.groups import groups
from fedsim.engine.selector import Clients, Ints, Selector, View, stateless


def quota(*, group: str = "client", floor: Annotated[float, Field(ge=0, le=1)] = 0.5) -> Selector:
    """Give every group at least the share `floor` of an equal part of the jobs, and the rest to any client.

    Args:
        group: "client" makes each client a group, "label" groups clients by their most frequent label, and any other
            text by a column that the world knows of its clients, such as "region".
        floor: share of an equal part of the jobs that each group is owed; 0 is uniform sampling, with 1 all groups get
            the same.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        group_of = groups(view, group)
        mixed = rng.permutation(view.candidates)
        return mixed[_places(group_of, group_of[mixed], view.dispatched, floor, k)]

    return stateless(select, needs=frozenset({"labels"}) if group == "label" else frozenset())


def _places(group_of: Ints, among: Ints, dispatched: Ints, floor: float, k: int) -> list[int]:
    """Return the positions in `among`, the groups of the candidates in random order, that get a place."""
    n_groups = int(group_of.max()) + 1
    jobs = np.bincount(group_of, dispatched, minlength=n_groups)
    left = np.bincount(among, minlength=n_groups)
    free, taken = np.ones(len(among), dtype=bool), list[int]()
    while len(taken) < k:
        lack = floor / n_groups * (jobs.sum() + 1) - jobs
        owed = float(lack[left > 0].max())
        open_to = free if owed <= 0 else free & (left[among] > 0) & (lack[among] == owed)
        place = int(np.argmax(open_to))
        taken.append(place)
        free[place] = False
        left[among[place]] -= 1
        jobs[among[place]] += 1
    return taken
