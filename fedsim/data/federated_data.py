"""Data divided among clients: one array of samples, and for each client the rows that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

SOME = "_some"
"""Ending of the name of a split of which only some clients are evaluated."""


@dataclass(frozen=True, slots=True)
class Task:
    """A learning problem before it is divided: samples, labels and what the data set itself says about clients."""

    name: str
    x: NDArray[np.float32]
    """[N, ...] features."""
    y: NDArray[np.int64]
    """[N] class labels from 0."""
    n_classes: int
    official_test: NDArray[np.bool_]
    """[N] whether the data set's authors put the sample into their test set; all False if they made none."""
    natural: tuple[Indices, ...] | None = None
    """The rows of each natural client, if the data set itself has clients; a partitioner is refused then."""
    model: str = "softmax"
    """The model of configurations that name none."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows by client: those of client k are `indices[offsets[k]:offsets[k + 1]]`."""

    indices: Indices
    offsets: Indices

    @staticmethod
    def of(rows: Sequence[Indices]) -> Split:
        """Pack one array of rows per client."""
        sizes = np.array([len(of_client) for of_client in rows], dtype=np.int64)
        return Split.sized(np.concatenate([np.zeros(0, np.int64), *rows]), sizes)

    @staticmethod
    def sized(indices: Indices, sizes: Indices) -> Split:
        """Pack the rows of all clients, one client after the other, of which each client has `sizes`."""
        return Split(indices, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def rows(self, client: int) -> Indices:
        """Return the rows of one client."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def of_clients(self, clients: Sequence[int]) -> Split:
        """Return the split with the rows of these clients alone; the others have none."""
        rows = [self.indices[:0]] * len(self.sizes)
        for client in clients:
            rows[client] = self.rows(client)
        return Split.of(rows)

    @property
    def sizes(self) -> Indices:
        """[K] number of rows of each client."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class FederatedData:
    """A Task divided among K clients, each with disjoint train, validation and test rows."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    n_classes: int
    train: Split
    valid: Split
    test: Split

    @property
    def n_clients(self) -> int:
        """K, number of clients."""
        return len(self.train.offsets) - 1

    def splits(self, some: Sequence[int] | None = None) -> dict[str, Split]:
        """Return the splits by name; with `some` clients also those of them alone, under `<name>_some`."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        if some is None:
            return named
        return named | {name + SOME: split.of_clients(some) for name, split in named.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the samples and labels, held once per node."""
        return self.x.nbytes + self.y.nbytes


def label_counts(data: FederatedData) -> Indices:
    """Return [K, C] the training samples of each client by label."""
    owner = np.repeat(np.arange(data.n_clients), data.train.sizes)
    cell = owner * data.n_classes + data.y[data.train.indices]
    return np.bincount(cell, minlength=data.n_clients * data.n_classes).reshape(-1, data.n_classes)
