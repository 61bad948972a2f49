"""Read tables of features whose rows belong to clients, from an .npz file with the arrays X, y and client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.data.dataset_files import existing
from fedsim.data.federated_data import Indices, Task
from fedsim.data.label_shares import cut

_NAMES = ("X", "y", "client")


def table(name: str, data_dir: Path | None, file: str, features: int, labels: tuple[int, int]) -> Task:
    """Read X [N, features], y [N] with either of two labels, and client [N] numbered from 0; there is no test set.

    Labels become 0 and 1. Raises DataError that names a missing file, or what is wrong with a damaged one.
    """
    path = existing(name, data_dir, file)[0]
    x, y, client = _arrays(path)
    _check(path, (x, y, client), features, labels)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(x).all(axis=1))):
        raise DataError(f"{path}: expected finite features, found others in row {bad[0]}")
    return Task(
        name=name,
        x=x,
        y=(y == labels[1]).astype(np.int64),
        n_classes=2,
        official_test=np.zeros(len(y), dtype=np.bool_),
        natural=_by_client(path, client),
    )


def _check(path: Path, arrays: Sequence[NDArray[Any]], features: int, labels: tuple[int, int]) -> None:
    x, y, client = arrays
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: expected numbers for X, found {x.dtype}")
    if y.ndim != 1 or x.ndim != 2 or x.shape != (len(y), features) or client.shape != y.shape:
        raise DataError(
            f"{path}: expected X [N, {features}], y [N] and client [N], found {x.shape}, {y.shape} and {client.shape}"
        )
    if len(others := y[~np.isin(y, labels)]):
        raise DataError(f"{path}: expected labels {labels[0]} and {labels[1]}, found {others[0]}")


def _arrays(path: Path) -> list[NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _NAMES if name in archive}
    except Exception as error:  # NumPy, zipfile and zlib raise many types for damaged archives
        raise DataError(f"{path}: expected an .npz file of arrays: {error}") from error
    if lacking := [name for name in _NAMES if name not in arrays]:
        raise DataError(f"{path}: expected arrays {', '.join(_NAMES)}, found no {', '.join(lacking)}")
    return list(arrays.values())


def _by_client(path: Path, client: NDArray[Any]) -> tuple[Indices, ...]:
    """Return the rows of each client in their order in the file."""
    valid = np.zeros(len(client), dtype=bool)
    if client.dtype.kind in "fiu":
        with np.errstate(invalid="ignore"):  # without gaps, N rows have no number above N - 1
            valid = (client >= 0) & (client < len(client)) & (client % 1 == 0)
    if len(wrong := np.flatnonzero(~valid)):
        raise DataError(
            f"{path}: expected clients numbered from 0, found {client[wrong[0]]} in row {wrong[0]} of {len(client)}"
        )
    numbers = client.astype(np.int64)
    counts = np.bincount(numbers)
    if not counts.all():
        raise DataError(
            f"{path}: expected rows of clients 0 to {len(counts) - 1}, found none of client {counts.argmin()}"
        )
    return tuple(cut(np.argsort(numbers, kind="stable"), counts))
