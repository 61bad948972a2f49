"""Tasks from arrays and from torch datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from fedsim.common.errors import ConfigError, DataError
from fedsim.data.federated_data import Task
from fedsim.data.split import Division, federate

X = np.arange(24, dtype=np.float64).reshape(8, 3)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
CLIENT = np.array(["b", "a", "b", "c", "a", "b", "c", "a"])


def pairs() -> TensorDataset:
    return TensorDataset(torch.tensor(X), torch.tensor(Y))


def dicts() -> list[dict[str, Any]]:
    return [
        {"pixels": x.tolist(), "digit": int(y), "writer": str(c)}
        for x, y, c in zip(X, Y, CLIENT, strict=True)
    ]


def same(a: Task, b: Task) -> bool:
    fields = (a.x, a.y, a.official_test, *(a.natural or ())), (b.x, b.y, b.official_test, *(b.natural or ()))
    return a.names == b.names and len(fields[0]) == len(fields[1]) and all(map(np.array_equal, *fields))


def test_clients_come_in_the_order_of_their_names() -> None:
    task = Task.from_arrays(X, Y, CLIENT)
    assert task.natural is not None
    assert [rows.tolist() for rows in task.natural] == [[1, 4, 7], [0, 2, 5], [3, 6]]
    assert task.names == ("a", "b", "c")
    assert (task.x.dtype, task.y.dtype, task.n_classes) == (np.float32, np.int64, 3)
    assert np.array_equal(task.x, X)


@pytest.mark.parametrize(
    "task",
    [
        Task.from_arrays(torch.tensor(X), torch.tensor(Y), list(CLIENT)),
        Task.from_dataset(pairs(), client=CLIENT),
        Task.from_dataset(pairs(), client=lambda i: CLIENT[i]),
        Task.from_dataset(dicts(), client="writer", x="pixels", y="digit"),
        Task.from_dataset([(x, y, c) for x, y, c in zip(X, Y, CLIENT, strict=True)], client=2),
    ],
)
def test_arrays_tensors_and_datasets_make_the_same_task(task: Task) -> None:
    expected = Task.from_arrays(X, Y, CLIENT)
    assert same(task, expected)
    assert task.digest() == expected.digest()


@pytest.mark.parametrize("what", ["x", "y", "client", "shape", "test"])
def test_the_digest_depends_on_everything(what: str) -> None:
    x, y, client = X.copy(), Y.copy(), CLIENT.copy()
    if what == "x":
        x[3, 1] += 1
    elif what == "y":
        y[5] = 0
    elif what == "client":
        client[0] = "a"
    elif what == "shape":
        x = x.reshape(8, 3, 1)
    test = (x[:1], y[:1], client[:1]) if what == "test" else ()
    assert Task.from_arrays(x, y, client, *test).digest() != Task.from_arrays(X, Y, CLIENT).digest()


def test_a_test_set_with_clients_stays_with_them() -> None:
    task = Task.from_dataset(dicts(), client="writer", test=dicts()[:4], x="pixels", y="digit")
    owners = Task.from_dataset(pairs(), CLIENT, Subset(pairs(), range(4)), CLIENT[:4])
    assert same(owners, Task.from_arrays(X, Y, CLIENT, X[:4], Y[:4], CLIENT[:4]))
    assert same(owners, Task.from_dataset(pairs(), CLIENT, Subset(pairs(), range(4)), lambda i: CLIENT[i]))
    with pytest.raises(DataError, match=r"^client_test: expected none without test"):
        Task.from_dataset(pairs(), CLIENT, client_test=CLIENT)
    assert task.official_test.tolist() == [False] * 8 + [True] * 4
    data = federate(task, n_clients=3, division=Division(fractions=(1, 0, 0), pool="official"), seed=0)
    assert [data.test.rows(k).tolist() for k in range(3)] == [[9], [8, 10], [11]]


def test_columns_of_numbers_and_truth_values_are_features() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0, "c": np.arange(8)})
    expected = np.column_stack([X[:, 0], X[:, 1] > 0, np.arange(8)]).astype(np.float32)
    np.testing.assert_array_equal(Task.from_arrays(frame, Y).x, expected)


@pytest.mark.parametrize(("y", "told"), [(Y + 1, "the label 0, one of 1"), (10 * Y, "the label 1, one of ")])
def test_labels_with_gaps_are_told(y: np.ndarray, told: str) -> None:
    with pytest.warns(UserWarning, match=told):
        task = Task.from_arrays(X, y)
    np.testing.assert_array_equal(task.y, y)


def test_a_test_set_without_clients_goes_to_clients_by_label() -> None:
    """Client 0 trains on label 0 alone, client 1 on label 1 alone."""
    y = np.repeat([0, 1], 4)
    task = Task.from_dataset(
        TensorDataset(torch.tensor(X), torch.tensor(y)), client=y, test=Subset(pairs(), [0, 1, 3, 4])
    )
    data = federate(task, n_clients=2, division=Division(fractions=(1, 0, 0), pool="official"), seed=0)
    assert [sorted(data.test.rows(k).tolist()) for k in range(2)] == [[8, 10], [9, 11]]
    with pytest.raises(ConfigError, match=r"a test set without clients: expected task\.pool 'official'"):
        federate(task, n_clients=2, division=Division(pool="all"), seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task.from_arrays(X[:0], Y[:0]), r"x: expected at least one sample, found .* \[0, 3\]"),
        (
            lambda: Task.from_arrays(X, Y - 1),
            "y: expected whole numbers from 0 on, found -1 for sample 0, one of ",
        ),
        (
            lambda: Task.from_arrays(X, np.where(np.arange(8) == 3, np.nan, Y)),
            "y: .* and NaN for sample 3, one of 1 such samples: leave them out$",
        ),
        (
            lambda: Task.from_arrays(np.where(np.arange(24).reshape(8, 3) == 7, np.inf, X), Y),
            r"x: expected finite numbers, found inf at \[2, 1\]",
        ),
        (
            lambda: Task.from_arrays(pd.DataFrame({"age": X[:, 0], "town": list("abcdabcd")}), Y),
            "x, column 'town': expected numbers, found object; pandas.get_dummies makes",
        ),
        (lambda: Task.from_arrays(X.astype(str), Y), r"x: expected numbers, found <U32 of shape \[8, 3\]$"),
        (lambda: Task.from_arrays(X, Y[:5]), "y: expected 8 labels, as many as rows of x, found 5"),
        (
            lambda: Task.from_arrays(X, Y / 2),
            "y: expected one whole number .* found float64.* not of regression",
        ),
        (
            lambda: Task.from_arrays(np.full((8, 1), 2**24 + 1), Y),
            "x: expected whole numbers that float32 holds, such as those up to 16,777,216, found 16777217",
        ),
        (
            lambda: Task.from_arrays(X, Y[:, None]),
            r"found int64 of shape \[8, 1\]; y.reshape\(-1\) makes them",
        ),
        (
            lambda: Task.from_arrays(X, Y, CLIENT[:3]),
            "client: expected 8 whole numbers or texts, .* shape \\[3\\]",
        ),
        (lambda: Task.from_arrays(X, Y, x_test=X), "x_test, y_test: expected both or neither"),
        (
            lambda: Task.from_arrays(X, Y, None, X, Y, CLIENT),
            "client_test: expected none without the clients",
        ),
        (
            lambda: Task.from_arrays(X, Y, CLIENT, X[:1], Y[:1], ["z"]),
            "test: expected samples of clients that train",
        ),
        (
            lambda: Task.from_arrays(X, Y, None, X[:, :2], Y),
            r"test: expected samples of shape \[3\], found \[2\]",
        ),
        (lambda: Task.from_dataset(iter(pairs())), "dataset: expected a torch dataset with a length"),
        (lambda: Task.from_dataset([]), "dataset: expected at least one sample, found none"),
        (lambda: Task.from_dataset([5]), "dataset, sample 0: expected \\(features, label\\) or a dict"),
        (
            lambda: Task.from_dataset(dicts(), x="image", y="digit"),
            "found 'pixels', 'digit', 'writer' and no 'image'",
        ),
        (
            lambda: Task.from_dataset([(X[0], 1), (X[0, :2], 1)]),
            r"found \[3\] in sample 0 and \[2\] in sample 1",
        ),
        (lambda: Task.from_dataset([(Image.new("L", (2, 2)), 1)]), "sample 0: features: .*ToTensor"),
        (lambda: Task.from_dataset([("text", 1)]), "sample 0: features: expected numbers, found 'text'"),
    ],
)
def test_what_is_wrong_is_named(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
