"""Divide a task among clients, and each client's samples into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.common.rng import Streams, rng
from fedsim.data.federated_data import FederatedData, Indices, Split, Task
from fedsim.data.validation import checked_rows

Fractions = tuple[float, float, float]
Pool = Literal["all", "train", "official"]


@dataclass(frozen=True, slots=True)
class Division:
    """How each client's samples become training, validation and test samples."""

    fractions: Fractions = (0.8, 0.1, 0.1)
    """Of training, validation and test, which sum to 1; a positive fraction gets at least one sample of each client."""
    pool: Pool = "all"
    """`all` merges the official training and test sets, `train` leaves the official test set out, `official` divides
    the training set alone and tests on the official test set: a natural client on its own part, others on samples of
    the labels that they train on, in proportion. The third fraction must be 0 then."""
    shuffle: bool = True
    """Whether each client's rows are shuffled first; else they are cut in the order in which the client got them."""


def federate(
    task: Task,
    *,
    n_clients: int,
    partitioner: str | None = None,
    options: Mapping[str, Any] | None = None,
    division: Division = Division(),
    seed: int,
) -> FederatedData:
    """Divide `task` among `n_clients`, then each client's rows into training, validation and test by `division`.

    partitioner, options: a plug-in of `fedsim.data.partitioners`; None for a task with natural clients, which must be
    exactly `n_clients`. Raises ConfigError for a wrong argument, DataError if the samples do not suffice.
    """
    pool = division.pool
    _check_arguments(task, n_clients, division)
    rows = _natural_rows(task, n_clients, partitioner) or _partitioned_rows(
        task, n_clients, partitioner, options or {}, pool, seed
    )
    of_clients = rows
    if task.natural is not None and pool != "all":
        rows = [r[~task.official_test[r]] for r in of_clients]
    train, valid, test = _divided(Split.of(rows), division, seed)
    if pool == "official":
        test = _official_test(task, of_clients, seed)
    return FederatedData(task.x, task.y, task.n_classes, train, valid, test, names=task.names)


def split_sizes(n: int, fractions: Fractions) -> tuple[int, int, int]:
    """Return how many of n samples go to training, validation and test.

    Validation and test are rounded to the nearest number, but at least 1 if the fraction is positive. Training takes
    the rest, and at least 1 at the cost of the larger of the two. The caller ensures that n is at least the number of
    positive fractions.
    """
    valid, test = (max(1, round(f * n)) if f > 0 else 0 for f in fractions[1:])
    while n - valid - test < 1:
        valid, test = (valid - 1, test) if valid > test else (valid, test - 1)
    return n - valid - test, valid, test


def _check_arguments(task: Task, n_clients: int, division: Division) -> None:
    fractions = division.fractions
    if n_clients < 1:
        raise ConfigError(f"expected at least 1 client, found {n_clients}")
    if task.natural is None and n_clients > len(task.y):
        raise ConfigError(
            f"task.clients: expected at most {len(task.y):,}, the number of samples of task {task.name!r}, found "
            f"{n_clients:,}"
        )
    sums = len(fractions) == 3 and abs(sum(fractions) - 1) <= 1e-6  # not if one of them is NaN
    if not sums or min(fractions) < 0 or fractions[0] <= 0:
        raise ConfigError(
            "fractions: expected three of them (training, validation, test), none negative, the first positive, that "
            f"sum to 1; found {tuple(fractions)}"
        )
    _check_pool(task, fractions, division.pool)


def _check_pool(task: Task, fractions: Fractions, pool: str) -> None:
    if pool not in get_args(Pool):
        raise ConfigError(f"expected pool {' or '.join(map(repr, get_args(Pool)))}, found {pool!r}")
    if pool != "all" and not task.official_test.any():
        raise ConfigError(f"task {task.name!r} has no official test set: pool must be 'all', not {pool!r}")
    if pool == "all" and task.natural is not None and task.official_test.any() and not _owned_test(task):
        raise ConfigError(
            f"task {task.name!r} has clients of its own and a test set without clients: expected task.pool 'official', "
            "which shares it out by label, or 'train', found 'all'"
        )
    if pool == "official" and fractions[2] > 0:
        raise ConfigError(
            "with pool 'official' clients are tested on the official test set: expected a test fraction of 0, as in "
            f"[0.9, 0.1, 0], found {fractions[2]:g}"
        )


