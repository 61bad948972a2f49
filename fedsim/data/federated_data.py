"""Data divided among clients: one array of samples, and for each client the rows that it holds."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.data.samples import Samples, clients_of, labels, numbers, read_dataset, rows_by_client

Indices = NDArray[np.int64]

SOME = "_some"
"""Ending of the name of a split of which only some clients are evaluated."""
UNSEEN = "unseen"
"""The split of the test samples of unseen clients."""


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
    names: tuple[str, ...] | None = None
    """The names of the natural clients, which `clients.parquet` of a run shows; None if the data set has none."""

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        client: Any = None,
        x_test: Any = None,
        y_test: Any = None,
        client_test: Any = None,
    ) -> Task:
        """Make a task of arrays or tensors: features [N, ...], labels [N] from 0, and the client of each sample.

        Args:
            client: [N] numbers or names; clients are numbered in their ascending order. None: a `[partition]` of the
                configuration divides the samples.
            x_test, y_test: an official test set. Its samples belong to `client_test` [M]; without it, they go to the
                clients in proportion to their training samples of the same label.

        Raises DataError that names the argument, and what was expected and found.
        """
        train = _samples(x, y, client, "")
        if (x_test is None) != (y_test is None) or (x_test is None and client_test is not None):
            raise DataError("x_test, y_test: expected both or neither, and client_test only with them")
        return _task(train, None if x_test is None else _samples(x_test, y_test, client_test, "_test"))

    @staticmethod
    def from_dataset(
        dataset: Any,
        client: Any = None,
        test: Any = None,
        client_test: Any = None,
        *,
        x: str | int = 0,
        y: str | int = 1,
    ) -> Task:
        """Make a task of a torch dataset, each sample of which is read once, so that random transforms act once.

        Args:
            dataset: its samples are (features, label), or dicts or longer tuples, whose columns `x` and `y` name.
            client: an array [N] of the samples' clients, by number or name, a function from a sample's number to its
                client, or the column that holds the client. Clients are numbered in ascending order. None: a
                `[partition]` of the configuration divides the samples.
            test: a dataset of the same form, the official test set.
            client_test: the clients of its samples [M], given like `client`; by default the same column, if that is
                one. Without it, samples go to the clients in proportion to their training samples of the same label.

        Raises DataError that names the sample, and what was expected and found.
        """
        train = read_dataset(dataset, client, (x, y), "dataset")
        if test is None:
            if client_test is not None:
                raise DataError("client_test: expected none without test, the dataset whose samples it is of")
            return _task(train, None)
        owner = client if client_test is None and isinstance(client, (str, int)) else client_test
        return _task(train, read_dataset(test, owner, (x, y), "test"))

    def digest(self) -> str:
        """Return 32 hexadecimal digits that depend on features, labels and clients, and on the default model."""
        first = f"{self.n_classes} {self.model} {self.natural is None}"
        return _digest(first, [self.x, self.y, self.official_test, *(self.natural or ())])


def _digest(first: str, arrays: Iterable[NDArray[Any]]) -> str:
    """Return 32 hexadecimal digits that depend on a text and on the types, shapes and values of arrays."""
    content = hashlib.sha256(first.encode())
    for values in arrays:
        content.update(f" {values.dtype} {list(values.shape)} ".encode())
        content.update(np.ascontiguousarray(values).data)
    return content.hexdigest()[:32]


def _samples(x: Any, y: Any, client: Any, ending: str) -> Samples:
    """Return the samples in arguments whose names have this ending."""
    features, of_sample = numbers(x, f"x{ending}"), labels(y, f"y{ending}")
    if not features.size:
        raise DataError(
            f"x{ending}: expected at least one sample, found an array of shape {list(features.shape)}"
        )
    if len(features) != len(of_sample):
        raise DataError(
            f"y{ending}: expected {len(features)} labels, as many as rows of x{ending}, found {len(of_sample)}"
        )
    owner = None if client is None else clients_of(client, len(features), f"client{ending}")
    return Samples(features, of_sample, owner)


def _task(train: Samples, test: Samples | None) -> Task:
    """Return the task of training samples and an official test set."""
    sets = [train] if test is None else [train, test]
    if len({each.x.shape[1:] for each in sets}) > 1:
        raise DataError(
            f"test: expected samples of shape {list(train.x.shape[1:])}, found {list(sets[1].x.shape[1:])}"
        )
    y = np.concatenate([each.y for each in sets])
    _tell_of_unused_labels(y)
    named: dict[str, Indices] | None = None
    if train.client is not None:
        owners = [each.client for each in sets if each.client is not None]
        named = rows_by_client(np.concatenate(owners))
        _check_owners(train.client, owners)
    elif test is not None and test.client is not None:
        raise DataError("client_test: expected none without the clients of the training samples")
    return Task(
        name="given",
        x=np.concatenate([each.x for each in sets]),
        y=y,
        n_classes=int(y.max(initial=0)) + 1,
        official_test=np.repeat([False, True], [len(train.y), len(y) - len(train.y)]),
        natural=None if named is None else tuple(named.values()),
        names=None if named is None else tuple(named),
    )


def _tell_of_unused_labels(y: NDArray[Any]) -> None:
    """Warn if labels below the largest have no sample: they may be numbered from 1."""
    largest, known = int(y.max(initial=0)), np.unique(y)
    if unused := largest + 1 - len(known):
        first = int(np.setdiff1d(np.arange(min(largest, len(known)) + 1), known)[0])
        warnings.warn(
            f"no sample has the label {first}, one of {unused} without samples up to {largest}, and a model has an "
            "output for each; numpy.unique(y, return_inverse=True)[1] numbers labels from 0 without gaps",
            stacklevel=4,
        )


def _check_owners(known: NDArray[Any], owners: Sequence[NDArray[Any]]) -> None:
    """Raise DataError if test samples belong to a client without training samples."""
    for client in np.unique(owners[-1])[~np.isin(np.unique(owners[-1]), known)]:
        raise DataError(
            f"test: expected samples of clients that train, found some of {client!r}, which has no others"
        )


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
        """Return the split with the rows of these clients alone; the others have none.

        Clients beyond those of the split are left out.
        """
        rows = [self.indices[:0]] * len(self.sizes)
        for client in clients:
            if client < len(rows):
                rows[client] = self.rows(client)
        return Split.of(rows)

    @property
    def sizes(self) -> Indices:
        """[K] number of rows of each client."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Unseen:
    """U clients that never train, numbered from K to K + U - 1, after the K clients that do."""

    numbers: Indices
    """[U] their numbers in the division of the task, ascending."""
    train: Split
    """The samples from which they adapt the model; the first K clients have none."""
    test: Split
    """The samples on which they are evaluated; the first K clients have none."""


