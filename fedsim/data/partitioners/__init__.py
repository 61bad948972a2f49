"""Ways to divide labelled samples among clients, by name: one module each.

    from fedsim import plugins
    from fedsim.common.rng import rng
    partition = plugins.build("partitioner", "dirichlet", {"alpha": 0.1})
    positions = partition(task.y, 10, 20, rng(0, "partition"))   # 20 arrays of positions into task.y

A factory returns `partition(y, n_classes, n_clients, rng)`: one array of positions into `y` per client,
disjoint and none empty. It either ends or raises DataError that says with numbers why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsim.data.federated_data import Indices

Partition = Callable[[Indices, int, int, np.random.Generator], list[Indices]]
