"""What tests read and no clone holds: the folders of data sets, published traces and more golden vectors.

`FEDSIM_DATA`, `FEDSIM_TRACES` and `FEDSIM_GOLDEN` name them; else they are `data`, `data/traces` and `tests/golden` of
the clone. No test downloads: one that misses its data skips, and says how to get them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("FEDSIM_DATA") or ROOT / "data")
TRACES = Path(os.environ.get("FEDSIM_TRACES") or ROOT / "data" / "traces")
GOLDEN = Path(os.environ.get("FEDSIM_GOLDEN") or ROOT / "tests" / "golden")


def _images(folder: str) -> tuple[str, ...]:
    parts = ("images-idx3-ubyte", "labels-idx1-ubyte")
    return tuple(f"{folder}/raw/{of}-{part}" for of in ("train", "t10k") for part in parts)


FILES = {
    "adult": ("adult/adult.data", "adult/adult.test"),
    "cifar10": ("cifar10_jpeg.parquet",),
    "fashion_mnist": _images("FashionMNIST"),
    "landmine": ("landmine/landmine.npz",),
    "mnist": _images("MNIST"),
    "shakespeare": ("shakespeare/input.txt",),
    "vehicle": ("vehicle/vehicle_train_subset.npz",),
}
"""The files of each task that is read from a folder; other tasks need none."""
DOWNLOADED_BY = {
    "fashion_mnist": "fedsim plan examples/fashion_mnist.toml",
    "mnist": "fedsim study examples/papers/fedfv_figure2_mnist.toml --dry-run",
}
"""A command for each task whose files fedsim downloads itself."""


def missing(task: str) -> str | None:
    """Say what is missing for a task and how to get it, or None if its data are there."""
    names = ", ".join(name for name in FILES.get(task, ()) if not (DATA / name).is_file())
    if not names:
        return None
    if task in DOWNLOADED_BY:
        get = f"`{DOWNLOADED_BY[task]}` in the clone's folder downloads them"
    else:
        get = "docs/tasks.md says where to get them"
    return f"no {names} in {DATA}: {get}; FEDSIM_DATA names another folder"


def data_of(tasks: str | Iterable[str]) -> Path:
    """Return the folder of data sets, or skip the test where files of one of the tasks are missing."""
    for task in [tasks] if isinstance(tasks, str) else tasks:
        if reason := missing(task):
            pytest.skip(reason)
    return DATA


def trace(name: str) -> Path:
    """Return a file or folder of published traces, or skip the test where it is missing."""
    if not (TRACES / name).exists():
        no_trace(name)
    return TRACES / name


def no_trace(what: str) -> NoReturn:
    """Skip the test, which wants a file or folder of published traces, or one of a format."""
    pytest.skip(
        f"no {what} in {TRACES}: docs/traces.md names the sources; FEDSIM_TRACES names another folder"
    )