@dataclass(frozen=True)
class FederatedData:
    """A Task divided among K clients, each with disjoint train, validation and test rows, and unseen clients."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    n_classes: int
    train: Split
    valid: Split
    test: Split
    unseen: Unseen | None = None
    """Further clients, which never train; see `fedsim.data.unseen_clients`."""
    names: tuple[str, ...] | None = None
    """[K] the names of the clients that train, if the task has them."""

    @property
    def n_clients(self) -> int:
        """K, number of clients that train."""
        return len(self.train.offsets) - 1

    @property
    def n_unseen(self) -> int:
        """U, number of unseen clients."""
        return 0 if self.unseen is None else len(self.unseen.numbers)

    def training_rows(self, client: int) -> Indices:
        """Return the training rows of a client, which may be an unseen one."""
        if self.unseen is not None and client >= self.n_clients:
            return self.unseen.train.rows(client)
        return self.train.rows(client)

    def splits(self, some: Sequence[int] | None = None) -> dict[str, Split]:
        """Return the splits by name; with `some` clients also those of them alone, under `<name>_some`."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        if self.unseen is not None:
            named[UNSEEN] = self.unseen.test
        if some is None:
            return named
        return named | {name + SOME: split.of_clients(some) for name, split in named.items()}

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that depend on the samples, the labels, and the rows of each client."""
        splits = [self.train, self.valid, self.test]
        splits += [self.unseen.train, self.unseen.test] if self.unseen is not None else []
        rows = (part for split in splits for part in (split.indices, split.offsets))
        return _digest(str(self.n_classes), [self.x, self.y, *rows])

    @property
    def nbytes(self) -> int:
        """Bytes of the samples and labels, held once per node."""
        return self.x.nbytes + self.y.nbytes


def label_counts(data: FederatedData, split: Split | None = None) -> Indices:
    """Return [K, C] the samples of each client of a split by label, by default those that train."""
    split = data.train if split is None else split
    clients = len(split.sizes)
    cell = np.repeat(np.arange(clients), split.sizes) * data.n_classes + data.y[split.indices]
    return np.bincount(cell, minlength=clients * data.n_classes).reshape(-1, data.n_classes)
