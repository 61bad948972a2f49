"""Turn a user's data set into arrays: features, labels and the client of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import as_numbers
from fedsim.common.errors import DataError, described

Array = NDArray[Any]
Client = Any
"""The clients of samples: an array [N], a function of a sample's number, or the column that holds them."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples as arrays."""

    x: NDArray[np.float32]
    """[N, ...] features."""
    y: Array
    """[N] labels."""
    client: Array | None = None
    """[N] a number or a name of each sample's client."""


def read_dataset(dataset: Any, client: Client, columns: tuple[Any, Any], where: str) -> Samples:
    """Read each sample of a map-style torch dataset once.

    Args:
        client: None for samples without clients.
        columns: the keys of features and labels in a sample.
        where: the name of the data set in messages.

    Raises DataError that names the sample and what is wrong with it.
    """
    n = _length(dataset, where)
    of_columns = isinstance(client, (str, int)) and not isinstance(client, bool)
    keys = (*columns, client) if of_columns else columns
    rows = [_row(dataset[i], keys, f"{where}, sample {i}") for i in range(n)]
    x = _stacked([numbers(row[0], f"{where}, sample {i}: features") for i, row in enumerate(rows)], where)
    y = labels([row[1] for row in rows], f"{where}: labels")
    owners = [row[2] for row in rows] if of_columns else _owners(client, n)
    return Samples(x, y, None if owners is None else clients_of(owners, n, f"{where}: client"))


def _stacked(features: Sequence[Array], where: str) -> NDArray[np.float32]:
    """Return the features as one array of float32. Raises DataError for samples of several shapes."""
    other = next((i for i, array in enumerate(features) if array.shape != features[0].shape), None)
    if other is not None:
        raise DataError(
            f"{where}: expected samples of one shape, found {list(features[0].shape)} in sample 0 and "
            f"{list(features[other].shape)} in sample {other}"
        )
    return np.stack(features).astype(np.float32, copy=False)


def numbers(value: Any, where: str) -> NDArray[np.float32]:
    """Return features as float32. Raises DataError for anything but finite numbers."""
    array = (
        _of_columns(value, where) if hasattr(value, "iloc") and hasattr(value, "columns") else _array(value)
    )
    image = type(value).__module__.startswith("PIL")
    if image or array.dtype.kind not in "fiub":
        found = described(value) if image or not array.ndim else f"{array.dtype} of shape {list(array.shape)}"
        to_tensor = "; the dataset's transform=torchvision.transforms.ToTensor() makes them of images"
        raise DataError(f"{where}: expected numbers, found {found}{to_tensor if image else ''}")
    result = array.astype(np.float32, copy=False)
    if not np.isfinite(result).all():
        place = np.argwhere(~np.isfinite(np.atleast_1d(result)))[0].tolist()
        raise DataError(f"{where}: expected finite numbers, found {result[tuple(place)]} at {place}")
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2  # smaller ones fit, as pixels do
    if wide and array.size and max(int(array.max()), -int(array.min())) > 2**24:
        lost = array[result.astype(np.float64) != array]
        if lost.size:
            raise DataError(
                f"{where}: expected whole numbers that float32 holds, such as those up to {2**24:,}, found {lost[0]}"
            )
    return result


def _of_columns(frame: Any, where: str) -> Array:
    """Return the columns of a pandas frame side by side. Raises DataError for one that holds no numbers."""
    columns = [np.asarray(frame.iloc[:, i]) for i in range(frame.shape[1])]
    for name, column in zip(frame.columns, columns, strict=True):
        if column.dtype.kind not in "fiub":
            raise DataError(
                f"{where}, column {name!r}: expected numbers, found {column.dtype}; pandas.get_dummies makes columns "
                "of numbers of names"
            )
    return np.column_stack(columns) if columns else np.zeros(frame.shape, dtype=np.float32)


