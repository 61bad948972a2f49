"""Handwritten digits from the UCI repository (Alpaydin and Kaynak, 1998), shipped inside scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.data import Task


def digits(*, clients: int, seed: int, data_dir: Path | None) -> Task:
    """1,797 grey 8x8 images of handwritten digits in 10 classes, no download.

    x is float32 [1797, 1, 8, 8] in 0..1. The three arguments are accepted as from every task, and change
    nothing.
    """
    from sklearn.datasets import load_digits  # half a second: only for runs on this task

    bundle = load_digits()
    return Task(
        name="digits",
        x=np.ascontiguousarray(bundle.images[:, None], dtype=np.float32) / np.float32(16),
        y=bundle.target.astype(np.int64),
        n_classes=10,
        official_test=np.zeros(len(bundle.target), dtype=np.bool_),
        model="mlp",
    )
