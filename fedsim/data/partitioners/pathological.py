"""A fixed number of classes per client: the Pat-c division of FedMDFG and FedLF (Pan et al., 2023, 2024)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import DataError
from fedsim.data.federated_data import Indices
from fedsim.data.label_shares import apportion, cut
from fedsim.data.partitioners import Partition


def pathological(
    *,
    classes: Annotated[int, Field(ge=1)] = 2,
    assignment: Literal["random", "blocks"] = "random",
    unbalanced: bool = False,
) -> Partition:
    """Give each client samples of exactly `classes` classes, each sample used once.

    Every class goes to n_clients * classes / (number of classes) clients, rounded up or down. DataError when clients *
    classes places cannot hold every class, a client asks for more classes than there are, or a class has fewer samples
    than clients that hold it.

    Args:
        classes: number of classes of each client.
        assignment: "random" draws which clients hold which class, and shuffles the class first. "blocks" is the rule of
            the FedLF authors' code: class after class goes to the first clients with a free place, in consecutive
            slices, the remainder in the last one; where that would leave a client short, the client comes before
            earlier ones.
        unbalanced: draw the proportions of the slices of a class from Dirichlet(1), at least one sample each; otherwise
            the slices are equal, up to the remainder.
    """

    def partition(y: Indices, n_classes: int, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        members = [np.flatnonzero(y == label) for label in np.unique(y)]
        _check(len(members), n_clients, classes)
        holders = _holders(len(members), n_clients, classes, rng if assignment == "random" else None)
        parts: list[list[Indices]] = [[] for _ in range(n_clients)]
        for rows, clients in zip(members, holders, strict=True):
            if len(rows) < len(clients):
                raise DataError(
                    f"class {y[rows[0]]} has {len(rows)} samples for the {len(clients)} clients that hold it; use "
                    "fewer clients or fewer classes per client"
                )
            ordered = rng.permutation(rows) if assignment == "random" else rows
            sizes = _slice_sizes(len(rows), len(clients), assignment, rng if unbalanced else None)
            for client, piece in zip(clients, cut(ordered, sizes), strict=True):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]

    return partition


def _holders(n_classes: int, n_clients: int, classes: int, rng: np.random.Generator | None) -> list[Indices]:
    """Choose the clients of each class; with a generator in random order, else the lowest numbers first.

    A client whose free places equal the classes still to come must take every one of them. As the numbers of
    clients per class differ by at most one, serving such clients first always succeeds (Gale-Ryser).
    """
    ends = np.arange(n_classes + 1) * n_clients * classes // n_classes
    quotas = np.diff(ends)
    order = np.arange(n_classes) if rng is None else rng.permutation(n_classes)
    free = np.full(n_clients, classes)
    holders: list[Indices] = [np.zeros(0, np.int64)] * n_classes
    for done, label in enumerate(order):
        rank = np.arange(n_clients) if rng is None else rng.permutation(n_clients)
        urgency = np.where(free == n_classes - done, 0, np.where(free > 0, 1, 2))
        chosen = np.lexsort((rank, urgency))[: quotas[label]]
        free[chosen] -= 1
        holders[label] = np.sort(chosen)
    return holders


def _slice_sizes(n: int, pieces: int, assignment: str, rng: np.random.Generator | None) -> Indices:
    if rng is not None:
        return apportion(n, rng.dirichlet(np.ones(pieces)))
    sizes = np.full(pieces, n // pieces, dtype=np.int64)
    if assignment == "blocks":
        sizes[-1] += n % pieces
    else:
        sizes[: n % pieces] += 1
    return sizes


def _check(present: int, n_clients: int, classes: int) -> None:
    if classes > present:
        raise DataError(f"cannot give {classes} classes to each client: the samples have {present} classes")
    if n_clients * classes < present:
        raise DataError(
            f"{n_clients} clients with {classes} classes each hold {n_clients * classes} of the {present} "
            f"classes; use at least {-(-present // classes)} clients or "
            f"{-(-present // n_clients)} classes per client"
        )
