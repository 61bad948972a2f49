"""MNIST-like data sets, read from torchvision's layout `<folder>/<Name>/raw`, and downloaded into it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.data import Task
from fedsim.errors import DataError

_DTYPE_CODE = {1: 0x801, 3: 0x803}
"""Magic number of an idx file of bytes, by its number of dimensions."""
_PARTS = ("train", "t10k")


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A data set that torchvision knows under `dataset`, with the pixel statistics of its training images."""

    name: str
    dataset: str
    mean: float
    std: float


def load(images: ImageSet, data_dir: Path | None, normalise: bool) -> Task:
    """Read the training images, then the official test images; download them where they are not there.

    x is float32 [70000, 1, 28, 28] in 0..1, or with mean 0 and standard deviation 1 over the training pixels
    if `normalise`. Raises DataError that names the file when one is missing and cannot be downloaded, or is
    damaged.
    """
    raw = folder(data_dir) / images.dataset / "raw"
    _ensure(images, raw)
    pairs = [_read_pair(raw, part) for part in _PARTS]
    x = np.concatenate([pixels for pixels, _ in pairs])[:, None].astype(np.float32)
    x /= 255
    if normalise:
        x -= images.mean
        x /= images.std
    y = np.concatenate([labels for _, labels in pairs]).astype(np.int64)
    return Task(
        name=images.name,
        x=x,
        y=y,
        n_classes=10,
        official_test=np.arange(len(y)) >= len(pairs[0][1]),
        model="mlp",
    )


def folder(data_dir: Path | None) -> Path:
    """Return where data sets lie: `data_dir`, else the environment variable FEDSIM_DATA, else `./data`."""
    return Path(data_dir if data_dir is not None else os.environ.get("FEDSIM_DATA") or "data").expanduser()


def file_names(part: str) -> tuple[str, str]:
    """Return the names of the image and the label file of "train" or "t10k"."""
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _ensure(images: ImageSet, raw: Path) -> None:
    wanted = [name for part in _PARTS for name in file_names(part)]
    missing = [name for name in wanted if not (raw / name).is_file()]
    if not missing:
        return
    from torchvision import datasets  # seconds to import, and only needed to download

    try:
        getattr(datasets, images.dataset)(root=raw.parents[1], download=True)
    except (RuntimeError, OSError, AssertionError, ValueError) as error:
        raise DataError(
            f"task {images.name!r}: no {', '.join(missing)} in {raw}, and downloading failed. Put the "
            "uncompressed idx files there, or set task.data_dir or FEDSIM_DATA to a folder that holds "
            f"{images.dataset}/raw.\n{error}"
        ) from error


def _read_pair(raw: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_name, labels_name = file_names(part)
    pixels, labels = _read_idx(raw / images_name, 3), _read_idx(raw / labels_name, 1)
    if pixels.shape != (len(labels), 28, 28):
        raise DataError(
            f"{raw / images_name}: expected images [{len(labels)}, 28, 28] to go with the labels, "
            f"found {list(pixels.shape)}"
        )
    if len(labels) and labels.max() > 9:
        raise DataError(f"{raw / labels_name}: expected labels 0 to 9, found {labels.max()}")
    return pixels, labels


def _read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: a big-endian magic number, `ndim` lengths, then the values."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    start = 4 * (1 + ndim)
    head = content[:start].tobytes()
    magic, *shape = np.frombuffer(head[: len(head) // 4 * 4], dtype=">u4").tolist() or [None]
    if magic != _DTYPE_CODE[ndim] or len(shape) != ndim:
        raise DataError(f"{path}: expected an idx file of bytes in {ndim} dimensions, found another header")
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise DataError(
            f"{path}: expected {expected} bytes for {shape}, found {len(content)}: the file is damaged"
        )
    return content[start:].reshape(shape)
