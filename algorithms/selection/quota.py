"""A floor under everybody's participation: no group falls behind its share of the jobs for long.

With G groups of clients, each is owed `floor` / G of all jobs. As long as a group with candidates has fewer than it is
owed of the jobs so far, this one included, the next place goes to the group that lacks most; else to any candidate. In
a group the client is drawn uniformly, or, where clients are the groups, is the only one. Ties are at random.

Known to the server: jobs given so far; for `group = "label"` the label that each client has most of, which a real
server does not know; else what the world says about its clients.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.groups import groups
from fedsim.engine.selector import Clients, Ints, Selector, View, stateless


def quota(*, group: str = "client", floor: Annotated[float, Field(ge=0, le=1)] = 0.5) -> Selector:
    """Give every group at least the share `floor` of an equal part of the jobs, and the rest to anybody.

    `group` is "client", "label" (the most frequent one) or a column that the world knows of its clients, such as
    "region". With `floor` 0 this is uniform sampling, with 1 all groups get the same.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        group_of = groups(view, group)
        mixed = rng.permutation(view.candidates)
        return mixed[_places(group_of, group_of[mixed], view.dispatched, floor, k)]

    return stateless(select, needs=frozenset({"labels"}) if group == "label" else frozenset())


def _places(group_of: Ints, among: Ints, dispatched: Ints, floor: float, k: int) -> list[int]:
    """Return the positions in `among`, the groups of the candidates in random order, that get a place."""
    n_groups = int(group_of.max()) + 1
    given = np.bincount(group_of, dispatched, minlength=n_groups)
    left = np.bincount(among, minlength=n_groups)
    free, taken = np.ones(len(among), dtype=bool), list[int]()
    while len(taken) < k:
        lack = floor / n_groups * (given.sum() + 1) - given
        owed = float(lack[left > 0].max())
        open_to = free if owed <= 0 else free & (left[among] > 0) & (lack[among] == owed)
        place = int(np.argmax(open_to))
        taken.append(place)
        free[place] = False
        left[among[place]] -= 1
        given[among[place]] += 1
    return taken
