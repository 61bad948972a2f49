"""Class proportions drawn from a Dirichlet distribution: the Dir(α) division of FedLF (Pan et al., 2024)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.common.errors import DataError
from fedsim.data.federated_data import Indices
from fedsim.data.label_shares import cut
from fedsim.data.partitioners import Partition


def dirichlet(
    *,
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1,
    min_samples: Annotated[int, Field(ge=1)] | None = None,
    tries: Annotated[int, Field(ge=1)] = 1000,
) -> Partition:
    """Divide each class among the clients in proportions drawn from Dirichlet(alpha), each sample used once.

    Class after class, clients that hold their equal share (samples / clients) or more already get nothing. DataError
    when the samples cannot suffice, or after too many draws.

    Args:
        alpha: α, the concentration of the Dirichlet distribution: the smaller, the more skewed; a large one approaches
            `iid`.
        min_samples: fewest samples of a client; the whole draw is repeated until every client holds so many. None: as
            many as there are classes.
        tries: greatest number of draws, after which DataError is raised.
    """

    def partition(y: Indices, n_classes: int, n_clients: int, rng: np.random.Generator) -> list[Indices]:
        least = n_classes if min_samples is None else min_samples
        _check_enough(len(y), n_clients, least)
        members = [rng.permutation(np.flatnonzero(y == label)) for label in range(n_classes)]
        counts = _counts([len(m) for m in members], n_clients, alpha, least, tries, rng)
        pieces = map(cut, members, counts)
        return [np.concatenate(of_client) for of_client in zip(*pieces, strict=True)]

    return partition


def _check_enough(samples: int, n_clients: int, least: int) -> None:
    if samples < n_clients * least:
        raise DataError(
            f"{samples} samples cannot give {n_clients} clients min_samples = {least} each; "
            f"use at most {samples // least} clients or a smaller min_samples"
        )


def _counts(
    class_sizes: list[int], n_clients: int, alpha: float, least: int, tries: int, rng: np.random.Generator
) -> Indices:
    """Draw the [classes, clients] table of sample counts until each client holds `least`."""
    best = 0
    for _ in range(tries):
        counts = _draw(class_sizes, n_clients, alpha, rng)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= least:
            return counts
        best = max(best, smallest)
    raise DataError(
        f"in {tries} draws from Dirichlet({alpha:g}) of {sum(class_sizes)} samples for {n_clients} clients "
        f"the smallest client never held min_samples = {least} (at best {best}); "
        "lower min_samples, raise alpha or use fewer clients"
    )


def _draw(class_sizes: list[int], n_clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Draw one table. Shares are drawn over the open clients alone.

    A Dirichlet vector with some entries removed and the rest renormalised is a Dirichlet vector of the rest,
    so this has the distribution of the published rule, without its division by zero when all open shares
    underflow.
    """
    counts = np.zeros((len(class_sizes), n_clients), dtype=np.int64)
    fair_share = sum(class_sizes) / n_clients
    for label, size in enumerate(class_sizes):
        open_clients = np.flatnonzero(counts.sum(axis=0) < fair_share)
        if size and len(open_clients):
            shares = rng.dirichlet(np.full(len(open_clients), alpha))
            cuts = np.floor(np.cumsum(shares)[:-1] * size).astype(np.int64)
            counts[label, open_clients] = np.diff(np.clip(cuts, 0, size), prepend=0, append=size)
    return counts