def _owned_test(task: Task) -> bool:
    """Return whether natural clients hold samples of the official test set."""
    return any(task.official_test[rows].any() for rows in task.natural or ())


def _natural_rows(task: Task, n_clients: int, partitioner: str | None) -> list[Indices] | None:
    if task.natural is None:
        return None
    if partitioner is not None:
        raise ConfigError(
            f"task {task.name!r} has clients of its own: remove the partitioner {partitioner!r}"
        )
    if len(task.natural) != n_clients:
        raise ConfigError(f"task {task.name!r} has {len(task.natural)} clients of its own, not {n_clients}")
    return list(task.natural)


def _partitioned_rows(
    task: Task, n_clients: int, partitioner: str | None, options: Mapping[str, Any], pool: str, seed: int
) -> list[Indices]:
    if partitioner is None:
        known = ", ".join(plugins.names("partitioner"))
        raise ConfigError(
            f'task {task.name!r} has no clients of its own: give [partition] with a name, such as name = "iid" '
            f"(known: {known})"
        )
    partition = plugins.build("partitioner", partitioner, options)
    pooled = np.arange(len(task.y)) if pool == "all" else np.flatnonzero(~task.official_test)
    parts = partition(task.y[pooled], task.n_classes, n_clients, rng(seed, "partition"))
    positions = checked_rows(parts, f"partitioner {partitioner!r}", "positions", len(pooled))
    if len(positions) != n_clients:
        raise DataError(
            f"partitioner {partitioner!r} returned {len(positions)} clients, expected {n_clients}"
        )
    return [pooled[of_client] for of_client in positions]


def _official_test(task: Task, of_clients: list[Indices], seed: int) -> Split:
    """Return each client's part of the official test set.

    A natural client has its own part, if the test samples have clients. Otherwise the samples of a label, in random
    order, go to the clients in proportion to their samples of that label. Raises DataError for a client that gets none.
    """
    if task.natural is not None and _owned_test(task):
        parts = [rows[task.official_test[rows]] for rows in of_clients]
    else:
        pieces = [_test_pieces(task, of_clients, label, seed) for label in range(task.n_classes)]
        parts = [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]
    split = Split.of(parts)
    if not split.sizes.all():
        raise DataError(
            f"client {split.sizes.argmin()} gets no sample of the official test set of task {task.name!r}: use fewer "
            "clients, or pool 'all' or 'train'"
        )
    return split


def _test_pieces(task: Task, of_clients: list[Indices], label: int, seed: int) -> list[Indices]:
    """Cut the official test samples of a label into pieces in proportion to the clients' samples of that label."""
    test = rng(seed, "official test", label).permutation(
        np.flatnonzero(task.official_test & (task.y == label))
    )
    counts = np.cumsum([np.count_nonzero(task.y[rows] == label) for rows in of_clients])
    ends = (counts * len(test) + counts[-1] // 2) // max(1, counts[-1])
    return np.split(test, ends)[:-1]


def _divided(rows: Split, division: Division, seed: int) -> tuple[Split, Split, Split]:
    """Shuffle the rows of each client in place, and divide them into training, validation and test."""
    fractions = division.fractions
    sizes, n_parts = rows.sizes, sum(fraction > 0 for fraction in fractions)
    if len(too_small := np.flatnonzero(sizes < n_parts)):
        raise DataError(
            f"client {too_small[0]} has {sizes[too_small[0]]} samples: too few for {n_parts} non-empty parts with "
            f"fractions {tuple(fractions)}; use fewer parts, or where [partition] divides the samples fewer clients or "
            "a larger minimum"
        )
    shuffled, streams = rows.indices, Streams(seed)
    for client, (start, end) in enumerate(pairwise(rows.offsets.tolist() if division.shuffle else [])):
        streams.at("split", client).shuffle(shuffled[start:end])
    different, which = np.unique(sizes, return_inverse=True)
    parts = np.array([split_sizes(n, fractions) for n in different.tolist()], dtype=np.int64)[which]
    kind = np.repeat(np.tile(np.arange(3), len(sizes)), parts.ravel())
    train, valid, test = (Split.sized(shuffled[kind == i], parts[:, i]) for i in range(3))
    return train, valid, test
