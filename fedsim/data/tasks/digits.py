"""Handwritten digits from the UCI repository (Alpaydin and Kaynak, 1998), shipped inside scikit-learn."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.data.federated_data import Task

_FILE = Path("datasets", "data", "digits.csv.gz")
"""The file in scikit-learn with a row for each image: 64 values from 0 to 16, then the digit."""


def digits(*, clients: int, seed: int, data_dir: Path | None) -> Task:
    """1,797 grey 8x8 images of handwritten digits in 10 classes, no download.

    x is float32 [1797, 1, 8, 8] from 0 to 1. The arguments, which every task takes, change nothing.
    """
    table = _table()
    return Task(
        name="digits",
        x=np.ascontiguousarray(table[:, :-1].reshape(-1, 1, 8, 8), dtype=np.float32) / np.float32(16),
        y=table[:, -1].astype(np.int64),
        n_classes=10,
        official_test=np.zeros(len(table), dtype=np.bool_),
        model="mlp",
    )


@cache
def _table() -> NDArray[np.float64]:
    """Return the rows of the file, without importing scikit-learn, which takes seconds, if the file can be found."""
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (Path(folder) / _FILE).is_file():
            return np.loadtxt(Path(folder) / _FILE, delimiter=",")
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return np.column_stack([bundle.data, bundle.target])
