"""Check the fields of a user's task before it is divided among clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsim.common.errors import DataError, shown
from fedsim.data.federated_data import Indices, Task

Array = np.ndarray[Any, Any]


def checked(task: Task, name: str) -> Task:
    """Return the task with its labels and rows as int64. Raises DataError that names the field and the sample."""
    where = f"task {name!r}"
    if not isinstance(task.n_classes, (int, np.integer)) or task.n_classes < 1:
        raise DataError(f"{where}: n_classes: expected a whole number from 1 on, found {task.n_classes!r}")
    if not isinstance(task.model, str):
        raise DataError(f"{where}: model: expected the name of a model, found {task.model!r}")
    x, y, official = (_array(getattr(task, name), f"{where}: {name}") for name in ("x", "y", "official_test"))
    _check_shapes(where, x, y, official)
    _check_values(where, x, y, task.n_classes)
    natural = (
        None if task.natural is None else checked_rows(task.natural, f"{where}: natural", "rows", len(x))
    )
    _check_names(where, task.names, natural)
    x, y = np.ascontiguousarray(x), y.astype(np.int64, copy=False)
    return replace(task, x=x, y=y, n_classes=int(task.n_classes), natural=natural)


def _check_names(where: str, names: Sequence[str] | None, natural: Sequence[Indices] | None) -> None:
    if names is None:
        return
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise DataError(f"{where}: names: expected different texts, found {shown(names)}")
    if natural is None or len(names) != len(natural):
        found = "none" if natural is None else str(len(natural))
        raise DataError(
            f"{where}: names: expected one for each client of `natural`, found {len(names)} for {found}"
        )


def _check_shapes(where: str, x: Array, y: Array, official: Array) -> None:
    if x.dtype != np.float32 or x.ndim < 2:
        of_floats = x.dtype == np.float32
        advice = (
            "x.reshape(len(x), -1) makes it" if of_floats else "x.astype(np.float32) turns numbers into it"
        )
        raise DataError(
            f"{where}: x: expected float32 [N, ...], found {x.dtype} of shape {list(x.shape)}; {advice}"
        )
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise DataError(
            f"{where}: y: expected {len(x)} labels, whole numbers, one for each row of x, found {y.dtype} of shape "
            f"{list(y.shape)}"
        )
    if official.shape != (len(x),) or official.dtype != np.bool_:
        raise DataError(
            f"{where}: official_test: expected {len(x)} truth values, found {official.dtype} of shape "
            f"{list(official.shape)}; np.zeros({len(x)}, dtype=bool) says that there is no official test set"
        )


def checked_rows(rows: Any, where: str, what: str, n: int) -> tuple[Indices, ...]:
    """Return the rows of each client as int64. Raises DataError unless each of n samples has one client at most.

    `where` names the rows in messages, and `what` says what they are.
    """
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"{where}: expected the {what} of each client, one after the other, found a {type(rows).__name__}"
        )
    of_clients = tuple(_whole_numbers(own, f"{where}, client {i}", what) for i, own in enumerate(rows))
    every = np.concatenate([np.zeros(0, dtype=np.int64), *of_clients])
    client = np.repeat(np.arange(len(of_clients)), [len(own) for own in of_clients])
    if len(outside := np.flatnonzero((every < 0) | (every >= n))):
        at = outside[0]
        raise DataError(f"{where}, client {client[at]}: expected {what} from 0 to {n - 1}, found {every[at]}")
    if len(repeated := np.flatnonzero(np.bincount(every) > 1)):
        first, second = client[every == repeated[0]][:2]
        other = "it holds twice" if first == second else f"client {first} holds"
        raise DataError(
            f"{where}, client {second}: expected samples of its own, found sample {repeated[0]}, which {other}"
        )
    return of_clients


def _whole_numbers(values: Any, where: str, what: str) -> Indices:
    """Return numbers of samples [n] as int64. Raises DataError for truth values, fractions and words."""
    try:
        numbers = np.asarray(values)
    except ValueError:  # lists of different lengths
        numbers = np.array(None)
    if numbers.size and numbers.dtype.kind not in "iu":
        known = "; np.flatnonzero(...) makes them of truth values" if numbers.dtype.kind == "b" else ""
        raise DataError(f"{where}: expected {what}, whole numbers from 0 on, found {numbers.dtype}{known}")
    if numbers.ndim != 1:
        found = "one number" if numbers.ndim == 0 else f"an array of shape {list(numbers.shape)}"
        of_samples = "; of the client of each sample, [np.flatnonzero(client == k) for k in ...] makes them"
        raise DataError(
            f"{where}: expected a list of {what}, found {found}{of_samples if not numbers.ndim else ''}"
        )
    return numbers.astype(np.int64)


def _array(value: Any, field: str) -> Array:
    if not isinstance(value, np.ndarray):
        raise DataError(
            f"{field}: expected a NumPy array, found {type(value).__name__}; np.asarray(...) makes one"
        )
    return value


def _check_values(where: str, x: Array, y: Array, n_classes: int) -> None:
    if len(wrong := np.flatnonzero((y < 0) | (y >= n_classes))):
        raise DataError(
            f"{where}: y: expected labels from 0 to n_classes - 1 = {n_classes - 1}, found {y[wrong[0]]} at sample "
            f"{wrong[0]}, one of {len(wrong)} such labels"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.dot(x.reshape(-1), x.reshape(-1))
    if np.isfinite(squares):
        return  # otherwise the squares may be too large alone
    if len(bad := np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))):
        raise DataError(
            f"{where}: x: expected finite numbers, found NaN or infinity in sample {bad[0]}, one of {len(bad)} "
            "such samples"
        )
