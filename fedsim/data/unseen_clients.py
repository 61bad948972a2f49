"""Unseen clients: a part of the clients that never trains, and on which the model is evaluated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng
from fedsim.data.federated_data import FederatedData, Split, Unseen


def with_unseen(data: FederatedData, count: int, seed: int) -> FederatedData:
    """Take `count` clients out of training, which the seed alone draws, and number them after the others.

    Both groups keep the order that they have in `data`. With a larger count, the clients of a smaller one are among
    those drawn. Raises ConfigError if no client is left to train, or if the unseen clients have no test samples.
    """
    if not count:
        return data
    if count >= data.n_clients:
        raise ConfigError(
            f"task.unseen: expected fewer than the {data.n_clients} clients of task.clients, found {count}"
        )
    drawn = np.zeros(data.n_clients, dtype=bool)
    drawn[rng(seed, "unseen").permutation(data.n_clients)[:count]] = True
    unseen = Unseen(
        np.flatnonzero(drawn), _after_the_others(data.train, drawn), _after_the_others(data.test, drawn)
    )
    if not len(unseen.test.indices):
        raise ConfigError(
            "task.unseen: unseen clients are evaluated on their test samples: expected a share of test samples in "
            "task.fractions, as in [0.8, 0.1, 0.1], or task.pool = 'official', found none"
        )
    train, valid, test = (_of(split, ~drawn) for split in (data.train, data.valid, data.test))
    names = None if data.names is None else tuple(np.array(data.names)[~drawn].tolist())
    return replace(data, train=train, valid=valid, test=test, unseen=unseen, names=names)


def _of(split: Split, chosen: NDArray[np.bool_]) -> Split:
    """Return the rows of the `chosen` clients [K], which are numbered from 0."""
    return Split.sized(split.indices[np.repeat(chosen, split.sizes)], split.sizes[chosen])


def _after_the_others(split: Split, drawn: NDArray[np.bool_]) -> Split:
    """Return the rows of the `drawn` clients [K], which come after the other clients, that have none."""
    own, others = _of(split, drawn), np.zeros(np.count_nonzero(~drawn), dtype=np.int64)
    return Split.sized(own.indices, np.concatenate([others, own.sizes]))