def labels(value: Any, where: str) -> Array:
    """Return labels as whole numbers from 0. Raises DataError for others."""
    array = np.array([_array(each) for each in value]) if isinstance(value, list) else _array(value)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        found = f"{array.dtype} of shape {list(array.shape)}"
        raise DataError(
            f"{where}: expected one whole number from 0 on for each sample, found {found}{_as_labels(array)}"
        )
    if len(wrong := np.flatnonzero(array < 0)):
        raise DataError(
            f"{where}: expected whole numbers from 0 on, found {array[wrong[0]]} for sample {wrong[0]}, one of "
            f"{len(wrong)} such labels"
        )
    return array.astype(np.int64)


def _as_labels(array: Array) -> str:
    """Return what makes whole numbers of labels of another form."""
    if array.ndim == 2 and array.shape[1] == 1:
        return "; y.reshape(-1) makes them"
    if array.ndim == 2:
        return "; of one column for each class, y.argmax(1) makes them"
    if array.dtype.kind in "OUS":
        return "; numpy.unique(y, return_inverse=True)[1] numbers names from 0"
    if array.ndim != 1:
        return ""
    if array.dtype.kind == "f" and len(unknown := np.flatnonzero(np.isnan(array))):
        return f", and NaN for sample {unknown[0]}, one of {len(unknown)} such samples: leave them out"
    return (
        "; astype(int), or long() of a tensor, makes them of numbers that name classes: tasks are of classification, "
        "not of regression"
    )


def clients_of(value: Any, n: int, where: str) -> Array:
    """Return the client of each of n samples: whole numbers or texts. Raises DataError for anything else."""
    array = np.array([_array(each)[()] for each in value]) if isinstance(value, list) else _array(value)
    if array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat):  # as in pandas
        array = array.astype(np.str_)
    if array.shape != (n,) or array.dtype.kind not in "iuU":
        others = [
            i for i, each in enumerate(array.flat) if array.dtype.kind == "O" and not isinstance(each, str)
        ]
        first = f", and {described(array.flat[others[0]])} for sample {others[0]}" if others else ""
        whole = "; astype(int) makes whole numbers of these" if array.dtype.kind == "f" else ""
        raise DataError(
            f"{where}: expected {n} whole numbers or texts, one for each sample, found {array.dtype} of shape "
            f"{list(array.shape)}{first}{whole}"
        )
    numbers = as_numbers(array.tolist()) if array.dtype.kind == "U" else None
    return array if numbers is None else np.array(numbers, dtype=np.int64)


def rows_by_client(client: Array) -> dict[str, NDArray[np.int64]]:
    """Return the samples of each client by its name, clients in ascending order of their numbers or names."""
    names, number, counts = np.unique(client, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(counts)[:-1])
    return dict(zip(map(str, names.tolist()), rows, strict=True))


def _owners(client: Client, n: int) -> Any:
    return [client(i) for i in range(n)] if isinstance(client, Callable) else client  # type: ignore[arg-type]


def _length(dataset: Any, where: str) -> int:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{where}: expected a torch dataset with a length and numbered samples, found {described(dataset)}"
        )
    if not (n := len(dataset)):
        raise DataError(f"{where}: expected at least one sample, found none")
    return n


def _row(sample: Any, keys: Sequence[Any], where: str) -> list[Any]:
    """Return the parts of a sample at `keys`."""
    if not isinstance(sample, (tuple, list, Mapping)):
        raise DataError(
            f"{where}: expected (features, label) or a dict of columns, found {described(sample)}"
        )
    try:
        return [sample[key] for key in keys]
    except (KeyError, IndexError, TypeError):
        known = list(sample) if isinstance(sample, Mapping) else list(range(len(sample)))
        missing = next(key for key in keys if key not in known)
        raise DataError(
            f"{where}: expected the columns {', '.join(map(repr, keys))}, found {', '.join(map(repr, known))} and no "
            f"{missing!r}; name the columns with x=, y= and client="
        ) from None


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # a tensor, also on a GPU
        value = value.detach().cpu()
    return np.asarray(value)
